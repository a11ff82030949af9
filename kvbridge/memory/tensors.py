"""Tensors as bytes: numpy arrays and torch tensors, without importing torch before the caller did."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from kvbridge.errors import CapacityError, SpecMismatchError, UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray


Extent = Annotated[int, Meta(ge=0, le=1 << 48)]


class TensorSpec(msgspec.Struct, frozen=True, tag="tensor"):
    """Shape and type of a tensor payload.

    Attributes:
        dtype: Name without a prefix, as torch and numpy spell it: `"float32"`, `"bfloat16"`, `"bool"`.
        shape: Extent of each axis; empty for a scalar.
        itemsize: Bytes of one element.
        library: `"torch"` or `"numpy"`: what `recv_tensor` makes when it allocates.
    """

    dtype: Annotated[str, Meta(max_length=64)]
    shape: Annotated[tuple[Extent, ...], Meta(max_length=64)]
    itemsize: Annotated[int, Meta(ge=1, le=1024)]
    library: Literal["numpy", "torch"]

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


def check_plain(tensor: Any, *, writable: bool = False) -> None:
    """Check that a tensor is one run of bytes that means what it says, and can be written to if it has to be.

    Raises:
        SpecMismatchError: It is not; the message says what to do.
    """
    if isinstance(tensor, np.ndarray):
        if not tensor.flags.c_contiguous:
            raise SpecMismatchError("the array is not contiguous: pass numpy.ascontiguousarray(it)")
        if writable and not tensor.flags.writeable:
            raise SpecMismatchError("the array is read-only: it cannot be a destination")
        return
    if not tensor.is_contiguous():
        raise SpecMismatchError("the tensor is not contiguous: pass tensor.contiguous()")
    if tensor.is_conj() or tensor.is_neg():
        raise SpecMismatchError("the tensor is a lazy conjugate or negative: pass tensor.resolve_conj().resolve_neg()")


def tensor_bytes(tensor: Any) -> NDArray[np.uint8]:
    """View a contiguous host tensor as its bytes, without a copy. The memory stays the tensor's.

    Raises:
        UnsupportedError: The tensor is not in host memory.
        SpecMismatchError: The tensor is not contiguous.
    """
    check_plain(tensor)
    if isinstance(tensor, np.ndarray):
        return tensor.reshape(-1).view(np.uint8)
    if tensor.device.type != "cpu":
        raise UnsupportedError(f"the tensor is on {tensor.device}, this backend moves host memory only", flag="cuda")
    torch = sys.modules["torch"]
    flat: NDArray[np.uint8] = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return flat


def new_tensor(spec: TensorSpec) -> Any:
    """Allocate a host tensor of a spec, in the sender's library.

    Raises:
        UnsupportedError: The sender's tensor is torch's and torch is not installed, or the dtype is unknown here.
        CapacityError: There is not so much memory.
    """
    try:
        tensor = _LIBRARIES[spec.library](spec)
    except KeyError:
        raise UnsupportedError(f"tensors of the library {spec.library!r} are unknown here", flag="tensors") from None
    except (ValueError, TypeError, MemoryError, RuntimeError, OverflowError) as error:
        why = str(error).partition("\n")[0][:200]
        raise CapacityError(f"cannot allocate {spec.nbytes} bytes for {spec.dtype}{list(spec.shape)}: {why}") from error
    if tensor_spec(tensor).itemsize != spec.itemsize:
        raise UnsupportedError(
            f"an element of {spec.dtype} has {spec.itemsize} bytes at the sender, other than here", flag="tensors"
        )
    return tensor


_NUMPY_NAMES = {np.dtype(code).name for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?"}
"""What a peer's name is looked up in: numpy itself takes many other spellings, deprecated ones too."""


def _empty_array(spec: TensorSpec) -> NDArray[Any]:
    if spec.dtype not in _NUMPY_NAMES and not spec.dtype.startswith(("datetime64[", "timedelta64[")):
        raise UnsupportedError(f"numpy has no plain dtype {spec.dtype!r} here", flag="tensors")
    try:
        dtype = np.dtype(spec.dtype)
    except TypeError as error:
        raise UnsupportedError(f"numpy has no dtype {spec.dtype!r} here", flag="tensors") from error
    if dtype.hasobject or dtype.itemsize != spec.itemsize:  # before so much memory is taken
        raise UnsupportedError(f"numpy's {dtype} is not what the sender means by {spec.dtype!r}", flag="tensors")
    return np.empty(spec.shape, dtype=dtype)


def _empty_tensor(spec: TensorSpec) -> Any:
    try:
        import torch  # noqa: PLC0415 - torch is a peer: loaded only for a sender's torch tensor
    except ImportError as error:
        raise UnsupportedError(
            "the sender sent a torch tensor and torch is not installed here: install torch, or pass `out`",
            flag="tensors",
        ) from error
    dtype = getattr(torch, spec.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise UnsupportedError(f"torch {torch.__version__} has no dtype {spec.dtype!r}", flag="tensors")
    return torch.empty(spec.shape, dtype=dtype)


_LIBRARIES = {"numpy": _empty_array, "torch": _empty_tensor}
