"""`CudaSlots`: slots in pinned host memory for a cache in GPU memory. Not yet run on a GPU.

Copies go on side streams, one for each direction, after all work that was queued on the cache before, and nobody waits
for them: an event says when they have ended.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbridge.abc import Move, MoveState, SlotPool
from kvbridge.errors import ClosedError, ConfigError, SpecMismatchError, TransportError
from kvbridge.memory.cuda import device_rows
from kvbridge.memory.slots import slot_regions, slots_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvbridge.memory import Pages, Region


logger = logging.getLogger(__name__)

CLOSE_TIMEOUT = 1.5
"""Seconds that `close` waits for copies that are queued."""


class CudaSlots(SlotPool):
    """Slots in pinned host memory.

    Args:
        like: The cache's regions, on one GPU.
        slots: Number of slots.
        memory: Bytes to use, which are pinned as long as the pool is there; None for memory of its own.

    Raises:
        ConfigError: So much memory cannot be pinned.
    """

    def __init__(self, like: Sequence[Region], slots: int, memory: NDArray[np.uint8] | None = None) -> None:
        import torch  # noqa: PLC0415 - a peer: needed only where KV is on a GPU

        page_bytes = [region.page_bytes for region in like]
        self.used_bytes = slots_bytes(page_bytes, slots)
        self._torch = torch
        self._device = like[0].device
        self._pinned = 0
        if memory is None:
            try:
                memory = torch.empty(self.used_bytes, dtype=torch.uint8, pin_memory=True).numpy()
            except RuntimeError as error:
                raise ConfigError(f"cannot pin {self.used_bytes} bytes of memory for slots: {error}") from error
        else:
            self._pin(memory)
        self._memory = memory
        self.regions = slot_regions(memory, page_bytes, slots)
        self._streams = {saves: torch.cuda.Stream(device=self._device) for saves in (False, True)}

    def copy(self, source: Pages, target: Pages) -> Move:
        """Start a copy. See `SlotPool.copy`. What is queued ends: an abort is DONE a little later."""
        if not self.regions:
            raise ClosedError("the slots were closed")
        if source.spec != target.spec:
            raise SpecMismatchError(f"pages of {source.spec} cannot be copied to pages of {target.spec}")
        torch = self._torch
        saves = bool(target.regions) and target.regions[0] in self.regions
        stream = self._streams[saves]
        ended = torch.cuda.Event()
        with torch.cuda.device(self._device):
            before = torch.cuda.Event()
            before.record()
            stream.wait_event(before)
            with torch.cuda.stream(stream):
                for from_region, from_ids, to_region, to_ids in zip(
                    source.regions, source.block_ids, target.regions, target.block_ids, strict=True
                ):
                    self._copy_runs(self._rows(from_region), from_ids, self._rows(to_region), to_ids)
                ended.record(stream)
        return _Queued(ended)

    def close(self) -> None:
        """Wait for the copies that are queued, and give the memory back. Idempotent, bounded."""
        self.regions = ()
        deadline = time.monotonic() + CLOSE_TIMEOUT
        while not all(stream.query() for stream in self._streams.values()):
            if time.monotonic() > deadline:
                logger.error("the GPU has not ended copies of blocks within %g s: their memory stays", CLOSE_TIMEOUT)
                return
            time.sleep(0.001)
        if self._pinned:
            self._torch.cuda.cudart().cudaHostUnregister(self._pinned)
            self._pinned = 0
        self._memory = np.empty(0, dtype=np.uint8)

    def _pin(self, memory: NDArray[np.uint8]) -> None:
        code = self._torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)
        if int(code) != 0:
            raise ConfigError(f"cannot pin {memory.nbytes} bytes of shared memory: CUDA error {int(code)}")
        self._pinned = memory.ctypes.data

    def _rows(self, region: Region) -> Any:
        if region.host is not None:
            return self._torch.from_numpy(region.host[: region.nbytes]).view(region.num_blocks, region.page_bytes)
        return device_rows(region)

    @staticmethod
    def _copy_runs(from_rows: Any, from_ids: NDArray[np.int64], to_rows: Any, to_ids: NDArray[np.int64]) -> None:
        breaks = np.flatnonzero((np.diff(from_ids) != 1) | (np.diff(to_ids) != 1)) + 1
        starts = [0, *breaks.tolist()] if len(from_ids) else []
        for start, end in zip(starts, [*starts[1:], len(from_ids)], strict=True):
            begin, into, length = int(from_ids[start]), int(to_ids[start]), end - start
            to_rows[into : into + length].copy_(from_rows[begin : begin + length], non_blocking=True)


class _Queued(Move):
    """A copy on a stream. What is queued there cannot be taken back: an abort lets it end."""

    def __init__(self, ended: Any) -> None:
        self._ended = ended

    def step(self) -> MoveState:
        """Look whether it has ended."""
        try:
            return MoveState.DONE if self._ended.query() else MoveState.WAIT
        except RuntimeError as error:
            raise TransportError(f"CUDA failed while blocks were copied: {error}") from error

    def abort(self) -> None:
        """Do nothing: it ends by itself, soon."""
