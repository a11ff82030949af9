"""The scheduler half: a decode request claims first, loads only what every rank holds, and ends once on every path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvbridge.connector import handoff_scheduler
from kvbridge.connector.plan import Report
from kvbridge.connector.shunned import Shunned
from kvbridge.errors import KeyUnknownError
from tests.clock import Clock, stopped_clock
from tests.requests import BLOCK, DIGEST, asked, handoff, scheduler, view

if TYPE_CHECKING:
    from kvbridge.abc.connector import RequestView
    from kvbridge.connector.handoff_scheduler import HandoffScheduler


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return stopped_clock(monkeypatch, handoff_scheduler)


def empty(half: HandoffScheduler) -> bool:
    """Whether nothing is remembered of any request."""
    return not half._wanted and not half._claims and half.idle and half.claiming == 0


def claimed(half: HandoffScheduler, request: object, ranks: int = 1, local: int = 0) -> int:
    """Bring a request to where the engine is told that there is something to load. Returns the claim."""
    assert half.matched(request, local) is None
    (order,) = half.plan().claims
    half.absorb(Report(granted={order.claim: ranks}))
    return order.claim


def test_a_request_that_was_not_prefilled_elsewhere_asks_for_nothing() -> None:
    half = scheduler()
    for params in (None, {}, {"do_remote_prefill": False}, {"do_remote_decode": True}, {"do_remote_prefill": "yes"}):
        request = view(params=params)
        assert half.matched(request, 0) == 0
        half.allocated(request, [1, 2], 0, 0)
        half.finished(request, [1, 2], completed=False)
    assert empty(half)
    assert half.counters["requests"] == 0


def test_a_request_claims_once_then_loads_then_is_over() -> None:
    half, request = scheduler(), asked()
    assert [half.matched(request, 0) for _ in range(3)] == [None] * 3
    plan = half.plan()
    (order,) = plan.claims
    assert (order.key.id, order.key.addresses, order.key.generations) == ("key", ("tcp://127.0.0.1:1000",), (7,))
    assert order.key.digest == DIGEST
    assert half.claiming == 1
    assert half.idle
    half.absorb(Report(granted={order.claim: 1}))
    assert half.matched(request, 0) == 100
    half.allocated(request, list(range(1, 9)), 0, 100)
    (load,) = half.plan().loads
    assert (load.request_id, load.claim, load.block_ids, load.skip) == ("r", order.claim, tuple(range(1, 8)), 0)
    assert half.matched(request, 0) == 0  # asked again while it loads: never a second load
    half.allocated(request, list(range(1, 9)), 0, 100)
    half.received("r", failed=False)
    half.received("r", failed=False)
    assert half.matched(request, 0) == 0
    assert half.finished(request, list(range(1, 9)), completed=True) == (False, None)
    assert half.counters == {"requests": 1, "loads": 1}
    assert empty(half)


def test_a_refused_claim_is_computed_here_and_never_loaded() -> None:
    half, request = scheduler(), asked()
    assert half.matched(request, 0) is None
    (order,) = half.plan().claims
    half.absorb(Report(refused={order.claim: ("expired", "rank 0: gone")}))
    half.absorb(Report(granted={order.claim: 1}))  # too late
    assert half.matched(request, 0) == 0
    half.allocated(request, list(range(1, 8)), 0, 100)
    assert half.plan().loads == []
    half.finished(request, [], completed=True)
    assert half.counters == {"requests": 1, "recomputed": 1, "miss_expired": 1}
    assert empty(half)


def test_a_value_that_did_not_come_in_time_is_not_wanted_when_it_comes() -> None:
    half, request = scheduler(), asked()
    half.matched(request, 0)
    (order,) = half.plan().claims
    half.absorb(Report(refused={order.claim: (KeyUnknownError.code, "rank 0: its producer had no room for it")}))
    plan = half.plan()
    assert (plan.drops, plan.releases) == ([order.key], [order.claim])
    assert half.counters["miss_unknown-key"] == 1


def test_a_failed_load_is_counted_and_never_loaded_again() -> None:
    half, request = scheduler(), asked()
    claimed(half, request)
    half.allocated(request, list(range(1, 8)), 0, 100)
    half.plan()
    half.received("r", failed=True)
    assert half.matched(request, 0) == 0
    half.allocated(request, list(range(1, 8)), 0, 100)
    assert half.idle
    half.finished(request, [], completed=True)
    assert half.counters["failed_loads"] == 1
    assert half.counters["loads"] == 0
    assert empty(half)


@pytest.mark.parametrize("failed", [True, False])
def test_a_load_that_ends_its_request_is_counted_if_the_engine_says_that_it_failed(failed: bool) -> None:
    half, request = scheduler(), asked()
    claimed(half, request)
    half.allocated(request, list(range(1, 8)), 0, 100)
    half.plan()
    half.finished(request, [], completed=False, failed=failed)  # before anybody tells that the load has ended
    half.received("r", failed=failed)
    assert half.counters["failed_loads"] == failed
    assert half.plan().cancels == ["r"]


def test_a_claim_that_no_worker_reports_on_is_given_up_at_its_deadline(clock: Clock) -> None:
    half, request = scheduler(claim_timeout=5.0), asked()
    assert half.matched(request, 0) is None
    (order,) = half.plan().claims
    clock.now += 7.9
    assert half.matched(request, 0) is None
    clock.now += 0.2
    assert half.matched(request, 0) == 0
    assert half.plan().releases == [order.claim]
    half.absorb(Report(granted={order.claim: 1}))
    assert half.matched(request, 0) == 0
    half.finished(request, [], completed=True)
    assert half.counters["recomputed"] == 1
    assert empty(half)


def test_with_two_ranks_nothing_is_loaded_before_both_hold_it() -> None:
    half, request = scheduler(ranks=2), asked(ranks=2)
    assert half.matched(request, 0) is None
    (order,) = half.plan().claims
    half.absorb(Report(granted={order.claim: 1}))
    assert half.matched(request, 0) is None
    half.allocated(request, list(range(1, 8)), 0, 100)
    assert half.plan().loads == []
    half.absorb(Report(granted={order.claim: 1}))
    assert half.matched(request, 0) == 100


@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("first", ["granted", "refused"])
def test_with_two_ranks_a_grant_and_a_refusal_are_a_refusal_and_the_grant_is_released(first: str, merged: bool) -> None:
    half, request = scheduler(ranks=2), asked(ranks=2)
    assert half.matched(request, 0) is None
    (order,) = half.plan().claims
    reports = [Report(granted={order.claim: 1}), Report(refused={order.claim: ("consumed", "rank 1: taken")})]
    if first == "refused":
        reports.reverse()
    if merged:
        half.absorb(reports[0].merge(reports[1]))
    else:
        for report in reports:
            half.absorb(report)
    assert half.matched(request, 0) == 0
    assert half.plan().releases == [order.claim]
    half.finished(request, [], completed=True)
    assert (half.counters["recomputed"], half.counters["miss_consumed"]) == (1, 1)
    assert empty(half)


def test_with_two_ranks_both_refusing_counts_once() -> None:
    half, request = scheduler(ranks=2), asked(ranks=2)
    assert half.matched(request, 0) is None
    (order,) = half.plan().claims
    one = Report(refused={order.claim: ("consumed", "rank 0: taken")})
    half.absorb(one.merge(Report(refused={order.claim: ("expired", "rank 1: late")})))
    half.absorb(Report(refused={order.claim: ("expired", "rank 1: late")}))
    assert half.counters["recomputed"] == 1
    assert half.counters["miss_consumed"] == 1
    assert half.counters["miss_expired"] == 0


def test_with_two_ranks_a_missing_report_ends_at_the_deadline(clock: Clock) -> None:
    half, request = scheduler(ranks=2), asked(ranks=2)
    assert half.matched(request, 0) is None
    (order,) = half.plan().claims
    half.absorb(Report(granted={order.claim: 1}))
    clock.now += 8.1
    assert half.matched(request, 0) == 0
    assert half.plan().releases == [order.claim]
    half.absorb(Report(granted={order.claim: 1}))
    assert half.matched(request, 0) == 0


def test_an_abort_while_claiming_releases_the_claim() -> None:
    half, request = scheduler(), asked()
    assert half.matched(request, 0) is None
    (order,) = half.plan().claims
    assert half.finished(request, [], completed=False) == (False, None)
    assert half.plan().releases == [order.claim]
    half.absorb(Report(granted={order.claim: 1}))
    assert empty(half)


def test_an_abort_when_claimed_releases_the_claim() -> None:
    half, request = scheduler(), asked()
    claim = claimed(half, request)
    half.finished(request, [], completed=False)
    assert half.plan().releases == [claim]
    assert empty(half)


def test_an_abort_while_loading_cancels_the_load_and_its_end_is_taken_without_a_word() -> None:
    half, request = scheduler(), asked()
    claimed(half, request)
    half.allocated(request, list(range(1, 8)), 0, 100)
    half.plan()
    assert half.finished(request, list(range(1, 8)), completed=False) == (False, None)
    plan = half.plan()
    assert (plan.cancels, plan.releases) == (["r"], [])
    half.received("r", failed=True)
    assert half.counters["failed_loads"] == 0
    assert empty(half)


def test_an_abort_of_a_finished_or_refused_request_orders_nothing() -> None:
    half, request = scheduler(), asked()
    claim = claimed(half, request)
    half.allocated(request, list(range(1, 8)), 0, 100)
    half.plan()
    half.received("r", failed=False)
    half.finished(request, [], completed=False)
    half.finished(request, [], completed=False)
    half.absorb(Report(granted={claim: 1}, refused={claim: ("x", "y")}))
    half.received("unknown", failed=True)
    plan = half.plan()
    assert (plan.releases, plan.cancels, plan.claims, plan.loads) == ([], [], [], [])


def test_a_request_given_up_before_it_was_scheduled_drops_its_value() -> None:
    half = scheduler()
    half.finished(asked(), [], completed=False)
    (key,) = half.plan().drops
    assert (key.id, key.addresses) == ("key", ("tcp://127.0.0.1:1000",))
    half.finished(view(params=handoff(v=2)), [], completed=False)
    assert half.idle


def test_the_engine_that_does_not_use_a_claimed_value_gives_it_back() -> None:
    half, request = scheduler(), asked()
    claim = claimed(half, request)
    half.allocated(request, list(range(1, 8)), 0, 0)
    assert half.plan().releases == [claim]
    assert half.matched(request, 0) == 0
    assert half.counters["not_used"] == 1


def test_the_same_params_twice_are_two_claims_of_which_one_is_refused() -> None:
    half = scheduler()
    first, second = asked("first"), asked("second")
    assert half.matched(first, 0) is None
    assert half.matched(second, 0) is None
    one, two = half.plan().claims
    assert one.claim != two.claim
    half.absorb(Report(granted={one.claim: 1}, refused={two.claim: ("consumed", "taken")}))
    assert half.matched(first, 0) == 100
    assert half.matched(second, 0) == 0
    assert half.counters["recomputed"] == 1


def test_ids_that_come_back_are_new_requests() -> None:
    half = scheduler()
    for _ in range(3):
        request = asked()
        claim = claimed(half, request)
        half.allocated(request, list(range(1, 8)), 0, 100)
        assert half.plan().loads[0].claim == claim
        half.received("r", failed=False)
        half.finished(request, [], completed=True)
    assert half.counters["loads"] == 3
    assert empty(half)


@pytest.mark.parametrize(("local", "skip"), [(0, 0), (BLOCK, 1), (2 * BLOCK + 3, 2), (6 * BLOCK, 6)])
def test_blocks_that_are_here_already_are_not_loaded(local: int, skip: int) -> None:
    half, request = scheduler(), asked()
    claimed(half, request, local=local)
    assert half.matched(request, local) == 100 - local
    half.allocated(request, list(range(1, 9)), local, 100 - local)
    (load,) = half.plan().loads
    assert (load.block_ids, load.skip) == (tuple(range(1 + skip, 8)), skip)


@pytest.mark.parametrize("local", [99, 100])
def test_a_prompt_that_is_here_already_is_not_asked_for_and_its_value_is_dropped(local: int) -> None:
    half, request = scheduler(), asked()
    assert half.matched(request, local) == 0
    plan = half.plan()
    assert plan.claims == []
    assert [key.id for key in plan.drops] == ["key"]
    half.finished(request, [], completed=True)
    assert half.counters == {"requests": 1, "local_hit": 1}
    assert empty(half)


def test_a_prompt_that_came_to_be_here_while_claiming_is_given_back() -> None:
    half, request = scheduler(), asked()
    claim = claimed(half, request)
    assert half.matched(request, 99) == 0
    assert half.plan().releases == [claim]
    assert half.matched(request, 0) == 0


def asks(half: HandoffScheduler, request: RequestView) -> int | None:
    """Ask for a request's value; return the claim, None if nobody is asked."""
    found = half.matched(request, 0)
    orders = half.plan().claims
    assert (found is None) == bool(orders)
    return orders[0].claim if orders else None


