"""Changing and copying payloads in host memory: tensors and `Pages` alike."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvbridge.errors import KVBridgeError, UnsupportedError
from kvbridge.memory import Pages, PagesSpec, Payload, Region, Spec, spec_of
from kvbridge.memory.copying import slices
from kvbridge.memory.tensors import new_tensor
from kvbridge.transfer import Transfer

if TYPE_CHECKING:
    from kvbridge.layers.faulty.plan import Event

SLICE_BYTES = 1 << 20

CUT = 4
"""A truncated payload lacks its last quarter."""

FLIPPED = 0xFF


def spoil(payload: Payload, event: Event) -> None:
    """Do to a payload what strikes an event: "truncate" makes its end zeros, "corrupt" changes one byte.

    Raises:
        UnsupportedError: The payload is not in host memory.
    """
    nbytes = spec_of(payload).nbytes
    if event.struck("truncate") and nbytes:
        _edit(payload, nbytes - max(1, nbytes // CUT), nbytes, 0)
    if event.struck("corrupt") and nbytes:
        first = event.position(nbytes)
        _edit(payload, first, first + 1, None)


def _edit(payload: Payload, first: int, last: int, value: int | None) -> None:
    """Set the bytes `[first, last)` of the packed payload to a value, or flip them where there is none."""
    if isinstance(payload, Pages) and payload.device != "cpu":
        raise UnsupportedError(f"pages on {payload.device} cannot be changed here: host memory only", flag="cuda")
    for part in slices(payload, SLICE_BYTES):
        low, high = max(first - part.start, 0), min(last - part.start, part.nbytes)
        if low >= high:
            continue
        here = replace(part, start=0)
        packed = np.empty(part.nbytes, dtype=np.uint8)
        here.gather(packed)
        packed[low:high] = packed[low:high] ^ FLIPPED if value is None else value
        here.scatter(packed)


def scratch(spec: Spec) -> Payload:
    """Allocate a payload of a spec. Its pages lie in memory that no backend was told of."""
    if not isinstance(spec, PagesSpec):
        return new_tensor(spec)
    regions = tuple(
        Region.over(np.zeros(size * max(1, count), dtype=np.uint8), size)
        for size, count in zip(spec.page_bytes, spec.counts, strict=True)
    )
    return Pages(regions, tuple(np.arange(count, dtype=np.int64) for count in spec.counts))


def copy_of(payload: Payload) -> Payload:
    """Copy a payload into memory of its own."""
    copied = scratch(spec_of(payload))
    fill_from(copied, payload)
    return copied


def fill_from(out: Payload, source: Payload, skip: int = 0) -> None:
    """Copy a payload into another one of its shape, less its first `skip` blocks in every region."""
    packed = np.empty(spec_of(source).nbytes, dtype=np.uint8)
    for part in slices(source, SLICE_BYTES):
        part.gather(packed)
    for part in slices(out, SLICE_BYTES, skip):
        part.scatter(packed)


def spoil_when_filled(fill: Transfer[None], out: Payload, event: Event) -> Transfer[None]:
    """Spoil a destination after it was filled and before its owner hears of it."""
    transfer: Transfer[None] = Transfer(fill.what, fill.cancel)

    def filled(done: Transfer[None]) -> None:
        try:
            if done.error is None:
                spoil(out, event)
        except KVBridgeError as error:
            transfer.fail(error)
        done.hand_on(transfer)

    fill.on_done(filled)
    return transfer
