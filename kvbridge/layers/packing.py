"""`Packing`: copies a payload into packed memory or out of it, slice by slice, on the endpoint's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbridge.errors import KVBridgeError, SpecMismatchError
from kvbridge.memory.copying import slices
from kvbridge.memory.cuda import device_slices
from kvbridge.memory.pages import Pages, PagesSpec
from kvbridge.memory.region import Region
from kvbridge.transfer import Transfer, cancelled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kvbridge.control.endpoint import Endpoint
    from kvbridge.memory import Payload, Spec
    from kvbridge.memory.copying import Slice
    from kvbridge.memory.cuda import DeviceSlice

SLICE = 2 << 20
"""Bytes that are copied between two looks at the sockets."""


class Packing:
    """One copy. Its transfer finishes when no memory is touched any more.

    Args:
        endpoint: Whose thread copies.
        packed: The packed bytes.
        payload: Host memory, or pages in GPU memory. Without `into`, what a consumer left out of a value is not
            written.
        what: What it does, for messages.
        skip: First blocks of every region that the packed value has and the payload has not.
        into: Whether the payload is copied into the packed bytes, or they into it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        packed: NDArray[np.uint8],
        payload: Payload,
        *,
        what: str,
        into: bool,
        skip: int = 0,
    ) -> None:
        self.transfer: Transfer[None] = Transfer(what, self._cancel)
        self._endpoint = endpoint
        self._packed = packed
        self._into = into
        self._unwanted = False
        on_host = not isinstance(payload, Pages) or payload.device == "cpu"
        self._slices: Iterator[Slice | DeviceSlice] = (
            slices(payload, SLICE, skip) if on_host else device_slices(payload, SLICE, skip)
        )

    def start(self) -> None:
        """Begin. Any thread."""
        try:
            self._endpoint.call_now(self._begin)
        except KVBridgeError as error:
            self.transfer.fail(error)

    def stop(self, error: KVBridgeError) -> None:
        """End, unless it has. For the endpoint's thread, between two slices."""
        self.transfer.fail(error)

    def _begin(self) -> None:
        if self._step() is not None:
            self._endpoint.move(self._step)

    def _cancel(self) -> None:
        self._unwanted = True  # the next slice is not made

    def _step(self) -> bool | None:
        if self.transfer.poll():  # it was stopped
            return None
        if self._unwanted:
            self.transfer.fail(cancelled(self.transfer.what))
            return None
        try:
            part = next(self._slices, None)
            if part is not None:
                (part.gather if self._into else part.scatter)(self._packed)
                return True
        except KVBridgeError as error:
            self.transfer.fail(error)
            return None
        self.transfer.resolve(None)
        return None


def packed_pages(memory: NDArray[np.uint8], spec: Spec) -> Pages:
    """Lay a value out in memory as it is packed: region after region, block after block.

    Raises:
        SpecMismatchError: It is no pages, or larger than the memory.
    """
    if not isinstance(spec, PagesSpec) or spec.nbytes > memory.nbytes or 0 in spec.counts:
        raise SpecMismatchError(f"found {spec}, expected pages of {memory.nbytes} bytes at most")
    regions: list[Region] = []
    start = 0
    for size, count in zip(spec.page_bytes, spec.counts, strict=True):
        regions.append(Region.over(memory[start : start + size * count], size))
        start += size * count
    return Pages(tuple(regions), tuple(np.arange(count, dtype=np.int64) for count in spec.counts))
