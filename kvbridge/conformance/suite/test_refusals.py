"""Part `backend`, what is not claimed: the operation is refused, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvbridge.conformance.checks import require, require_equal, require_raises
from kvbridge.conformance.requirement import must
from kvbridge.conformance.values import Cache, Geometry, PagesValue, TensorValue
from kvbridge.control.endpoint import Endpoint
from kvbridge.errors import UnsupportedError
from kvbridge.memory import Pages, Region
from kvbridge.registry import create_backend

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.conformance.node import Node
    from kvbridge.conformance.world import World


def _refused(flag: str, call: Callable[[], object]) -> None:
    error = require_raises(UnsupportedError, call, f"an operation that needs {flag!r}")
    require_equal(error.flag, flag, "the flag that the error names")


def _refuses(node: Node, flag: str, call: Callable[[], object]) -> None:
    """Check a refusal, and that the instance still works."""
    _refused(flag, call)
    require(node.endpoint.address, "the endpoint is gone")
    node.flush()


@must("backend/20-refuses-pipe", lacks=("pipe",))
def test_refuses_pipe(world: World) -> None:
    """Without `pipe`, opening one raises UnsupportedError naming the flag."""
    one, other = world.node(), world.node()
    other.connect(one.where()[0])
    _refuses(other, "pipe", lambda: other.backend.open_send(other.links[0], "c"))
    _refuses(other, "pipe", lambda: other.backend.open_recv(other.links[0], "c"))


@must("backend/21-refuses-tensors", lacks=("tensors",))
def test_refuses_tensors(world: World) -> None:
    """Without `tensors`, inserting a tensor fails with UnsupportedError naming the flag."""
    node = world.node()
    node.begin_insert("k", "k", TensorValue(seed=1))
    _refuses(node, "tensors", lambda: node.end("k"))


@must("backend/22-refuses-pages", lacks=("pages",))
def test_refuses_pages(world: World) -> None:
    """Without `pages`, inserting `Pages` fails with UnsupportedError naming the flag."""
    node = world.node()
    node.begin_insert("k", "k", PagesValue(seed=1))
    _refuses(node, "pages", lambda: node.end("k"))


@must("backend/23-refuses-cuda", lacks=("cuda",))
def test_refuses_cuda(world: World) -> None:
    """Without `cuda`, inserting what lies in GPU memory fails with UnsupportedError naming the flag."""
    node = world.node()
    far = Region(address=1 << 40, page_bytes=4096, block_stride=4096, num_blocks=8, device="cuda:0")
    _refuses(
        node,
        "cuda" if world.capabilities.pages else "pages",
        lambda: node.buffer.insert(world.here("far"), Pages.of([far], [1, 2])).wait(10),
    )


@must("backend/24-refuses-buffer", lacks=("buffer",))
def test_refuses_buffer(world: World) -> None:
    """Without `buffer`, opening one raises UnsupportedError naming the flag."""
    backend = create_backend(world.subject.name, world.subject.options)
    endpoint = Endpoint(backend)
    try:
        _refused("buffer", lambda: backend.open_buffer(endpoint))
    finally:
        endpoint.close()
        backend.close()


@must("backend/25-refuses-takes", needs=("buffer",), lacks=("takes",))
def test_refuses_takes(world: World) -> None:
    """Without `takes`, `drop_select` and a claim that takes fail with UnsupportedError naming the flag."""
    node = world.node()
    value = world.value()
    node.insert("k", value)
    key = world.key("k", node)
    _refuses(node, "takes", lambda: node.take(key, value))
    _refuses(node, "takes", lambda: node.claim("c", key))
    node.take(key, value, verb="select")


@must("backend/26-refuses-slots", lacks=("slots",))
def test_refuses_slots(world: World) -> None:
    """Without `slots`, opening a pool of them raises UnsupportedError naming the flag."""
    node = world.node()
    regions = Cache(Geometry()).regions
    _refuses(node, "slots", lambda: node.backend.open_pool(regions, 4))
    _refuses(node, "slots", lambda: node.backend.open_pool(regions, 1, np.zeros(4096, dtype=np.uint8)))
