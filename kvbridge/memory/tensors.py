"""Tensors as bytes: numpy arrays and torch tensors, without importing torch before the caller did."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from kvbridge.errors import SpecMismatchError, UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class TensorSpec(msgspec.Struct, frozen=True, tag="tensor"):
    """Shape and type of a tensor payload.

    Attributes:
        dtype: Name without a prefix, as torch and numpy spell it: `"float32"`, `"bfloat16"`, `"bool"`.
        shape: Extent of each axis; empty for a scalar.
        itemsize: Bytes of one element.
        library: `"torch"` or `"numpy"`: what `recv_tensor` makes when it allocates.
    """

    dtype: str
    shape: tuple[int, ...]
    itemsize: int
    library: str

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        count = self.itemsize
        for extent in self.shape:
            count *= extent
        return count


def is_tensor(value: object) -> bool:
    """Whether `value` is a numpy array or a torch tensor."""
    torch = sys.modules.get("torch")
    return isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor))


def tensor_spec(tensor: Any) -> TensorSpec:
    """Describe a numpy array or torch tensor."""
    if isinstance(tensor, np.ndarray):
        if tensor.dtype.hasobject or tensor.dtype.names is not None or not tensor.dtype.isnative:
            raise UnsupportedError(
                f"a numpy array of dtype {tensor.dtype} has no portable bytes: send a numeric or bool array in the "
                "machine's own byte order",
                flag="tensors",
            )
        return TensorSpec(tensor.dtype.name, tuple(tensor.shape), tensor.dtype.itemsize, "numpy")
    name = str(tensor.dtype).removeprefix("torch.")
    return TensorSpec(name, tuple(tensor.shape), tensor.element_size(), "torch")


def tensor_bytes(tensor: Any) -> NDArray[np.uint8]:
    """View a contiguous host tensor as its bytes, without a copy. The memory stays the tensor's.

    Raises:
        UnsupportedError: The tensor is not in host memory.
        SpecMismatchError: The tensor is not contiguous.
    """
    if isinstance(tensor, np.ndarray):
        if not tensor.flags.c_contiguous:
            raise SpecMismatchError("the array is not contiguous: pass numpy.ascontiguousarray(it)")
        return tensor.reshape(-1).view(np.uint8)
    if tensor.device.type != "cpu":
        raise UnsupportedError(f"the tensor is on {tensor.device}, this backend moves host memory only", flag="cuda")
    if not tensor.is_contiguous():
        raise SpecMismatchError("the tensor is not contiguous: pass tensor.contiguous()")
    if tensor.is_conj() or tensor.is_neg():
        raise SpecMismatchError("the tensor is a lazy conjugate or negative: pass tensor.resolve_conj().resolve_neg()")
    torch = sys.modules["torch"]
    flat: NDArray[np.uint8] = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return flat


def new_tensor(spec: TensorSpec) -> Any:
    """Allocate a host tensor of a spec, in the sender's library.

    Raises:
        UnsupportedError: The sender's tensor is torch's and torch is not installed, or the dtype is unknown here.
    """
    if spec.library == "numpy":
        try:
            return np.empty(spec.shape, dtype=np.dtype(spec.dtype))
        except TypeError as error:
            raise UnsupportedError(f"numpy has no dtype {spec.dtype!r} here", flag="tensors") from error
    try:
        import torch  # noqa: PLC0415 - torch is a peer: loaded only for a sender's torch tensor
    except ImportError as error:
        raise UnsupportedError(
            "the sender sent a torch tensor and torch is not installed here: install torch, or pass `out`",
            flag="tensors",
        ) from error
    dtype = getattr(torch, spec.dtype, None)
    if dtype is None:
        raise UnsupportedError(f"torch {torch.__version__} has no dtype {spec.dtype!r}", flag="tensors")
    return torch.empty(spec.shape, dtype=dtype)
