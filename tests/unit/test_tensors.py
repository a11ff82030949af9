"""Tensors as bytes: described by the names that numpy and torch use, viewed without a copy, made from a description."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbridge.errors import KVBridgeError, SpecMismatchError, UnsupportedError
from kvbridge.memory import TensorSpec, spec_of
from kvbridge.memory.payload import check_destination
from kvbridge.memory.tensors import is_tensor, new_tensor, tensor_bytes

TORCH = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
TORCH += ["complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"]
NUMPY = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32"]
NUMPY += ["float64", "longdouble", "complex64", "complex128", "datetime64[s]", "timedelta64[ms]"]
SHAPES = [(), (0,), (5,), (2, 0, 3), (2, 3)]


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_tensor_made_from_a_description_has_that_description(library: str, shape: tuple[int, ...]) -> None:
    for dtype in NUMPY if library == "numpy" else TORCH:
        value = np.zeros(shape, dtype) if library == "numpy" else torch.zeros(shape, dtype=getattr(torch, dtype))
        spec = spec_of(value)
        itemsize = value.dtype.itemsize
        name = np.dtype(dtype).name if library == "numpy" else dtype
        assert spec == TensorSpec(name, shape, itemsize, library)
        assert spec.nbytes == itemsize * int(np.prod(shape)) == tensor_bytes(value).nbytes
        made = new_tensor(spec)
        assert type(made) is type(value)
        assert (made.dtype, tuple(made.shape)) == (value.dtype, shape)
        check_destination(spec, made)


def test_the_bytes_of_a_tensor_are_its_own_memory() -> None:
    for value in (np.zeros((2, 3), dtype=np.float32), torch.zeros(2, 3), np.zeros(()), torch.zeros(())):
        flat = tensor_bytes(value)
        assert (flat.dtype, flat.ndim) == (np.uint8, 1)
        flat[:] = 255
        assert np.isnan(np.asarray(value)).all()


def test_a_tensor_with_gradients_is_viewed_without_them() -> None:
    value = torch.ones(3, requires_grad=True)
    assert tensor_bytes(value).nbytes == 12


@pytest.mark.parametrize(
    "value",
    [np.zeros((3, 4)).T, np.zeros(8)[::2], torch.zeros(3, 4).T, torch.zeros(8)[::2], torch.eye(2).to_sparse()],
    ids=["numpy transposed", "numpy strided", "torch transposed", "torch strided", "torch sparse"],
)
def test_what_is_not_contiguous_is_refused_with_what_to_do(value: Any) -> None:
    with pytest.raises(SpecMismatchError, match="contiguous"):
        tensor_bytes(value)


def test_memory_that_is_not_the_hosts_is_refused_with_the_flag() -> None:
    with pytest.raises(UnsupportedError, match="meta") as found:
        tensor_bytes(torch.zeros(3, device="meta"))
    assert found.value.flag == "cuda"


@pytest.mark.parametrize("dtype", [">f4", ">i8", "O", [("a", "i4")], "<U5", "S5", "V8"])
def test_arrays_without_portable_bytes_are_refused_or_come_back_as_they_are(dtype: Any) -> None:
    value = np.zeros(3, dtype=dtype)
    made = None
    with contextlib.suppress(UnsupportedError):
        made = new_tensor(spec_of(value))
    assert made is None or made.dtype == value.dtype


def test_what_is_no_tensor_is_refused_by_its_type() -> None:
    for value in (None, 1, b"x", [1.0], memoryview(b"x"), np.float32(1), "text"):
        assert not is_tensor(value)
        with pytest.raises(SpecMismatchError, match=type(value).__name__):
            spec_of(value)


@pytest.mark.parametrize(
    ("value", "out"),
    [
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (np.zeros(6), np.zeros((2, 3))),
        (np.zeros(1), np.zeros(())),
        (np.zeros(3), np.zeros(3, dtype=np.float32)),
        (np.zeros(3, dtype=np.int64), np.zeros(3)),
        (torch.zeros(3, dtype=torch.bfloat16), torch.zeros(3, dtype=torch.float16)),
        (torch.zeros(3, dtype=torch.bool), torch.zeros(3, dtype=torch.uint8)),
    ],
)
def test_a_destination_of_another_shape_or_dtype_is_refused_with_both(value: Any, out: Any) -> None:
    with pytest.raises(SpecMismatchError) as found:
        check_destination(spec_of(value), out)
    assert spec_of(value).dtype in str(found.value)
    assert spec_of(out).dtype in str(found.value)


@pytest.mark.parametrize("dtype", ["object", "O", "f4,O"])
def test_memory_for_what_could_never_be_sent_is_not_even_allocated(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """numpy fills an array of objects, so a peer could fill this process's memory with a few bytes of description."""

    def refuse(*args: Any, **options: Any) -> Any:
        raise AssertionError("memory was allocated")

    monkeypatch.setattr(np, "empty", refuse)
    with pytest.raises(UnsupportedError):
        new_tensor(TensorSpec(dtype, (10,), 8, "numpy"))


SMALL = st.lists(st.integers(-3, 5) | st.sampled_from([2**62, 2**63, 2**70]), max_size=5).map(tuple)
SHAPE = SMALL | st.sampled_from([(1,) * 33, (1,) * 70, (0,) * 70])  # small: nothing here may fill the memory
DTYPES = [*NUMPY, *TORCH, "", "a", "object", "O", "nn", "float32 ", "f4,f4", "U9", "__name__", "dtype", "é", "\0"]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(DTYPES) | st.text(max_size=5), SHAPE, st.integers(-1, 16), st.sampled_from(["numpy", "torch"]))
def test_no_description_that_a_peer_sends_raises_anything_but_our_errors(
    dtype: str, shape: tuple[int, ...], itemsize: int, library: str
) -> None:
    spec = TensorSpec(dtype, shape, itemsize, library)
    try:
        made = new_tensor(spec)
        check_destination(spec, made)
    except KVBridgeError:
        return
    assert tuple(made.shape) == shape


def test_the_library_of_a_peer_is_numpy_or_torch_and_nothing_else_imports_torch() -> None:
    code = (
        "import sys\n"
        "from kvbridge.memory.tensors import *\n"
        "import numpy\n"
        "try: new_tensor(TensorSpec('float32', (3,), 4, 'jax'))\n"
        "except UnsupportedError as error: print(error)\n"
        "assert is_tensor(numpy.zeros(3)) and not is_tensor(object())\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "jax" in done.stdout
