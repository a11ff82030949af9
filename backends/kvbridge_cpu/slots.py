"""`HostSlots`: slots in host memory, and the copies between them and a cache in host memory."""

from __future__ import annotations

import contextlib
import mmap
import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from kvbridge.abc import Move, SlotPool
from kvbridge.errors import ConfigError, SpecMismatchError
from kvbridge.memory.copying import copies
from kvbridge.memory.slots import slot_regions, slots_bytes
from kvbridge.threads import Pool
from kvbridge.transfer import cancelled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvbridge.abc import MoveState, Task
    from kvbridge.memory import Pages, Region

STEP_BYTES = 4 << 20
"""Bytes that are copied between two looks at whether the copy is still wanted: about a millisecond."""

CLOSE_TIMEOUT = 1.5
"""Seconds that `close` waits for the steps under way."""


class HostSlots(SlotPool):
    """Slots in host memory. Loads and saves have a thread each, so that a load never waits for saves.

    Args:
        like: The cache's regions, in host memory.
        slots: Number of slots.
        memory: Bytes to use, `slots_bytes`; None to take some that the kernel gives when they are first used.

    Raises:
        ConfigError: There is not so much memory, or what is given is too small.
    """

    def __init__(self, like: Sequence[Region], slots: int, memory: NDArray[np.uint8] | None = None) -> None:
        page_bytes = [region.page_bytes for region in like]
        self.used_bytes = slots_bytes(page_bytes, slots)
        if memory is None:
            memory = _private_memory(self.used_bytes)
        self.regions = slot_regions(memory, page_bytes, slots)
        self._closing = threading.Event()
        self._loads = Pool("slots-load", 1)
        self._saves = Pool("slots-save", 1)

    def copy(self, source: Pages, target: Pages) -> Move:
        """Start a copy. See `SlotPool.copy`."""
        if source.spec != target.spec:
            raise SpecMismatchError(f"pages of {source.spec} cannot be copied to pages of {target.spec}")
        saves = bool(target.regions) and target.regions[0] in self.regions
        return _Copy(source, target, self._saves if saves else self._loads, self._closing)

    def close(self) -> None:
        """End all copies and give the memory back. Idempotent, bounded."""
        self._closing.set()
        deadline = time.monotonic() + CLOSE_TIMEOUT
        for pool in (self._loads, self._saves):
            pool.close(max(0.0, deadline - time.monotonic()))
        self.regions = ()


class _Copy(Move):
    """A copy on a thread."""

    def __init__(self, source: Pages, target: Pages, pool: Pool, closing: threading.Event) -> None:
        self._unwanted = threading.Event()
        self._closing = closing
        self._source = source
        self._target = target
        self._task: Task[None] = pool.run(self._run)

    def step(self) -> MoveState:
        """Look whether it has ended."""
        return self._task.step()

    def abort(self) -> None:
        """End it after the step under way."""
        self._unwanted.set()
        self._task.abort()

    def _run(self) -> None:
        for step in copies(self._source, self._target, STEP_BYTES):
            if self._unwanted.is_set() or self._closing.is_set():
                raise cancelled("copying blocks")
            step()


def _private_memory(nbytes: int) -> NDArray[np.uint8]:
    try:
        found = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(f"cannot have {nbytes} bytes of memory for slots: {error}") from error
    with contextlib.suppress(OSError, AttributeError):  # a kernel without them; copies are slower then
        found.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(found, dtype=np.uint8)
