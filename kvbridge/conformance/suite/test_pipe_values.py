"""Part `pipe`, what is moved: every dtype, shape and page arrives as it was sent, where it was wanted."""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvbridge.conformance.checks import require, require_raises
from kvbridge.conformance.requirement import must
from kvbridge.conformance.values import Geometry, PagesValue, TensorValue
from kvbridge.conformance.world import NotRunError
from kvbridge.errors import KVBridgeError, SpecMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvbridge.conformance.values import Value
    from kvbridge.conformance.world import World

SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (3, 0, 5), (7,), (1, 1, 1), (4097,), (2, 3, 4, 5, 2, 1, 3))
NUMPY = (
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
TORCH = ("bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2")
MANY = 10_000


def _through(world: World, values: Iterable[Value], **into: Any) -> None:
    """Send values one after the other, and check each of them."""
    sender, receiver = world.linked()
    for value in values:
        sender.post("v", "c", value)
        receiver.accept("v", "c", value, **into)
        receiver.end("v")
        sender.end("v")


@must("pipe/01-tensor", needs=("pipe", "tensors"))
def test_tensor(world: World) -> None:
    """A tensor arrives byte for byte, with the dtype and shape that it was sent with."""
    sender, receiver = world.linked()
    value = world.value(100_000)
    sender.post("v", "c", value)
    receiver.recv("c", value)
    sender.end("v")


@must("pipe/02-dtypes", needs=("pipe", "tensors"))
def test_dtypes(world: World) -> None:
    """A tensor of every dtype that has portable bytes arrives equal."""
    _through(world, [TensorValue(seed, (33, 3), dtype) for seed, dtype in enumerate(NUMPY)])


@must("pipe/03-torch-dtypes", needs=("pipe", "tensors"))
def test_torch_dtypes(world: World) -> None:
    """A torch tensor of every dtype of a KV cache arrives equal, bfloat16 and fp8 too."""
    if importlib.util.find_spec("torch") is None:
        raise NotRunError("torch is not installed")
    _through(world, [TensorValue(seed, (33, 3), dtype, "torch") for seed, dtype in enumerate(TORCH)])


@must("pipe/04-shapes", needs=("pipe", "tensors"))
def test_shapes(world: World) -> None:
    """A tensor of every shape arrives equal: a scalar, an empty one, an odd one, one of many axes."""
    _through(world, [TensorValue(seed, shape, "float32") for seed, shape in enumerate(SHAPES)])


@must("pipe/05-large", needs=("pipe", "tensors"))
def test_large(world: World) -> None:
    """A tensor of the largest size that is claimed arrives equal (tried up to 64 MiB)."""
    largest = min(world.capabilities.max_value_bytes or 64 << 20, 64 << 20)
    _through(world, [TensorValue(seed=1, shape=(largest,)), TensorValue(seed=2, shape=(largest - 1,))])


@must("pipe/06-not-contiguous", needs=("pipe", "tensors"))
def test_not_contiguous(world: World) -> None:
    """A tensor that is not contiguous is refused or arrives equal, and both ends stay usable."""
    sender, receiver = world.node(name="sender"), world.node(name="receiver")
    world.connect(sender, receiver)
    odd = np.arange(100, dtype=np.int32).reshape(10, 10).T
    try:
        posted = sender.sending("c").post(odd)
        found = receiver.receiving("c").recv_tensor(timeout=1.0)
        posted.wait(5)
        require(np.array_equal(found, odd), "the tensor arrived, and is not equal")
    except KVBridgeError:  # refused at one side or the other
        pass
    value = world.value()
    sender.post("v", "c", value)
    receiver.accept("v", "c", value)
    receiver.end("v")
    sender.end("v")


@must("pipe/07-wrong-destination", needs=("pipe", "tensors"))
def test_wrong_destination(world: World) -> None:
    """A destination of another shape or dtype is refused with SpecMismatchError, and the offer stands."""
    sender, receiver = world.node(name="sender"), world.node(name="receiver")
    world.connect(sender, receiver)
    value = world.value(1000)
    sender.post("v", "c", value)
    offer = world.some(receiver.receiving("c").peek(10))
    for wrong in (np.zeros(999, np.uint8), np.zeros(1000, np.int8), np.zeros((10, 100), np.uint8)):
        require_raises(SpecMismatchError, partial(receiver.receiving("c").accept, offer, wrong), "accept")
        require(not wrong.any(), "a destination that was refused was written to")
    receiver.accept("v", "c", value)
    receiver.end("v")
    sender.end("v")


@must("pipe/08-stays", needs=("pipe", "tensors"))
def test_stays(world: World) -> None:
    """What was received stays as it is: no later value, and nothing that the sender does, changes it."""
    sender, receiver = world.node(name="sender"), world.node(name="receiver")
    world.connect(sender, receiver)
    values = [world.value(5000) for _ in range(4)]
    found = []
    for index, value in enumerate(values):
        sender.post(f"v{index}", "c", value)
        found.append(receiver.receiving("c").recv_tensor(timeout=10))
        sender.end(f"v{index}")
        sender.overwrite(f"v{index}")
    for value, tensor in zip(values, found, strict=True):
        receiver.check(value, tensor)


@must("pipe/10-pages", needs=("pipe", "pages"))
def test_pages(world: World) -> None:
    """Pages land in the blocks that the receiver names, in order, and no other byte of his memory is touched."""
    sender, receiver = world.linked()
    value = PagesValue(seed=1, ids=(9, 2, 5, 3))
    sender.post("v", "c", value)
    receiver.accept("v", "c", value, into=(60, 1, 33, 0))
    receiver.end("v")
    sender.end("v")


@must("pipe/11-page-edges", needs=("pipe", "pages"))
def test_page_edges(world: World) -> None:
    """No page, one page, the first and the last of a region, all of them, and one that is named twice arrive equal."""
    every = tuple(range(64))
    cases = ((), (0,), (63,), (0, 63), every, every[::-1], (5, 5, 7), tuple(range(10, 30)))
    sender, receiver = world.linked()
    for seed, ids in enumerate(cases):
        value = PagesValue(seed=seed, ids=ids)
        into = tuple(sorted(every[: len(ids)], key=lambda block: (block * 37) % 64))
        sender.post("v", "c", value)
        receiver.accept("v", "c", value, into=into)
        receiver.end("v")
        sender.end("v")


@must("pipe/12-many-pages", needs=("pipe", "pages"))
def test_many_pages(world: World) -> None:
    """A value of 10,000 scattered pages arrives equal."""
    page = max(64, min(4096, world.largest() // MANY // 8 * 8))
    order = np.random.default_rng(1).permutation(MANY + 10)[:MANY]
    geometry = Geometry(page_bytes=(page,), num_blocks=MANY + 10)
    value = PagesValue(seed=1, ids=tuple(order.tolist()), geometry=geometry)
    _through(world, [value], into=tuple(order[::-1].tolist()))


@must("pipe/13-regions", needs=("pipe", "pages"))
def test_regions(world: World) -> None:
    """Pages of several regions, of different sizes and with gaps between them, arrive equal, gaps untouched."""
    geometries = (
        Geometry(page_bytes=(4096, 4096)),
        Geometry(page_bytes=(4096, 4096, 8192)),
        Geometry(page_bytes=(512, 16384), gap=64),
        Geometry(page_bytes=(4096,), gap=4096, first_block=1),
    )
    _through(world, [PagesValue(seed, (3, 1, 8), geometry) for seed, geometry in enumerate(geometries)])


@must("pipe/14-odd-pages", needs=("pipe", "pages"))
def test_odd_pages(world: World) -> None:
    """Pages of every size arrive equal, of one byte and of odd sizes too."""
    sizes = (1, 7, 8, 100, 4097, 65536)
    _through(world, [PagesValue(seed, (3, 1, 2), Geometry((size,), gap=size % 3)) for seed, size in enumerate(sizes)])


@must("pipe/15-skip", needs=("pipe", "pages"))
def test_skip(world: World) -> None:
    """A receiver that skips the first blocks of every region gets the others, in the blocks that he names."""
    sender, receiver = world.linked()
    value = PagesValue(seed=1, ids=(4, 9, 2, 7, 1), geometry=Geometry(page_bytes=(4096, 512)))
    for skip in (0, 1, 4, 5):
        sender.post("v", "c", value)
        receiver.accept("v", "c", value, into=tuple(range(20, 25 - skip)), skip=skip)
        receiver.end("v")
        sender.end("v")


@must("pipe/16-wrong-pages", needs=("pipe", "pages"))
def test_wrong_pages(world: World) -> None:
    """Destination pages of another size, number or kind are refused with SpecMismatchError, and the offer stands."""
    sender, receiver = world.linked()
    value = PagesValue(seed=1, ids=(4, 9, 2))
    sender.post("v", "c", value)
    require(receiver.peek("c", 10), "no offer came")
    others = (
        PagesValue(seed=1, ids=(4, 9)),
        PagesValue(seed=1, ids=(4, 9, 2), geometry=Geometry(page_bytes=(2048,))),
        PagesValue(seed=1, ids=(4, 9, 2), geometry=Geometry(page_bytes=(4096, 4096))),
        TensorValue(seed=1, shape=(3 * 4096,)),
    )
    for other in others:
        require_raises(SpecMismatchError, partial(receiver.accept, "w", "c", other), "accept")
    receiver.accept("v", "c", value)
    receiver.end("v")
    sender.end("v")


@must("pipe/17-cuda", needs=("pipe", "cuda"))
def test_cuda(world: World) -> None:
    """Tensors and pages in GPU memory arrive equal, on whichever side they are."""
    if importlib.util.find_spec("torch") is None:
        raise NotRunError("torch is not installed")
    import torch  # noqa: PLC0415 - only here

    if not torch.cuda.is_available():
        raise NotRunError("there is no GPU on this machine")
    values: list[Value] = [PagesValue(1, (9, 2, 5), Geometry((4096, 512), device="cuda:0"))]
    values += [TensorValue(2, (33, 3), "bfloat16", "torch", "cuda:0")]
    _through(world, values)
