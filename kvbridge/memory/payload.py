"""What can be moved: a tensor or `Pages`, and the check of a destination against a value's spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from kvbridge.errors import CapacityError, SpecMismatchError, UnsupportedError
from kvbridge.memory.pages import Pages, PagesSpec
from kvbridge.memory.tensors import TensorSpec, check_plain, is_tensor, tensor_spec

if TYPE_CHECKING:
    from kvbridge.capabilities import Capabilities

Payload: TypeAlias = Any
"""A numpy array, a torch tensor, or `Pages`.

In GPU memory it is handed over when the GPU has done what was queued on it, not when that is queued: libraries read and
write it without asking any stream.
"""

Spec: TypeAlias = TensorSpec | PagesSpec


def spec_of(payload: Payload) -> Spec:
    """Describe a payload.

    Raises:
        SpecMismatchError: It is neither a tensor nor `Pages`.
    """
    if isinstance(payload, Pages):
        return payload.spec
    if is_tensor(payload):
        return tensor_spec(payload)
    raise SpecMismatchError(
        f"found {type(payload).__name__}, expected a numpy array, a torch tensor or kvbridge.memory.Pages"
    )


def check_claimed(payload: Payload, claimed: Capabilities) -> None:
    """Check that a backend claims to move payloads of this kind, where they are.

    Raises:
        UnsupportedError: It does not; the error names the flag.
    """
    flag = "pages" if isinstance(payload, Pages) else "tensors"
    if not getattr(claimed, flag):
        raise UnsupportedError(f"this backend does not claim `{flag}`: it cannot move them", flag=flag)
    device = str(getattr(payload, "device", "cpu"))
    if not device.startswith("cpu") and not claimed.cuda:
        raise UnsupportedError(f"the payload is on {device}, this backend moves host memory only", flag="cuda")


def check_source(payload: Payload, claimed: Capabilities) -> Spec:
    """Check that a payload can be sent with a backend that claims so much, and describe it.

    Raises:
        SpecMismatchError: It is neither a tensor nor `Pages`, or not contiguous.
        UnsupportedError: The backend does not claim to move its kind.
        CapacityError: It is larger than the backend takes.
    """
    spec = spec_of(payload)
    check_claimed(payload, claimed)
    if not isinstance(payload, Pages):
        check_plain(payload)
    if claimed.max_value_bytes and spec.nbytes > claimed.max_value_bytes:
        raise CapacityError(
            f"a value of {spec.nbytes} bytes is larger than the {claimed.max_value_bytes} bytes that this backend "
            "takes: see its options"
        )
    return spec


def check_destination(value: Spec, out: Payload, skip: int = 0) -> None:
    """Check that `out` can take a value of this spec, less its first `skip` blocks in every region.

    Raises:
        SpecMismatchError: It cannot; the message has both specs.
    """
    found = spec_of(out)
    if isinstance(value, PagesSpec) and isinstance(found, PagesSpec):
        expected = PagesSpec(value.page_bytes, tuple(count - skip for count in value.counts))
        if skip < 0 or found != expected:
            raise SpecMismatchError(
                f"the destination has {_pages(found)}, the value has {_pages(value)} of which the first {skip} "
                "blocks are skipped"
            )
        return
    if skip:
        raise SpecMismatchError("skip counts blocks of Pages: a tensor has none")
    same = (
        isinstance(value, TensorSpec)
        and isinstance(found, TensorSpec)
        and (value.dtype, value.shape) == (found.dtype, found.shape)
    )
    if not same:
        raise SpecMismatchError(f"the destination is {_short(found)}, the value is {_short(value)}")
    check_plain(out, writable=True)


def _pages(spec: PagesSpec) -> str:
    counts = sorted(set(spec.counts))
    sizes = sorted(set(spec.page_bytes))
    return f"{len(spec.counts)} regions of {counts} blocks of {sizes} bytes"


def _short(spec: Spec) -> str:
    return _pages(spec) if isinstance(spec, PagesSpec) else f"{spec.dtype}{list(spec.shape)}"
