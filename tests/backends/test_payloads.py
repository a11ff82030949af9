"""Every payload is delivered equal, or refused with a reason before anything moves; both ends go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from kvbridge.abc import Key
from kvbridge.errors import KVBridgeError, SpecMismatchError, UnsupportedError

if TYPE_CHECKING:
    from kvbridge.abc import RecvPipe, SendPipe
    from tests.nodes import Node

NUMPY = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
NUMPY += ["float16", "float32", "float64", "longdouble", "complex64", "complex128", "datetime64[ms]", "timedelta64[ns]"]
TORCH = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64"]
TORCH += ["float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"]
SHAPES = [(), (0,), (1,), (7,), (3, 0, 5), (2, 3, 5)]


@pytest.fixture
def ends(pair: tuple[Node, Node]) -> tuple[SendPipe, RecvPipe]:
    sender, receiver = pair
    receiver.connect(sender.endpoint.address)
    receiver.open_pipe("c", "recv")
    sender.open_pipe("c", "send")
    return sender.pipes["c"], receiver.pipes["c"]


def raw(tensor: Any) -> bytes:
    if isinstance(tensor, np.ndarray):
        return tensor.tobytes()
    if 0 in tensor.shape:
        return b""
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def made(dtype: str, shape: tuple[int, ...], *, of_torch: bool) -> Any:
    """A tensor of random bits, so that nothing is right by chance; bools are 0 and 1."""
    if not of_torch:
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        bits = np.random.default_rng(count).integers(0, 2 if dtype == "bool" else 256, count, dtype=np.uint8)
        return bits.view(dtype).reshape(shape)
    kind = getattr(torch, dtype)
    if 0 in shape:
        return torch.empty(shape, dtype=kind)
    count = int(np.prod(shape)) * torch.empty((), dtype=kind).element_size()
    bits = torch.from_numpy(np.random.default_rng(count).integers(0, 2 if dtype == "bool" else 256, count, np.uint8))
    return bits.view(kind).reshape(shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_numpy_arrays_of_every_dtype_arrive_equal(ends: tuple[SendPipe, RecvPipe], shape: tuple[int, ...]) -> None:
    send, recv = ends
    for dtype in NUMPY:
        value = made(dtype, shape, of_torch=False)
        sent = send.post(value)
        found = recv.recv_tensor(timeout=5)
        sent.wait(5)
        assert (type(found), found.dtype, found.shape) == (np.ndarray, value.dtype, value.shape)
        assert raw(found) == raw(value)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_torch_tensors_of_every_dtype_arrive_equal(ends: tuple[SendPipe, RecvPipe], shape: tuple[int, ...]) -> None:
    send, recv = ends
    for dtype in TORCH:
        value = made(dtype, shape, of_torch=True)
        sent = send.post(value)
        found = recv.recv_tensor(timeout=5)
        sent.wait(5)
        assert (type(found), found.dtype, found.shape) == (torch.Tensor, value.dtype, value.shape)
        assert raw(found) == raw(value)


def test_a_torch_tensor_fills_a_numpy_array_of_the_same_dtype_and_back(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    producer.buffer.insert(Key("t"), torch.arange(6.0).reshape(2, 3)).wait(5)
    producer.buffer.insert(Key("n"), np.arange(6, dtype=np.int16)).wait(5)
    array, tensor = np.zeros((2, 3), dtype=np.float32), torch.zeros(6, dtype=torch.int16)
    consumer.buffer.drop_select(Key("t", *producer.where()), array).wait(5)
    consumer.buffer.drop_select(Key("n", *producer.where()), tensor).wait(5)
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensor.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_tensor_that_needs_gradients_arrives_as_its_values(ends: tuple[SendPipe, RecvPipe]) -> None:
    send, recv = ends
    sent = send.post(torch.ones(3, requires_grad=True))
    assert recv.recv_tensor(timeout=5).tolist() == [1, 1, 1]
    sent.wait(5)


STRIDED = np.zeros((4, 6))[:, ::2]
REFUSED: dict[str, tuple[Any, str]] = {
    "numpy transposed": (np.zeros((3, 4)).T, "contiguous"),
    "numpy strided": (STRIDED, "contiguous"),
    "numpy broadcast": (np.broadcast_to(np.zeros(3), (4, 3)), "contiguous"),
    "numpy reversed": (np.arange(5)[::-1], "contiguous"),
    "torch transposed": (torch.zeros(3, 4).T, "contiguous"),
    "torch expanded": (torch.zeros(3).expand(4, 3), "contiguous"),
    "torch sparse": (torch.eye(3).to_sparse(), "contiguous"),
    "torch conjugate": (torch.ones(3, dtype=torch.complex64).conj(), "conj"),
    "torch negative": (torch._neg_view(torch.ones(3)), "neg"),
    "torch meta": (torch.zeros(3, device="meta"), "meta"),
    "foreign byte order": (np.arange(4, dtype=">f4"), "byte order"),
    "objects": (np.array([object()]), "object"),
    "records": (np.zeros(3, dtype=[("a", "i4"), ("b", "f8")]), "dtype"),
    "bytes": (b"abc", "bytes"),
    "list": ([1, 2, 3], "list"),
    "none": (None, "None"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_sent_is_refused_with_a_reason_and_costs_nothing(
    ends: tuple[SendPipe, RecvPipe], pair: tuple[Node, Node], name: str
) -> None:
    value, reason = REFUSED[name]
    send, recv = ends
    producer, consumer = pair
    with pytest.raises((SpecMismatchError, UnsupportedError), match=reason):
        send.post(value).wait(2)
    with pytest.raises((SpecMismatchError, UnsupportedError), match=reason):
        producer.buffer.insert(Key("k"), value).wait(2)
    with pytest.raises(KVBridgeError):
        consumer.take(Key("k", *producer.where()), 1, 3, timeout=0.1)
    assert recv.peek() is None
    sent = send.post(np.arange(3))
    assert recv.recv_tensor(timeout=5).tolist() == [0, 1, 2]
    sent.wait(5)
    producer.await_used(0)
    assert producer.counters().get("internal_errors", 0) == 0


@pytest.mark.parametrize(
    "out", [torch.zeros(3, 4).T, torch.zeros(8, 3)[::2], np.zeros((3, 4), dtype=np.float32).T], ids=["t", "s", "n"]
)
def test_a_destination_that_is_not_contiguous_is_refused_and_the_value_stays(pair: tuple[Node, Node], out: Any) -> None:
    producer, consumer = pair
    value = np.arange(12, dtype=np.float32).reshape(4, 3)
    producer.buffer.insert(Key("k"), value).wait(5)
    claim = consumer.buffer.claim(Key("k", *producer.where())).wait(5)
    with pytest.raises(SpecMismatchError, match="contiguous"):
        claim.fill(out).wait(5)
    good = np.zeros_like(value)
    claim.fill(good).wait(5)
    assert np.array_equal(good, value)


def test_a_strange_shape_of_many_axes_arrives_equal(ends: tuple[SendPipe, RecvPipe]) -> None:
    send, recv = ends
    value = np.arange(64).reshape((2,) * 6 + (1,) * 26)
    sent = send.post(value)
    assert np.array_equal(recv.recv_tensor(timeout=5), value)
    sent.wait(5)
