"""What can be moved: a tensor or `Pages`, and the check of a destination against a value's spec."""

from __future__ import annotations

from typing import Any, TypeAlias

from kvbridge.errors import SpecMismatchError
from kvbridge.memory.pages import Pages, PagesSpec
from kvbridge.memory.tensors import TensorSpec, check_plain, is_tensor, tensor_spec

Payload: TypeAlias = Any
"""A numpy array, a torch tensor, or `Pages`."""

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
