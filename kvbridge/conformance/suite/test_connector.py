"""Part `connector`: an engine's two halves hand requests over with this backend, without the engine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kvbridge.abc.connector import Outcome, RequestView
from kvbridge.conformance.checks import require, require_equal
from kvbridge.conformance.requirement import must
from kvbridge.conformance.values import Cache, Geometry, PagesValue, packed
from kvbridge.connector.handoff_scheduler import HandoffScheduler
from kvbridge.connector.handoff_state import HandoffSettings
from kvbridge.connector.handoff_worker import HandoffWorker
from kvbridge.memory.layout import CacheLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvbridge.conformance.world import World

BLOCK = 16
"""Tokens of a block."""

GEOMETRY = Geometry(page_bytes=(4096, 4096, 512), num_blocks=128, first_block=1)
DIGEST = b"digest of the prompt, 32 bytes.."
WAIT = 10.0


class _Engine:
    """What drives the halves: one scheduler, one worker, a cache."""

    def __init__(self, world: World, name: str) -> None:
        self.node = world.node(name=name)
        self.cache = Cache(GEOMETRY)
        self.node.backend.register(self.cache.regions)
        layout = CacheLayout(self.cache.regions, (tuple(range(len(self.cache.regions))),))
        self.scheduler = HandoffScheduler(HandoffSettings(name, BLOCK, 1, True, True, claim_timeout=2.0))
        address, generation = self.node.where()
        self.scheduler.set_directory([address], [generation])
        self.worker = HandoffWorker(self.node.buffer, layout, rank=0, claim_timeout=2.0, lease=30.0)
        self.outcomes: list[Outcome] = []

    def step(self) -> None:
        """Do what an engine does in a step."""
        self.worker.begin(self.scheduler.plan())
        outcome = self.worker.poll()
        self.outcomes.append(outcome)
        report = self.worker.report()
        if report is not None:
            self.scheduler.absorb(report)
        for request in outcome.received:
            self.scheduler.received(request, failed=request in outcome.failed)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Make steps until something holds."""
        deadline = time.monotonic() + WAIT
        while not holds():
            require(time.monotonic() < deadline, f"after {WAIT} s of steps: {what}")
            self.step()
            time.sleep(0.002)

    def told(self, kind: str, request: str) -> int:
        """Return how often an outcome was reported."""
        return sum(request in getattr(outcome, kind) for outcome in self.outcomes)

    def ends(self, kind: str, request: str) -> None:
        """Make steps until a request is reported, and some more."""
        self.until(lambda: self.told(kind, request) > 0, f"{request} was not reported as {kind}")
        for _ in range(20):
            self.step()
        require_equal(self.told(kind, request), 1, f"how often {request} was reported as {kind}")


def _view(name: str, tokens: int, params: Mapping[str, Any] | None) -> RequestView:
    return RequestView(name, tokens, params, lambda: DIGEST)


def _prefill(engine: _Engine, name: str, blocks: tuple[int, ...], seed: int) -> dict[str, Any]:
    """Finish a request for another engine; return what its client gets."""
    engine.cache.write(blocks, packed(PagesValue(seed, blocks, GEOMETRY)))
    view = _view(name, len(blocks) * BLOCK, {"do_remote_decode": True})
    held, params = engine.scheduler.finished(view, blocks, completed=True)
    require(held and params, "the engine did not hand the request over")
    return dict(params or {})


def _matched(engine: _Engine, view: RequestView, local: int = 0) -> int:
    found: list[int] = []

    def asked() -> bool:
        tokens = engine.scheduler.matched(view, local)
        if tokens is not None:
            found.append(tokens)
        return bool(found)

    engine.until(asked, "the scheduler half never said how many tokens can be loaded")
    return found[0]


@must("connector/01-handover", needs=("buffer", "pages", "takes"))
def test_handover(world: World) -> None:
    """Requests that one engine prefilled are loaded by another, in another order, byte for byte, each reported once."""
    prefill, decode = _Engine(world, "prefill"), _Engine(world, "decode")
    sources = {f"p{index}": tuple(range(1 + 10 * index, 1 + 10 * index + index + 1)) for index in range(6)}
    params = {name: _prefill(prefill, name, blocks, seed) for seed, (name, blocks) in enumerate(sources.items())}
    prefill.step()
    for seed, (name, blocks) in reversed(list(enumerate(sources.items()))):
        view = _view(f"d{name}", len(blocks) * BLOCK, params[name])
        require_equal(_matched(decode, view), len(blocks) * BLOCK, f"tokens of {name} that can be loaded")
        into = tuple(range(127 - 20 * seed, 127 - 20 * seed - len(blocks), -1))
        decode.scheduler.allocated(view, into, 0, len(blocks) * BLOCK)
        decode.ends("received", view.id)
        require_equal(decode.told("failed", view.id), 0, f"failed loads of {name}")
        decode.cache.check(into, packed(PagesValue(seed, blocks, GEOMETRY)), f"the blocks of {name}")
        prefill.ends("sent", name)


