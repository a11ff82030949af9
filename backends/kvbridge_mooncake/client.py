"""`Client`: the library's store client, guarded. Used before its set-up or after its end it would end the process."""

from __future__ import annotations

import logging
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from kvbridge.errors import BackendUnavailableError, CapacityError, TransportError
from kvbridge_mooncake.library import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbridge_mooncake.options import MooncakeStoreOptions

logger = logging.getLogger(__name__)

DOWN_CODES = (-900, -901)
"""What the library reports when its master does not answer."""

NO_SPACE = -200
"""What it reports when everything in the store is in use."""

PAUSE = 2.0
"""Seconds for which a master that did not answer is not asked again: each call would wait."""

REACH = 1.0
"""Seconds in which a master has to accept a connection."""


class DownError(TransportError):
    """The master does not answer."""


class Client:
    """A client of a store. Any thread may call; every call may wait for the master, some seconds at most.

    Args:
        options: Where the master is, and what this process contributes.

    Attributes:
        times_down: How often the master was found not to answer.

    Raises:
        BackendUnavailableError: There is no master, or it does not take us.
    """

    def __init__(self, options: MooncakeStoreOptions) -> None:
        self.times_down = 0
        self._until = 0.0
        self._calls = threading.Condition()
        self._under_way = 0
        check_master(options.master)  # the library would wait for a minute and a half
        module = load("store", {"MC_FORCE_TCP": "1"} if options.protocol == "tcp" else {})
        self._lib: Any = module.MooncakeDistributedStore()
        code = self._lib.setup(
            options.host,
            options.metadata,
            options.segment_bytes(),
            options.buffer_bytes(),
            options.protocol,
            options.device,
            options.master,
        )
        if code != 0:
            self._lib = None
            raise BackendUnavailableError(f"the Mooncake master at {options.master} does not take us (code {code})")

    def call(self, name: str, *arguments: Any) -> Any:
        """Call the library.

        Raises:
            DownError: The master does not answer, or did not a moment ago.
            TransportError: The client is closed.
        """
        if time.monotonic() < self._until:
            raise DownError("Mooncake's master did not answer a moment ago")
        with self._calls:
            if self._lib is None:
                raise TransportError("the store's client is closed")
            self._under_way += 1
        try:
            return getattr(self._lib, name)(*arguments)
        finally:
            with self._calls:
                self._under_way -= 1
                self._calls.notify_all()

    def exist(self, keys: Sequence[str]) -> list[bool]:
        """Say which keys are there, and keep them there for a while.

        Raises:
            DownError: See `call`.
        """
        codes = self.call("batch_is_exist", list(keys))
        self.check("asking for keys", min(codes, default=0))
        return [code == 1 for code in codes]

    def get(self, keys: Sequence[str]) -> list[bytes]:
        """Get small values; empty for keys that are not there.

        Raises:
            DownError: See `call`.
        """
        return [bytes(found) for found in self.call("get_batch", list(keys))]

    def put(self, key: str, value: bytes) -> None:
        """Put a small value. A value that is there stays, which the library does not tell: look at it afterwards.

        Raises:
            TransportError: It could not be put.
        """
        self.check("putting a value", self.call("put", key, value))

    def put_from(self, key: str, pieces: tuple[list[int], list[int]]) -> None:
        """Put a value out of registered memory, given as addresses and bytes.

        Raises:
            CapacityError: There is no room.
            TransportError: It could not be put.
        """
        self.check("putting a value", self.call("batch_put_from_multi_buffers", [key], [pieces[0]], [pieces[1]])[0])

    def get_into(self, key: str, pieces: tuple[list[int], list[int]]) -> int:
        """Get a value into registered memory; return its bytes, or the library's code."""
        return int(self.call("batch_get_into_multi_buffers", [key], [pieces[0]], [pieces[1]])[0])

    def remove(self, keys: Sequence[str], *, force: bool) -> list[bool]:
        """Remove values; say for each whether it is gone. Without force one that is being read stays.

        Raises:
            DownError: See `call`.
        """
        codes = self.call("batch_remove", list(keys), force)
        self.check("removing values", 0 if any(code not in DOWN_CODES for code in codes) else min(codes, default=0))
        return [code in (0, -704) for code in codes]

    def register(self, address: int, nbytes: int) -> None:
        """Register memory.

        Raises:
            TransportError: The library refuses it.
        """
        code = self.call("register_buffer", address, nbytes)
        if code != 0:
            raise TransportError(f"Mooncake does not register {nbytes} bytes at {address:#x} (code {code})")

    def unregister(self, address: int) -> None:
        """Forget memory."""
        with self._calls:
            if self._lib is not None:
                self._lib.unregister_buffer(address)

    def check(self, what: str, code: int) -> None:
        """Raise what a code of the library means.

        Raises:
            DownError: The master does not answer.
            CapacityError: There is no room.
            TransportError: Something else.
        """
        if code >= 0:
            return
        if code in DOWN_CODES:
            self.times_down += 1
            self._until = time.monotonic() + PAUSE
            logger.warning("Mooncake's master does not answer (code %d): the store is left alone for %g s", code, PAUSE)
            raise DownError(f"{what}: Mooncake's master does not answer (code {code})")
        if code == NO_SPACE:
            raise CapacityError(f"{what}: Mooncake has no room, and all that is there is in use")
        raise TransportError(f"{what}: Mooncake reported code {code}")

    def close(self) -> None:
        """Leave the store, once no call is under way. May take long where the master is gone; idempotent."""
        with self._calls:
            lib, self._lib = self._lib, None
            self._calls.wait_for(lambda: not self._under_way)
        if lib is not None:
            lib.close()


def check_master(address: str) -> None:
    """Make sure that somebody listens at the master's address.

    Raises:
        BackendUnavailableError: Nobody does.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=REACH):
            return
    except (OSError, ValueError) as error:
        raise BackendUnavailableError(
            f"no Mooncake master at {address} ({error}): start one with `mooncake_master`, and name its address in "
            "options.master"
        ) from error
