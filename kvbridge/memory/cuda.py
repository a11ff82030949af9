"""GPU memory as torch takes it. Not yet run on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
