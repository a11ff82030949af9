"""`Staging`: memory that messages are sent from and received into: a header of 32 bytes, and a chunk.

Only this memory is ever given to the library. So nobody has to wait for the library to let go of a cache's pages: what
comes too late lands here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvbridge.errors import CapacityError, ProtocolError
from kvbridge_nccl import library

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEADER = 32
"""Bytes of a header."""

MARK = 0x6B76627269646765
"""First word of a header."""


class Header(NamedTuple):
    """What a message is.

    Attributes:
        number: Of the transfer.
        nbytes: Of the chunk.
        last: Whether it is the value's last chunk.
        nccl: Whether the chunk comes over NCCL, after the message.
    """

    number: int
    nbytes: int
    last: bool
    nccl: bool


class Staging:
    """One buffer in host memory, and one on a GPU where that is needed.

    Args:
        chunk: Bytes of the largest chunk.

    Raises:
        CapacityError: There is not so much memory.
    """

    def __init__(self, chunk: int) -> None:
        self._chunk = chunk
        self._tensor = _host(HEADER + chunk)
        memory: NDArray[np.uint8] = self._tensor.numpy()
        self._head = memory[:HEADER].view(np.int64)
        self.host = memory[HEADER:]
        self._device: Any = None

    def message(self, nbytes: int) -> Any:
        """Return the header and the first bytes of the chunk, as the library takes them."""
        return self._tensor[: HEADER + nbytes]

    def whole(self) -> Any:
        """Return all of it: what comes may be shorter."""
        return self._tensor

    def write(self, header: Header) -> None:
        """Write a header."""
        self._head[:] = (MARK, header.number, header.nbytes, 2 * header.nccl + header.last)

    def read(self) -> Header:
        """Read the header of what came.

        Raises:
            ProtocolError: It makes no sense.
        """
        mark, number, nbytes, flags = self._head.tolist()
        if mark != MARK or number < 0 or not 0 <= nbytes <= self._chunk or flags not in range(4):
            raise ProtocolError(
                f"the producer announced {nbytes} bytes with the flags {flags}, at most {self._chunk} were to come"
            )
        return Header(number, nbytes, bool(flags & 1), bool(flags & 2))

    def on(self, device: str, nbytes: int) -> Any:
        """Return the first bytes of the buffer on a GPU."""
        if self._device is None or str(self._device.device) != device:
            torch = library.load()
            self._device = torch.empty(self._chunk, dtype=torch.uint8, device=device)
        return self._device[:nbytes]

    def to_host(self, nbytes: int, device: str) -> None:
        """Copy the first bytes from a GPU's buffer to the host's, and wait for that."""
        self._tensor[HEADER : HEADER + nbytes].copy_(self.on(device, nbytes))

    def from_host(self, nbytes: int, device: str) -> None:
        """Copy the first bytes from the host's buffer to a GPU's, and wait for that."""
        self.on(device, nbytes).copy_(self._tensor[HEADER : HEADER + nbytes])


def _host(nbytes: int) -> Any:
    torch = library.load()
    try:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
    except RuntimeError as error:
        raise CapacityError(f"there are no {nbytes} bytes of memory for a chunk: {error}") from error
