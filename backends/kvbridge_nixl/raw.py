"""The raw library, for `kvbridge bench`: the same pages in prepared lists, one transfer, and nothing around it.

The transfer is made for each move: an engine's requests have other blocks each time.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from kvbridge.bench.raw import Raw
from kvbridge.errors import TransportError
from kvbridge_nixl import library
from kvbridge_nixl.options import NixlOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

POLLS = 100_000_000


class RawNixl(Raw):
    """One agent, one registration, one prepared list of all pages."""

    def __init__(self, options: Mapping[str, Any], memory: NDArray[np.uint8], page: int) -> None:
        typed = msgspec.convert(dict(options), NixlOptions)
        self._name = uuid.uuid4().hex
        self._agent = library.make_agent(library.load(typed), self._name, typed)
        address, nbytes = memory.ctypes.data, memory.nbytes
        self._registered = self._agent.register_memory([(address, nbytes, 0, "")], "DRAM")
        self._rows = np.array([[address, page, 0, page, nbytes // page]], dtype=np.uint64)
        self._mine = self._agent.prep_xfer_dlist("NIXL_INIT_AGENT", self._rows, "DRAM")
        self._theirs: Any = None

    def card(self) -> bytes:
        """Return what the other side needs."""
        return msgspec.msgpack.encode((self._name, self._agent.get_agent_metadata(), self._rows.tobytes()))

    def meet(self, card: bytes) -> None:
        """Load the other side."""
        name, metadata, rows = msgspec.msgpack.decode(card)
        self._agent.add_remote_agent(metadata)
        table = np.frombuffer(rows, dtype=np.uint64).reshape(-1, 5)
        self._theirs = self._agent.prep_xfer_dlist(name, table, "DRAM")

    def move(self, name: str, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        """Write pages, and wait until they are there."""
        del name
        local, remote = source.astype(np.int32), target.astype(np.int32)
        handle = self._agent.make_prepped_xfer("WRITE", self._mine, local, self._theirs, remote)
        try:
            state = self._agent.transfer(handle)
            for _ in range(POLLS):
                if state == "DONE":
                    return
                state = self._agent.check_xfer_state(handle)
        finally:
            library.give_back(handle)
        raise TransportError("the raw transfer did not end")

    def progress(self) -> None:
        """Let the library of the side that is written to do its part."""
        self._agent.get_new_notifs()

    def close(self) -> None:
        """Give everything back."""
        for handle in (self._mine, self._theirs):
            if handle is not None:
                library.give_back(handle)
        self._agent.deregister_memory(self._registered)
        library.forget_agent(self._agent)
