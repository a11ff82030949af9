"""`Region`: a run of memory cut into equal pages, which a backend registers once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvbridge.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

WORD = 8
"""Pages are viewed as 8-byte words where their size allows: copying single bytes is ten times slower."""


@dataclass(frozen=True, eq=False)
class Region:
    """`num_blocks` pages of `page_bytes` bytes, `block_stride` bytes apart, from `address` on.

    The page of block `b` is the bytes `[address + b * block_stride, address + b * block_stride + page_bytes)`.

    Args:
        address: Address of block 0's page in this process.
        page_bytes: Bytes of one page.
        block_stride: Bytes from one block's page to the next one's; at least `page_bytes`.
        num_blocks: Number of blocks.
        first_block: The lowest block id that may be moved: 1 where block 0 is an engine's null block.
        device: `"cpu"` or `"cuda:N"`.
        host: The region's bytes from `address` on, for host memory. It keeps the memory alive; the region does not
            own it.

    Raises:
        ConfigError: The numbers contradict each other.
    """

    address: int
    page_bytes: int
    block_stride: int
    num_blocks: int
    first_block: int = 0
    device: str = "cpu"
    host: NDArray[np.uint8] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.page_bytes <= 0 or self.num_blocks <= 0 or self.block_stride < self.page_bytes:
            raise ConfigError(
                f"a region needs pages of at least one byte and a stride that covers them; found page_bytes="
                f"{self.page_bytes}, block_stride={self.block_stride}, num_blocks={self.num_blocks}"
            )
        if self.host is not None and self.host.nbytes < self.nbytes:
            raise ConfigError(f"the region spans {self.nbytes} bytes but the memory given has {self.host.nbytes} bytes")

    @property
    def nbytes(self) -> int:
        """Bytes from the first page's start to the last page's end."""
        return (self.num_blocks - 1) * self.block_stride + self.page_bytes

    @property
    def identity(self) -> tuple[int, int, int, int]:
        """What makes two regions the same memory: regions that alias are registered once."""
        return (self.address, self.page_bytes, self.block_stride, self.num_blocks)

    def rows(self) -> NDArray[np.void | np.int64]:
        """View the pages as one row of words each, shape `(num_blocks, page_bytes / word)`. Host memory only.

        Raises:
            ConfigError: The region is not in host memory.
        """
        if self.host is None:
            raise ConfigError(f"the region at {self.address:#x} is on {self.device}: it has no host view")
        flat = self.host[: self.nbytes]
        word = WORD if self.page_bytes % WORD == 0 and self.block_stride % WORD == 0 else 1
        dtype = np.dtype(np.int64) if word == WORD else np.dtype(np.uint8)
        items = self.page_bytes // word
        if self.block_stride == self.page_bytes:
            return flat.view(dtype).reshape(self.num_blocks, items)
        return np.lib.stride_tricks.as_strided(
            flat[: flat.nbytes // word * word].view(dtype),
            shape=(self.num_blocks, items),
            strides=(self.block_stride, word),
        )

    @classmethod
    def over(cls, memory: NDArray[np.uint8], page_bytes: int, *, first_block: int = 0) -> Region:
        """Make a region of adjacent pages over a host array of bytes, which stays yours.

        Args:
            memory: Contiguous uint8 array; its size is a multiple of `page_bytes`.
            page_bytes: Bytes of one page.
            first_block: The lowest block id that may be moved.
        """
        if page_bytes <= 0 or memory.dtype != np.uint8 or not memory.flags.c_contiguous or memory.nbytes % page_bytes:
            raise ConfigError(
                f"a region needs a contiguous uint8 array of whole pages of {page_bytes} bytes; found "
                f"{memory.dtype} of {memory.nbytes} bytes"
            )
        return cls(
            address=memory.ctypes.data,
            page_bytes=page_bytes,
            block_stride=page_bytes,
            num_blocks=memory.nbytes // page_bytes,
            first_block=first_block,
            host=memory.reshape(-1),
        )
