"""`Staging`: memory that chunks are sent from and received into.

Only this memory is ever given to the library. So nobody has to wait for the library to let go of a cache's pages: what
comes too late lands here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvbridge.errors import CapacityError
from kvbridge_nccl import library

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Staging:
    """One buffer in host memory, and one on a GPU where that is needed.

    Args:
        nbytes: Its size; it grows when a single page is larger.
    """

    def __init__(self, nbytes: int) -> None:
        self._tensor = _host(nbytes)
        self._device: Any = None

    @property
    def nbytes(self) -> int:
        """Bytes that fit."""
        return int(self._tensor.numel())

    @property
    def host(self) -> NDArray[np.uint8]:
        """The host memory."""
        found: NDArray[np.uint8] = self._tensor.numpy()
        return found

    def fit(self, nbytes: int) -> None:
        """Make room for so many bytes. What was in it is lost.

        Raises:
            CapacityError: There is not so much memory.
        """
        if nbytes > self.nbytes:
            self._tensor = _host(nbytes)
            self._device = None

    def view(self, nbytes: int, device: str = "cpu") -> Any:
        """Return the first bytes of the buffer on a device, as the library takes them."""
        if device == "cpu":
            return self._tensor[:nbytes]
        if self._device is None or str(self._device.device) != device:
            torch = library.load()
            self._device = torch.empty(self.nbytes, dtype=torch.uint8, device=device)
        return self._device[:nbytes]

    def to_host(self, nbytes: int, device: str) -> None:
        """Copy the first bytes from a GPU's buffer to the host's, and wait for that."""
        self.view(nbytes).copy_(self.view(nbytes, device))

    def from_host(self, nbytes: int, device: str) -> None:
        """Copy the first bytes from the host's buffer to a GPU's, and wait for that."""
        self.view(nbytes, device).copy_(self.view(nbytes))


def _host(nbytes: int) -> Any:
    torch = library.load()
    try:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
    except RuntimeError as error:
        raise CapacityError(f"there are no {nbytes} bytes of memory for a chunk: {error}") from error
