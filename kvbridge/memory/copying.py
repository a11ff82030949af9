"""Gather a payload into packed bytes, scatter it back, and copy pages to pages, in bounded steps, at memory speed.

Rows of 8-byte words and `numpy.take(..., mode="clip")` are what copies scattered pages fastest on a CPU: the default
mode of `take` buffers its output, and byte-wise operators are ten times slower. The ids were checked when the
`Pages` were made, so clipping never happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from kvbridge.memory.pages import Pages
from kvbridge.memory.tensors import tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from kvbridge.memory.payload import Payload
    from kvbridge.memory.region import Region


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
    rows = {region.identity: region.rows() for region in payload.regions}
    for region, start, ids in page_slices(payload, max_bytes, skip):
        yield Slice(start, len(ids) * region.page_bytes, rows=rows[region.identity], ids=ids)


def page_slices(pages: Pages, max_bytes: int, skip: int = 0) -> Iterator[tuple[Region, int, NDArray[np.int64]]]:
    """Cut pages as `slices` does, wherever they are: the region, the offset in the packed value and the block ids."""
    start = 0
    for region, ids in zip(pages.regions, pages.block_ids, strict=True):
        start += skip * region.page_bytes
        count = max(1, max_bytes // region.page_bytes)
        for first in range(0, len(ids), count):
            part = ids[first : first + count]
            yield region, start, part
            start += len(part) * region.page_bytes


def copies(source: Pages, target: Pages, max_bytes: int) -> Iterator[Callable[[], None]]:
    """Cut a copy from pages to pages into steps of at most `max_bytes` (at least one page).

    The pages of a step are copied in the order in which most of them adjoin on one side, a run by one call of numpy: it
    takes most of the time off small pages, and lets go of the interpreter's lock once a run.

    Args:
        source: Host pages.
        target: Host pages, as many and of the same sizes; none twice.
        max_bytes: Largest step in bytes.

    Yields:
        Calls, each of which makes one step.
    """
    for from_region, from_ids, to_region, to_ids in zip(
        source.regions, source.block_ids, target.regions, target.block_ids, strict=True
    ):
        from_rows, to_rows = from_region.rows(), to_region.rows()
        if from_rows.dtype != to_rows.dtype:  # one of the strides is no number of words
            from_rows, to_rows = from_rows.view(np.uint8), to_rows.view(np.uint8)
        count = max(1, max_bytes // from_region.page_bytes)
        for first in range(0, len(from_ids), count):
            part = slice(first, first + count)
            yield partial(_copy_rows, from_rows, from_ids[part], to_rows, to_ids[part])


def _copy_rows(
    from_rows: NDArray[np.void | np.int64],
    from_ids: NDArray[np.int64],
    to_rows: NDArray[np.void | np.int64],
    to_ids: NDArray[np.int64],
) -> None:
    by_source, source_runs = _runs(from_ids)
    by_target, target_runs = _runs(to_ids)
    gathers = len(target_runs) <= len(source_runs)
    if not (from_rows.flags.c_contiguous and to_rows.flags.c_contiguous):
        gathers = False  # take would first copy a strided region as a whole
    order, runs = (by_target, target_runs) if gathers else (by_source, source_runs)
    from_ids, to_ids = from_ids[order], to_ids[order]
    begins, intos = from_ids.tolist(), to_ids.tolist()
    from_items, to_items = _items(from_rows), _items(to_rows)
    for start, end in runs:
        begin, into, length = begins[start], intos[start], end - start
        if length == 1:
            to_rows[into] = from_rows[begin]
        elif gathers:
            from_rows.take(from_ids[start:end], axis=0, out=to_rows[into : into + length], mode="clip")
        else:
            to_items[to_ids[start:end]] = from_items[begin : begin + length]


def _items(rows: NDArray[np.void | np.int64]) -> NDArray[np.void]:
    """View rows as one item each: numpy scatters items faster than rows."""
    return rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize)))[:, 0]


def _runs(ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
    """Return an order of ids in which adjacent ones follow each other, and the bounds of the runs in it."""
    order = np.argsort(ids, kind="stable")
    breaks = (np.flatnonzero(np.diff(ids[order]) != 1) + 1).tolist()
    return order, list(zip([0, *breaks], [*breaks, len(ids)], strict=True))


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