@must("connector/02-local-prefix", needs=("buffer", "pages", "takes"))
def test_local_prefix(world: World) -> None:
    """Blocks that the decoding engine has already are left as they are; only the others are loaded."""
    prefill, decode = _Engine(world, "prefill"), _Engine(world, "decode")
    blocks = (1, 2, 3, 4, 5)
    params = _prefill(prefill, "p", blocks, 7)
    prefill.step()
    view = _view("d", 5 * BLOCK, params)
    require_equal(_matched(decode, view, 2 * BLOCK), 3 * BLOCK, "tokens that can be loaded beyond the local ones")
    decode.scheduler.allocated(view, (20, 21, 22, 23, 24), 2 * BLOCK, 3 * BLOCK)
    decode.ends("received", "d")
    whole = packed(PagesValue(7, blocks, GEOMETRY))
    parts, start = [], 0
    for size in GEOMETRY.page_bytes:
        parts.append(whole[start + 2 * size : start + 5 * size].tobytes())
        start += 5 * size
    expected = packed(PagesValue(7, (1, 2, 3), GEOMETRY))
    expected[:] = memoryview(b"".join(parts))
    decode.cache.check((22, 23, 24), expected, "the blocks that were loaded")


@must("connector/03-used-twice", needs=("buffer", "pages", "takes"))
def test_used_twice(world: World) -> None:
    """Params used before, or of an engine that is gone with its value, mean: compute it yourself. Nothing fails."""
    prefill, decode = _Engine(world, "prefill"), _Engine(world, "decode")
    params = _prefill(prefill, "p", (1, 2), 3)
    prefill.step()
    first = _view("first", 2 * BLOCK, params)
    require_equal(_matched(decode, first), 2 * BLOCK, "tokens for the first use")
    decode.scheduler.allocated(first, (5, 6), 0, 2 * BLOCK)
    decode.ends("received", "first")
    require_equal(_matched(decode, _view("again", 2 * BLOCK, params)), 0, "tokens for the second use")
    other = _prefill(prefill, "q", (3, 4), 4)
    prefill.step()
    prefill.node.close()
    found = _matched(decode, _view("late", 2 * BLOCK, other))
    if not (world.capabilities.shared and found == 2 * BLOCK):  # a store may have got it before the engine went
        require_equal(found, 0, "tokens from an engine that is gone")


@must("connector/04-given-up", needs=("buffer", "pages", "takes"))
def test_given_up(world: World) -> None:
    """A request that is given up while it loads is reported as received once, and its producer has its blocks back."""
    prefill, decode = _Engine(world, "prefill"), _Engine(world, "decode")
    params = _prefill(prefill, "p", (1, 2, 3), 5)
    prefill.step()
    view = _view("d", 3 * BLOCK, params)
    require_equal(_matched(decode, view), 3 * BLOCK, "tokens that can be loaded")
    decode.scheduler.allocated(view, (5, 6, 7), 0, 3 * BLOCK)
    decode.worker.begin(decode.scheduler.plan())
    decode.scheduler.finished(view, (5, 6, 7), completed=False)
    decode.ends("received", "d")
    prefill.ends("sent", "p")


@must("connector/05-unused", needs=("buffer", "pages", "takes"))
def test_unused(world: World) -> None:
    """A claim that the decoding engine does not use after all gives the producer its blocks back."""
    prefill, decode = _Engine(world, "prefill"), _Engine(world, "decode")
    params = _prefill(prefill, "p", (1, 2, 3), 5)
    prefill.step()
    view = _view("d", 3 * BLOCK, params)
    require_equal(_matched(decode, view), 3 * BLOCK, "tokens that can be loaded")
    decode.scheduler.allocated(view, (5, 6, 7), 0, 0)
    decode.step()
    prefill.ends("sent", "p")
    prefill.node.await_stats(entries=0, bytes=0)
