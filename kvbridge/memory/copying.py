"""Gather a payload into packed bytes and scatter it back, in bounded slices, at memory speed.

Rows of 8-byte words and `numpy.take(..., mode="clip")` are what copies scattered pages fastest on a CPU: the default
mode of `take` buffers its output, and byte-wise operators are ten times slower. The ids were checked when the
`Pages` were made, so clipping never happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvbridge.memory.pages import Pages
from kvbridge.memory.tensors import tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kvbridge.memory.payload import Payload


@dataclass(frozen=True)
class Slice:
    """One bounded step of a copy: packed bytes `[start, start + nbytes)` of the value; rows and ids, or flat.

    Attributes:
        start: Offset in the packed value, in bytes.
        nbytes: Bytes of this slice.
        rows: The region's rows, or None for a tensor.
        ids: Block ids of the rows, or None for a tensor.
        flat: The tensor's bytes of this slice, or None for pages.
    """

    start: int
    nbytes: int
    rows: NDArray[np.void | np.int64] | None = None
    ids: NDArray[np.int64] | None = None
    flat: NDArray[np.uint8] | None = None

    def gather(self, packed: NDArray[np.uint8]) -> None:
        """Copy this slice from the payload into the packed value."""
        target = packed[self.start : self.start + self.nbytes]
        if self.flat is not None:
            target[:] = self.flat
            return
        if self.rows is None or self.ids is None:
            return
        _gather_rows(self.rows, self.ids, target.view(self.rows.dtype).reshape(len(self.ids), -1))

    def scatter(self, packed: NDArray[np.uint8]) -> None:
        """Copy this slice from the packed value into the payload."""
        source = packed[self.start : self.start + self.nbytes]
        if self.flat is not None:
            self.flat[:] = source
            return
        if self.rows is None or self.ids is None:
            return
        _scatter_rows(self.rows, self.ids, source.view(self.rows.dtype).reshape(len(self.ids), -1))


def slices(payload: Payload, max_bytes: int, skip: int = 0) -> Iterator[Slice]:
    """Cut a payload into slices of at most `max_bytes` (at least one page), in packed order.

    Args:
        payload: A contiguous host tensor or host `Pages`.
        max_bytes: Largest slice in bytes.
        skip: Blocks of every region that the packed value has in front of the payload's own.
    """
    if not isinstance(payload, Pages):
        flat = tensor_bytes(payload)
        for start in range(0, flat.nbytes, max_bytes):
            part = flat[start : start + max_bytes]
            yield Slice(start, part.nbytes, flat=part)
        return
    start = 0
    for region, ids in zip(payload.regions, payload.block_ids, strict=True):
        start += skip * region.page_bytes
        rows = region.rows()
        count = max(1, max_bytes // region.page_bytes)
        for first in range(0, len(ids), count):
            part_ids = ids[first : first + count]
            nbytes = len(part_ids) * region.page_bytes
            yield Slice(start, nbytes, rows=rows, ids=part_ids)
            start += nbytes


def _gather_rows(
    rows: NDArray[np.void | np.int64], ids: NDArray[np.int64], target: NDArray[np.void | np.int64]
) -> None:
    run = _run(ids)
    if run is not None:
        target[:] = rows[run]
    elif rows.flags.c_contiguous:
        np.take(rows, ids, axis=0, out=target, mode="clip")
    else:  # take would first copy a strided region as a whole
        for index, block in enumerate(ids.tolist()):
            target[index] = rows[block]


def _scatter_rows(
    rows: NDArray[np.void | np.int64], ids: NDArray[np.int64], source: NDArray[np.void | np.int64]
) -> None:
    run = _run(ids)
    rows[ids if run is None else run] = source


def _run(ids: NDArray[np.int64]) -> slice | None:
    """Adjacent ascending ids as one slice: one plain copy."""
    first, last = int(ids[0]), int(ids[-1])
    if last - first + 1 == len(ids) and (len(ids) == 1 or bool((np.diff(ids) == 1).all())):
        return slice(first, last + 1)
    return None
