"""`SlotNode`: backend, cache and slots as a worker owns them that keeps blocks for reuse. In this process, no peer."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbridge.abc import MoveState
from kvbridge.conformance.checks import require
from kvbridge.conformance.node import Node
from kvbridge.conformance.values import CANARY, MARK, SPARSE, Cache, require_same, require_still_marked
from kvbridge.errors import KVBridgeError
from kvbridge.memory import Pages
from kvbridge.registry import create_backend

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from kvbridge.abc import Move
    from kvbridge.conformance.values import Geometry
    from kvbridge.memory import Region

LOOK = 0.0003
"""Seconds between two looks at a copy."""


class Slots:
    """The slots of a pool as bytes. All that nothing was written to has the canary.

    Args:
        regions: The pool's.
    """

    def __init__(self, regions: Sequence[Region]) -> None:
        require(all(region.host is not None for region in regions), "a region of slots is not in host memory")
        self.rows = [region.rows().view(np.uint8) for region in regions]
        self.written: set[int] = set()

    def clear(self) -> None:
        """Write the canary everywhere."""
        self.written.clear()
        for rows in self.rows:
            rows[:] = CANARY

    def write(self, ids: Sequence[int], content: NDArray[np.uint8]) -> None:
        """Write packed bytes into slots, as a store does."""
        self.written.update(ids)
        start = 0
        for rows in self.rows:
            end = start + rows.shape[1] * len(ids)
            rows[list(ids)] = content[start:end].reshape(len(ids), -1)
            start = end

    def check(self, ids: Sequence[int], expected: NDArray[np.uint8], what: str) -> None:
        """Check slots, and that nothing else was touched."""
        self.written.update(ids)
        start = 0
        for index, rows in enumerate(self.rows):
            end = start + rows.shape[1] * len(ids)
            require_same(rows[list(ids)].reshape(-1), expected[start:end], f"{what}, region {index}")
            others = sorted(set(range(len(rows))) - self.written)
            bad = [slot for slot in others if not (rows[slot] == CANARY).all()]
            require(not bad, f"{what}: slots {bad[:10]} of region {index} were written; nobody named them")
            start = end

    def touched(self) -> bool:
        """Whether something was written."""
        return any((rows[:, 0] != CANARY).any() for rows in self.rows)

    def mark(self, ids: Sequence[int]) -> None:
        """Write some bytes over slots, all over them, at once."""
        for rows in self.rows:
            rows[np.ix_(np.asarray(ids), _marked(rows))] = MARK

    def check_marked(self, ids: Sequence[int], what: str) -> None:
        """Check that what was marked is as it was."""
        for index, rows in enumerate(self.rows):
            found = rows[np.ix_(np.asarray(ids), _marked(rows))]
            require_still_marked(found.reshape(-1), f"{what}, region {index}")


def _marked(rows: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The end first: it is written last."""
    return np.arange(rows.shape[1] - 1, -1, -SPARSE)


class SlotNode:
    """A worker that keeps blocks.

    Args:
        backend: Name of the backend.
        options: Its options.
        geometry: The cache's.
        count: Number of slots.
        memory: Memory for the slots; None for memory of the pool's own. What is in it stays.

    Attributes:
        cache: The cache.
        slots: The slots. They may not be touched any more once the pool is closed.
    """

    def __init__(
        self,
        backend: str,
        options: Mapping[str, Any],
        geometry: Geometry,
        count: int,
        memory: NDArray[np.uint8] | None = None,
    ) -> None:
        self.backend = create_backend(backend, options)
        self.cache = Cache(geometry)
        with contextlib.ExitStack() as made:
            made.callback(self.backend.close)
            self.pool = self.backend.open_pool(self.cache.regions, count, memory)
            made.callback(self.pool.close)
            self.slots = Slots(self.pool.regions)
            made.pop_all()
        if memory is None:
            self.slots.clear()

    def save(self, blocks: Sequence[int], slots: Sequence[int]) -> Move:
        """Start to copy blocks into slots."""
        return self.pool.copy(self.cache.pages(blocks), Pages.of(self.pool.regions, slots))

    def load(self, slots: Sequence[int], blocks: Sequence[int]) -> Move:
        """Start to copy slots into blocks."""
        return self.pool.copy(Pages.of(self.pool.regions, slots), self.cache.pages(blocks))

    def end(self, move: Move, timeout: float = 0.0) -> None:
        """Wait until a copy is done.

        Raises:
            KVBridgeError: It failed, or was aborted.
        """
        timeout = timeout or Node.wait
        deadline = time.monotonic() + timeout
        while (state := move.step()) is not MoveState.DONE:
            require(isinstance(state, MoveState), f"step returned {state!r}, expected a MoveState")
            require(time.monotonic() < deadline, f"a copy had not ended after {timeout:g} s")
            if state is MoveState.WAIT:
                time.sleep(LOOK)

    def ended(self, move: Move, timeout: float) -> KVBridgeError | None:
        """Wait for the end of a copy, and return its error."""
        try:
            self.end(move, timeout)
        except KVBridgeError as error:
            return error
        return None

    def close(self) -> None:
        """Close the pool, then its backend. Idempotent."""
        self.pool.close()
        self.backend.close()
