"""The raw library, for `kvbridge bench`: the same runs in one batch, and nothing around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from kvbridge.bench.raw import Raw
from kvbridge.errors import TransportError
from kvbridge.memory import Pages, Region
from kvbridge.memory.places import decode_place
from kvbridge_mooncake.engine import WITHOUT_SERVER, environment
from kvbridge_mooncake.library import load
from kvbridge_mooncake.memory import Blocks, place_of
from kvbridge_mooncake.options import MooncakeOptions
from kvbridge_mooncake.transfer import Runs, runs

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

NAME = "0" * 32


class RawMooncake(Raw):
    """One engine, one registration, one synchronous batch of writes."""

    def __init__(self, options: Mapping[str, Any], memory: NDArray[np.uint8], page: int) -> None:
        typed = msgspec.convert(dict(options), MooncakeOptions)
        self._lib = load("engine", environment(typed)).TransferEngine()
        if self._lib.initialize(typed.host, WITHOUT_SERVER, typed.protocol, typed.device):
            raise TransportError("the raw engine did not start")
        if self._lib.register_memory(memory.ctypes.data, memory.nbytes):
            raise TransportError("the raw engine does not register memory")
        self._region = Region.over(memory, page)
        self._session = f"{typed.host}:{self._lib.get_rpc_port()}"
        self._there = ("", 0)
        self._prepared: dict[str, Runs] = {}

    def card(self) -> bytes:
        """Return session and address."""
        return msgspec.msgpack.encode((self._session, self._region.address))

    def meet(self, card: bytes) -> None:
        """Take the other side's card."""
        self._there = msgspec.msgpack.decode(card, type=tuple[str, int])

    def move(self, name: str, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        """Write pages and wait."""
        if name not in self._prepared:
            place = decode_place(place_of(NAME, Blocks(Pages((self._region,), (target,)))), NAME)
            local, remote, sizes = runs(Blocks(Pages((self._region,), (source,))), place, 0)
            self._prepared[name] = local, remote - self._region.address + self._there[1], sizes
        lists = [array.tolist() for array in self._prepared[name]]
        if self._lib.batch_transfer_sync_write(self._there[0], *lists):
            raise TransportError("the raw engine did not write")

    def progress(self) -> None:
        """Nothing to do: the library has threads."""

    def close(self) -> None:
        """Give everything back."""
        self._lib = None
