"""`Engine`: one transfer engine of the library. Its handles are guarded: a wrong one would end the process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvbridge.errors import BackendUnavailableError, TransportError
from kvbridge_mooncake.library import load

if TYPE_CHECKING:
    from kvbridge_mooncake.options import MooncakeOptions

WITHOUT_SERVER = "P2PHANDSHAKE"
"""Engines tell each other where their memory is; no metadata server is needed. Unknown schemes end the process."""


class Engine:
    """A transfer engine. Calls of one of its methods may come from any thread.

    Args:
        options: How it is used.

    Attributes:
        session: Where peers reach it.

    Raises:
        BackendUnavailableError: It cannot be made.
    """

    def __init__(self, options: MooncakeOptions) -> None:
        module = load("engine", environment(options))
        self._lib: Any = module.TransferEngine()
        code = self._lib.initialize(options.host, WITHOUT_SERVER, options.protocol, options.device)
        if code != 0:
            self._lib = None
            raise BackendUnavailableError(f"Mooncake's transfer engine did not start (code {code}): see its log lines")
        self.session = f"{options.host}:{self._lib.get_rpc_port()}"

    def register(self, address: int, nbytes: int) -> None:
        """Let peers reach memory.

        Raises:
            TransportError: The library refuses it.
        """
        code = self._lib.register_memory(address, nbytes)
        if code != 0:
            raise TransportError(f"Mooncake does not register {nbytes} bytes at {address:#x} (code {code})")

    def unregister(self, address: int) -> None:
        """Let peers reach memory no more. What is under way goes on."""
        if self._lib is not None:
            self._lib.unregister_memory(address)

    def probe(self, session: str) -> bool:
        """Ask whether a peer's engine answers. Blocks, for a minute at worst; for a thread of one's own."""
        return bool(self._lib.send_probe(session) == 0)

    def read_now(self, session: str, local: int, remote: int, nbytes: int) -> bool:
        """Read a few bytes and wait for them. For a thread of one's own."""
        return bool(self._lib.transfer_sync_read(session, local, remote, nbytes) == 0)

    def begin(self, operation: str, session: str, local: int, remote: int, nbytes: int) -> int:
        """Start to move one run of bytes; `"READ"` or `"WRITE"`.

        Returns:
            A handle for `poll`, of which each ends once.

        Raises:
            TransportError: The library refuses it.
        """
        move = self._lib.batch_transfer_async_read if operation == "READ" else self._lib.batch_transfer_async_write
        handle = int(move(session, [local], [remote], [nbytes]))
        if handle == 0:  # the library's word for a failure; asking for its state would end the process
            raise TransportError(f"Mooncake refuses to {operation.lower()} {nbytes} bytes at {session}")
        return handle

    def poll(self, handle: int) -> bool:
        """Look whether a run has ended. The handle is of no use after True or an error.

        Raises:
            TransportError: It failed. Its bytes do not move any more.
        """
        code = self._lib.transfer_check_status(handle)
        if code in (0, 1):
            return bool(code)
        raise TransportError(f"Mooncake reported that moving bytes failed (code {code})")

    def close(self) -> None:
        """End everything. When it returns, nothing moves. Takes a second; idempotent."""
        self._lib = None  # the last reference: the library waits for its threads


def environment(options: MooncakeOptions) -> dict[str, str]:
    """Return the settings of the library under which failures come in time, and as such."""
    patience = str(options.patience)
    return {
        "MC_TCP_PROGRESS_TIMEOUT_SEC": patience,
        "MC_TCP_STATUS_TIMEOUT_SEC": patience,
        "MC_TRANSFER_TIMEOUT": str(options.patience + 20),  # never the first: it leaves transfers alive
        **({"MC_FORCE_TCP": "1"} if options.protocol == "tcp" else {}),
    }
