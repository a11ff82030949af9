"""Both halves of a hand-over and an engine around them, in any order of events that Hypothesis can think of."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvbridge.connector.handoff_worker import HandoffWorker
from kvbridge.connector.plan import Plan, Report
from kvbridge.errors import KeyConsumedError, TransportError
from kvbridge.memory.layout import CacheLayout, Placement
from tests.fakes import FakeBuffer
from tests.requests import asked, scheduler

if TYPE_CHECKING:
    from kvbridge.abc.connector import RequestView

TOKENS = 100
BLOCKS = list(range(1, 8))


@dataclass
class Request:
    """A decode request as its engine sees it: `waiting`, `loading`, `aborted` in a load, `running` or `over`."""

    view: RequestView
    state: str = "waiting"
    local: int = 0
    received: list[int] = field(default_factory=list)
    failed: bool = False


class Handoffs(RuleBasedStateMachine):
    """An engine of two ranks."""

    @initialize(ranks=st.integers(1, 3), obedient=st.booleans())
    def start(self, ranks: int, obedient: bool) -> None:
        memory = np.zeros(10 * 64, dtype=np.uint8)
        place = Placement(("a",), 0, 0, 64, 64, 64)
        layout = CacheLayout.build([place], num_blocks=10, address=memory.ctypes.data, device="cpu", host=memory)
        self.ranks = ranks
        self.half = scheduler(ranks=ranks)
        self.buffers = [FakeBuffer(obedient=obedient) for _ in range(ranks)]
        self.workers = [
            HandoffWorker(buffer, layout, rank=rank, claim_timeout=5.0, lease=60.0)
            for rank, buffer in enumerate(self.buffers)
        ]
        self.requests: dict[str, Request] = {}

    def choose(self, data: Any, *states: str) -> Request | None:
        names = sorted(name for name, request in self.requests.items() if request.state in states)
        return self.requests[data.draw(st.sampled_from(names))] if names else None

    @rule(good=st.booleans())
    def arrive(self, good: bool) -> None:
        name = f"r{len(self.requests)}"
        changes = {} if good else {"block_size": 1}
        self.requests[name] = Request(asked(name, TOKENS, self.ranks, key=name, **changes))

    @rule(data=st.data(), local=st.sampled_from([0, 0, 16, 64, 99]), room=st.booleans())
    def schedule(self, data: Any, local: int, room: bool) -> None:
        """Ask whether something can be loaded; if the engine has room, go on with the answer."""
        request = self.choose(data, "waiting")
        if request is None:
            return
        request.local = max(request.local, local)
        answer = self.half.matched(request.view, request.local)
        if answer is None or not room:
            return
        self.half.allocated(request.view, BLOCKS, request.local, answer)
        request.state = "loading" if answer else "running"

    @rule()
    def step(self) -> None:
        """One step of the engine: the plan travels to the workers, their reports travel back."""
        plan: Plan = pickle.loads(pickle.dumps(self.half.plan()))  # noqa: S301 - our own, as the engine does
        merged = Report()
        for rank, worker in enumerate(self.workers):
            worker.begin(plan)
            outcome = worker.poll()
            report = worker.report()
            if report is not None:
                merged = merged.merge(report)
            for name in outcome.received:
                request = self.requests[name]
                assert request.state in ("loading", "aborted"), "a load was reported that nobody waits for"
                assert rank not in request.received, "a load was reported twice"
                request.received.append(rank)
                request.failed = request.failed or name in outcome.failed
            assert outcome.failed <= outcome.received
        self.half.absorb(merged)
        for name, request in self.requests.items():
            if len(request.received) == self.ranks and request.state in ("loading", "aborted"):
                self.half.received(name, failed=request.failed)
                request.state = "running" if request.state == "loading" else "over"

    @rule(data=st.data(), granted=st.booleans())
    def answer_claim(self, data: Any, granted: bool) -> None:
        open_ = [
            (rank, index)
            for rank, buffer in enumerate(self.buffers)
            for index, claim in enumerate(buffer.claims)
            if not claim[3].poll()
        ]
        if open_:
            self.answer(*data.draw(st.sampled_from(open_)), granted=granted)

    def answer(self, rank: int, index: int, *, granted: bool) -> None:
        if granted:
            self.buffers[rank].grant(index)
        else:
            self.buffers[rank].claims[index][3].fail(KeyConsumedError("it was taken"))

    @rule(data=st.data(), success=st.booleans())
    def end_fill(self, data: Any, success: bool) -> None:
        fills = [fill[2] for buffer in self.buffers for claim in buffer.given for fill in claim.fills]
        fills = [transfer for transfer in fills if not transfer.poll()]
        if fills:
            transfer = data.draw(st.sampled_from(fills))
            transfer.resolve(None) if success else transfer.fail(TransportError("it broke"))

    @rule(data=st.data())
    def abort(self, data: Any) -> None:
        request = self.choose(data, "waiting", "loading", "running")
        if request is not None:
            self.half.finished(request.view, BLOCKS, completed=False)
            request.state = "aborted" if request.state == "loading" else "over"

    @rule(data=st.data())
    def complete(self, data: Any) -> None:
        request = self.choose(data, "running")
        if request is not None:
            self.half.finished(request.view, BLOCKS, completed=True)
            request.state = "over"

    @precondition(lambda self: hasattr(self, "buffers"))
    @rule()
    def nothing_is_filled_that_a_rank_did_not_get(self) -> None:
        for buffer in self.buffers:
            for claim in buffer.given:
                assert len(claim.fills) <= 1
        filled = sum(bool(claim.fills) for buffer in self.buffers for claim in buffer.given)
        assert filled <= self.ranks * sum(r.state != "waiting" for r in self.requests.values())
        for name, request in self.requests.items():
            if request.state == "loading":
                for buffer in self.buffers:
                    mine = [transfer for key, _, _, transfer in buffer.claims if key.id == name]
                    assert [transfer.poll() and transfer.error is None for transfer in mine] == [True]

    def teardown(self) -> None:
        """Everything ends, and then nothing is held or remembered anywhere."""
        if not hasattr(self, "buffers"):
            return
        for request in self.requests.values():
            if request.state in ("waiting", "loading", "running"):
                self.half.finished(request.view, BLOCKS, completed=False)
                request.state = "aborted" if request.state == "loading" else "over"
        self.step()
        for rank, buffer in enumerate(self.buffers):
            for index, claim in enumerate(buffer.claims):
                if not claim[3].poll():
                    self.answer(rank, index, granted=True)
            for claim in buffer.given:
                for *_, transfer in claim.fills:
                    transfer.resolve(None)
        self.step()
        self.step()
        assert not [name for name, request in self.requests.items() if request.state != "over"]
        assert not self.half._wanted
        assert not self.half._claims
        assert self.half.idle
        for worker, buffer in zip(self.workers, self.buffers, strict=True):
            assert not worker._granted
            assert not worker._claims
            assert not worker._loads
            assert all(claim.ended for claim in buffer.given), "a value is held at its producer for ever"


Handoffs.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestHandoffs = Handoffs.TestCase
