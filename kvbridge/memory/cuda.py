"""GPU memory as torch takes it, and copies between it and packed host memory. Not yet run on a GPU."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvbridge.errors import TransportError, UnsupportedError
from kvbridge.memory.copying import page_slices

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from kvbridge.memory.pages import Pages
    from kvbridge.memory.region import Region


def device_rows(region: Region) -> Any:
    """View a region in GPU memory as a torch tensor of bytes, shape `(num_blocks, page_bytes)`, without a copy."""
    import torch  # noqa: PLC0415 - a peer: needed only where KV is on a GPU

    return torch.as_tensor(_DeviceRows(region), device=region.device)


class _DeviceRows:
    """A region by the CUDA array interface."""

    def __init__(self, region: Region) -> None:
        self.__cuda_array_interface__ = {
            "shape": (region.num_blocks, region.page_bytes),
            "strides": (region.block_stride, 1),
            "typestr": "|u1",
            "data": (region.address, False),
            "version": 3,
        }


@dataclass(frozen=True)
class DeviceSlice:
    """One bounded step of a copy between a region in GPU memory and packed bytes in host memory.

    It waits until it is done, and for nothing before it: see `own_stream`. See also `kvbridge.memory.copying.Slice`.

    Attributes:
        start: Offset in the packed value, in bytes.
        nbytes: Bytes of this slice.
        rows: The region's pages, as `device_rows` returns them.
        ids: Block ids of the rows.
    """

    start: int
    nbytes: int
    rows: Any
    ids: NDArray[np.int64]

    def gather(self, packed: NDArray[np.uint8]) -> None:
        """Copy this slice from the payload into the packed value."""
        with own_stream(self.rows.device):
            host, ids = self._views(packed)
            host.copy_(self.rows.index_select(0, ids))

    def scatter(self, packed: NDArray[np.uint8]) -> None:
        """Copy this slice from the packed value into the payload."""
        with own_stream(self.rows.device):
            host, ids = self._views(packed)
            self.rows.index_copy_(0, ids, host.to(self.rows.device))

    def _views(self, packed: NDArray[np.uint8]) -> tuple[Any, Any]:
        import torch  # noqa: PLC0415 - likewise

        host = torch.from_numpy(packed[self.start : self.start + self.nbytes]).view(len(self.ids), -1)
        return host, torch.from_numpy(self.ids.copy()).to(self.rows.device)


def device_slices(pages: Pages, max_bytes: int, skip: int = 0) -> Iterator[DeviceSlice]:
    """Cut pages in GPU memory into slices of at most `max_bytes` (at least one page), in packed order.

    Args:
        pages: Pages of regions that are all on GPUs.
        max_bytes: Largest slice in bytes.
        skip: Blocks of every region that the packed value has in front of the payload's own.

    Raises:
        UnsupportedError: Some of the pages are in host memory.
    """
    if any(region.device == "cpu" for region in pages.regions):
        raise UnsupportedError("some pages of the value are on a device, others are not", flag="cuda")
    rows = {region.identity: device_rows(region) for region in pages.regions}
    for region, start, ids in page_slices(pages, max_bytes, skip):
        yield DeviceSlice(start, len(ids) * region.page_bytes, rows[region.identity], ids)


def is_cuda(payload: Any) -> bool:
    """Whether a tensor, or `Pages`, are in GPU memory."""
    return str(getattr(payload, "device", "cpu")).startswith("cuda")


def settle(payload: Any) -> None:
    """Wait for what the calling thread has queued on the GPU of a payload; with host memory there is nothing."""
    if is_cuda(payload):
        import torch  # noqa: PLC0415 - likewise

        torch.cuda.current_stream(payload.device).synchronize()


class Mark:
    """A place in the queue of a GPU's work: behind all that the calling thread has queued on its stream by now.

    Args:
        device: The GPU, such as `cuda:0`.
    """

    def __init__(self, device: str) -> None:
        import torch  # noqa: PLC0415 - likewise

        self._device = device
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(device))

    def passed(self) -> bool:
        """Whether all work before it is done. Any thread. Never blocks.

        Raises:
            TransportError: The GPU has failed.
        """
        try:
            return bool(self._event.query())
        except RuntimeError as error:
            raise TransportError(f"{self._device} has failed: {error}") from error


@contextlib.contextmanager
def own_stream(device: Any) -> Iterator[None]:
    """Work on a GPU's stream of its own; it is done when this ends.

    It does not wait for what others have queued: what it reads has to be there, and nobody may use what it writes to.
    """
    if not str(device).startswith("cuda"):
        yield
        return
    import torch  # noqa: PLC0415 - likewise

    with torch.cuda.device(device):
        stream = torch.cuda.Stream(device=device)
        with torch.cuda.stream(stream):
            yield
        stream.synchronize()
