"""The raw library, for `kvbridge bench`: one contiguous tensor of the same size, sent and received in one call."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from kvbridge.bench.raw import Raw
from kvbridge.errors import KVBridgeError
from kvbridge.threads import Loop
from kvbridge_nccl import library
from kvbridge_nccl.options import NcclOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

PATIENCE = 600.0
"""Seconds that one side waits for the other's next transfer."""


class RawNccl(Raw):
    """torch.distributed's `send` and `recv` over gloo. The pages' order does not matter to it: it sends one run."""

    def __init__(self, options: Mapping[str, Any], memory: NDArray[np.uint8], page: int) -> None:
        self._host = msgspec.convert(dict(options), NcclOptions).host
        self._torch = library.load()
        self._memory = self._torch.from_numpy(memory)
        self._page = page
        self._group: library.Group | None = None
        self._store: Any = None
        self._name = ""
        self._loop: Loop | None = None

    def card(self) -> bytes:
        """Return where the group is made, and wait there for the other side."""
        self._store, port = library.make_store(self._host, PATIENCE)
        self._name = secrets.token_hex(16)
        self._loop = Loop("raw-nccl", self._receive, lambda: None)
        return msgspec.msgpack.encode((self._host, port, self._name))

    def meet(self, card: bytes) -> None:
        """Make the group."""
        host, port, name = msgspec.msgpack.decode(card)
        store = library.join_store(host, port, PATIENCE)
        self._group = library.Group(store, name, 0, self._host, PATIENCE, PATIENCE)

    def move(self, name: str, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        """Send as many bytes, and wait until the other side has them."""
        del name, target
        if self._group is None:
            return
        nbytes = len(source) * self._page
        size = self._torch.tensor([nbytes])
        ack = self._torch.zeros(1, dtype=self._torch.int64)
        works = [
            self._group.send(size),
            self._group.send(self._memory[:nbytes]),
            self._group.receive(ack),
        ]
        for work in works:
            self._group.wait(work)

    def progress(self) -> None:
        """Nothing: a thread receives."""

    def close(self) -> None:
        """End the group."""
        group, self._group = self._group, None
        if group is not None:
            group.end()
        if self._loop is not None:
            self._loop.stop(1.0)

    def _receive(self) -> None:
        if self._group is None:
            self._group = library.Group(self._store, self._name, 1, self._host, PATIENCE, PATIENCE)
        group = self._group
        size = self._torch.zeros(1, dtype=self._torch.int64)
        try:
            group.wait(group.receive(size))
            group.wait(group.receive(self._memory[: int(size[0])]))
            group.wait(group.send(size))
        except KVBridgeError:  # the other side has ended
            if self._loop is not None:
                self._loop.stop(0)
