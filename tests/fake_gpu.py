"""A fake GPU: torch's host memory in its place. There is none where these tests run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvbridge.errors import TransportError
from kvbridge.memory import Region, cuda
from tests.nodes import eventually, pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


class FakeGpu:
    """Memory that regions say is on a GPU. Where torch would wrap an address it gets the memory at that address.

    Args:
        monkeypatch: Of the test.
        sizes: Bytes of a page of each region; there are gaps of as many between two.
        blocks: Blocks of each.
        seed: Of what is in the memory.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], blocks: int, seed: int = 0) -> None:
        self.memory = [pattern(seed + index, blocks * size * 2) for index, size in enumerate(sizes)]
        self._shapes = [(size, 2 * size, blocks) for size in sizes]
        before = cuda.device_rows

        def rows(region: Region) -> Any:
            import torch

            for one in self.memory:
                if one.ctypes.data == region.address:
                    shape = (region.num_blocks, region.page_bytes)
                    return torch.from_numpy(one).as_strided(shape, (region.block_stride, 1))
            return before(region)

        monkeypatch.setattr(cuda, "device_rows", rows)

    def regions(self) -> tuple[Region, ...]:
        """Return the regions, on the GPU."""
        return tuple(
            Region(one.ctypes.data, *shape, device="cuda:0")
            for one, shape in zip(self.memory, self._shapes, strict=True)
        )

    def seen(self) -> tuple[Region, ...]:
        """Return the same regions as host memory, for what is to be expected."""
        return tuple(
            Region(one.ctypes.data, *shape, host=one) for one, shape in zip(self.memory, self._shapes, strict=True)
        )

    def content(self, ids: list[int]) -> list[bytes]:
        """Return the bytes of blocks, region by region."""
        return [np.ascontiguousarray(region.rows()[ids]).tobytes() for region in self.seen()]


class FakeQueue:
    """A fake GPU's queue of work: what is queued is computed when a test says so."""

    def __init__(self) -> None:
        self.broken: int | None = None
        self._queued = 0
        self._done = 0
        self._looks = 0

    def mark(self) -> FakeMark:
        """Queue a piece of work, and put a mark behind it."""
        self._queued += 1
        return FakeMark(self, self._queued - 1)

    def compute(self, pieces: int) -> None:
        """Do the next pieces."""
        self._done += pieces

    def passed(self, piece: int) -> bool:
        """Whether a piece is done."""
        self._looks += 1
        if piece == self.broken:
            raise TransportError("the fake GPU has failed")
        return piece < self._done

    def seen(self, times: int) -> None:
        """Wait until somebody has looked so many times more."""
        wanted = self._looks + times
        self.wait_for(lambda: self._looks >= wanted)

    def wait_for(self, holds: Callable[[], bool]) -> None:
        """Wait for something that another thread does."""
        eventually(holds, 10, lambda: f"{self._done} of {self._queued} pieces are done")


class FakeMark:
    """A place in a fake queue."""

    def __init__(self, queue: FakeQueue, piece: int) -> None:
        self._queue = queue
        self._piece = piece

    def passed(self) -> bool:
        """Whether all work before it is done."""
        return self._queue.passed(self._piece)