def refuse(half: HandoffScheduler, claim: int | None, code: str) -> None:
    assert claim is not None
    half.absorb(Report(refused={claim: (code, "why")}))


@pytest.mark.parametrize("code", ["peer-lost", "timeout", "handshake"])
def test_an_engine_that_does_not_answer_is_asked_once_and_then_left_alone(
    monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    half, now = scheduler(), Clock()
    monkeypatch.setattr(half, "_shunned", Shunned(now.monotonic))
    first, second = asks(half, asked("a")), asks(half, asked("b"))
    refuse(half, first, code)
    refuse(half, second, code)  # asked at the same time: it counts once
    assert asks(half, asked("c")) is None
    assert half.counters["miss_shunned"] == 1
    assert asks(half, asked("d", addresses=["tcp://127.0.0.1:2"])) is not None, "another engine"
    assert asks(half, asked("e", generations=[8])) is not None, "the same one, restarted"
    now.now += 2.1
    refuse(half, asks(half, asked("f")), code)
    now.now += 2.1
    assert asks(half, asked("g")) is None, "the second time it is left alone for longer"
    now.now += 2.1
    claim = asks(half, asked("h"))
    assert claim is not None
    half.absorb(Report(granted={claim: 1}))
    assert len(half._shunned) == 0, "it answered: all is well"


@pytest.mark.parametrize("code", ["unknown-key", "expired", "consumed", "binding", "stale-generation"])
def test_an_engine_that_answers_that_it_has_nothing_is_asked_again(code: str) -> None:
    half = scheduler()
    refuse(half, asks(half, asked("a")), code)
    assert asks(half, asked("b")) is not None


def test_engines_that_do_not_answer_are_not_remembered_without_a_bound() -> None:
    shunned = Shunned()
    for engine in range(5000):
        shunned.failed(engine)
    assert len(shunned) <= 1024
    assert 4999 in shunned
    assert 0 not in shunned


@pytest.mark.parametrize(
    ("tokens", "local", "fetched"), [(99, 0, False), (100, 0, True), (200, 100, True), (200, 112, False)]
)
def test_fewer_tokens_than_wanted_are_computed(tokens: int, local: int, *, fetched: bool) -> None:
    half = scheduler(min_tokens=100)
    request = asked(tokens=tokens)
    assert (half.matched(request, local) is None) == fetched
    plan = half.plan()
    assert bool(plan.claims) == fetched
    assert bool(plan.drops) != fetched, "its producer is told"
    assert half.counters["too_short"] == (not fetched)


def test_a_claim_that_became_too_short_meanwhile_is_given_back() -> None:
    half, request = scheduler(min_tokens=50), asked()
    claim = claimed(half, request)
    assert half.matched(request, 64) == 0
    assert half.plan().releases == [claim]
    assert half.counters["too_short"] == 1


def test_a_claim_that_the_engine_does_not_wait_for_is_given_back() -> None:
    """As for a request with `prompt_logprobs`, which vLLM computes whatever is answered."""
    half = scheduler()
    request = asked()
    assert half.matched(request, 0) is None
    (claim,) = half.plan().claims
    half.allocated(request, list(range(1, 9)), 0, 0)
    assert half.plan().releases == [claim.claim]
    half.absorb(Report(granted={claim.claim: 1}))
    assert half.plan().empty
    assert half.counters["not_used"] == 1


def test_a_claim_that_is_lost_while_its_request_waits_for_blocks_is_computed() -> None:
    half, request = scheduler(), asked()
    claim = claimed(half, request)
    assert half.matched(request, 0) == 100
    half.absorb(Report(refused={claim: ("peer-lost", "rank 0: it died")}))
    assert half.matched(request, 0) == 0
    assert half.plan().releases == [claim]
    assert half.counters["recomputed"] == 1
