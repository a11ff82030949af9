"""The scheduler half of reuse, call by call: what the model engine cannot see."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvbridge.connector.reuse_observer import Kept, Observer
from kvbridge.connector.reuse_plan import ReuseReport
from kvbridge.connector.reuse_scheduler import ReuseScheduler
from kvbridge.connector.reuse_view import Progress, ReusableRequest, ReuseSettings
from kvbridge.policies import create_policy
from kvbridge.reuse.own_catalog import OwnCatalog

if TYPE_CHECKING:
    from collections.abc import Sequence

SIZE = 4


def request(name: str, tokens: int, *, prompt: int = 0, family: str = "f", **dimensions: str) -> ReusableRequest:
    hashes = [f"{family}{index}".encode() for index in range(tokens // SIZE)]
    return ReusableRequest(
        name, lambda: tokens, prompt or tokens, lambda: hashes, lambda: list(dimensions.items()), origin=name
    )


def half(slots: int = 8, **settings: object) -> ReuseScheduler:
    wanted = replace(ReuseSettings(SIZE, 1, {"model": "m"}), **settings)  # type: ignore[arg-type]
    return ReuseScheduler(wanted, OwnCatalog(slots, create_policy("lru", slots)))


def end(one: ReuseScheduler, *, failed: bool = False) -> None:
    """Let the workers end everything that is planned."""
    plan = one.plan()
    jobs = [order.job for order in (*plan.saves, *plan.loads)]
    one.absorb(ReuseReport(dict.fromkeys(jobs, 1), dict.fromkeys(jobs, "broken") if failed else {}))


def began(one: ReuseScheduler, name: str) -> None:
    """Let a step begin to compute a request."""
    one.step([Progress(name, 0, (), first=True)])


def keep(one: ReuseScheduler, tokens: int, family: str = "f") -> None:
    view = request("keeper", tokens, family=family)
    one.matched(view, 0)
    blocks = list(range(1, 1 + tokens // SIZE))
    one.allocated(view, blocks, 0, 0)
    began(one, "keeper")
    one.finished("keeper", blocks, tokens)
    end(one)


@pytest.mark.parametrize(("tokens", "expected"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (13, 12), (100, 12)])
def test_the_last_token_is_always_computed(tokens: int, expected: int) -> None:
    one = half()
    keep(one, 12)
    assert one.matched(request("r", tokens), 0) == expected


def test_only_what_the_engine_does_not_have_itself_is_loaded() -> None:
    one = half()
    keep(one, 16)
    assert one.matched(request("r", 17), 8) == 8
    assert one.matched(request("r", 17), 16) == 0


def test_fewer_tokens_than_wanted_are_computed() -> None:
    one = half(min_tokens=9)
    keep(one, 16)
    assert one.matched(request("a", 9), 0) == 0
    assert one.matched(request("b", 13), 0) == 12


def test_nothing_is_kept_of_generated_tokens_unless_asked() -> None:
    for decoded, blocks in ((True, 4), (False, 2)):
        one = half(decoded=decoded)
        view = request("r", 16, prompt=9)
        one.allocated(view, [1, 2, 3, 4], 0, 0)
        began(one, "r")
        one.finished("r", [1, 2, 3, 4], 16)
        end(one)
        assert len(one.catalog) == blocks


def test_a_request_in_its_first_step_saves_nothing_as_another_may_be_computing_its_blocks() -> None:
    one = half()
    one.allocated(request("r", 9), [1, 2, 3], 8, 0)
    one.step([Progress("r", 8, (), first=True)])
    assert one.plan().saves == []
    one.step([Progress("r", 9, ())])
    assert [order.block_ids for order in one.plan().saves] == [(1, 2)]


def test_who_asks_for_what_is_being_loaded_waits() -> None:
    one = half()
    keep(one, 8)
    assert one.matched(request("a", 9), 0) == 8
    one.allocated(request("a", 9), [5, 6], 0, 8)
    assert one.matched(request("b", 12), 0) is None
    end(one)
    one.received("a", failed=False)
    assert one.matched(request("b", 12), 0) == 8


def test_a_failed_load_is_not_tried_again() -> None:
    one = half()
    keep(one, 8)
    assert one.matched(request("a", 9), 0) == 8
    one.allocated(request("a", 9), [5, 6], 0, 8)
    end(one, failed=True)
    one.received("a", failed=True)
    assert one.matched(request("a", 9), 0) == 0
    assert one.catalog.pinned == 0
    assert one.counters["failed_loads"] == 1


def test_a_request_that_ends_while_it_loads_cancels_and_is_reported_all_the_same() -> None:
    one = half()
    keep(one, 8)
    one.matched(request("a", 9), 0)
    one.allocated(request("a", 9), [5, 6], 0, 8)
    assert one.finished("a", [5, 6], 0)
    plan = one.plan()
    assert plan.cancels == [plan.loads[0].job]
    one.absorb(ReuseReport({plan.loads[0].job: 1}, {plan.loads[0].job: "not wanted"}))
    assert one.catalog.pinned == 0
    assert one.idle


def test_a_reset_forgets_and_gives_new_names() -> None:
    one = half()
    keep(one, 8)
    view = request("running", 40, family="old")
    one.allocated(view, list(range(1, 11)), 0, 0)
    one.reset()
    assert len(one.catalog) == 0
    assert one.catalog.used == 0
    one.step([Progress("running", 20, ())])
    assert one.plan().saves == [], "what was computed with the old weights is not kept under the new name"
    assert one.matched(request("r", 9), 0) == 0
    keep(one, 8)
    assert one.matched(request("r", 9), 0) == 8


def test_a_reset_is_told_once_and_of_a_save_under_way_nothing_is_told() -> None:
    said: list[str] = []

    class Heard(Observer):
        def kept(self, blocks: Sequence[Kept]) -> None:
            said.extend(f"kept {one.index}" for one in blocks)

        def cleared(self) -> None:
            said.append("cleared")

    catalog = OwnCatalog(8, create_policy("lru", 8))
    one = ReuseScheduler(ReuseSettings(SIZE, 1, {"model": "m"}), catalog, observer=Heard())
    keep(one, 4)
    view = request("r", 8)
    one.allocated(view, [1, 2], 0, 0)
    began(one, "r")
    one.finished("r", [1, 2], 8)
    one.reset()
    end(one)
    assert said == ["kept 0", "cleared"]


def test_nothing_is_kept_of_a_request_for_which_no_step_has_computed_anything() -> None:
    """As where somebody else loads for it: the engine counts what is loaded from the first, and the load may fail."""
    one = half()
    view = request("r", 9)
    assert one.matched(view, 0) == 0
    one.allocated(view, [1, 2, 3], 0, 0)
    one.finished("r", [1, 2, 3], 8)
    assert one.plan().empty
    one.matched(view, 0)
    one.allocated(view, [1, 2, 3], 0, 0)
    began(one, "r")
    one.allocated(view, [4, 5, 6], 0, 0)  # it was preempted, and is loaded anew
    one.finished("r", [4, 5, 6], 8)
    assert one.plan().empty


def test_a_request_that_is_refused_waits_for_copies_of_the_blocks_that_it_gets() -> None:
    one = half()
    view = request("a", 8)
    one.allocated(view, [1, 2], 0, 0)
    began(one, "a")
    one.finished("a", [1, 2], 8)
    (saved,) = one.plan().saves
    refused = request("b", 8, prompt_embeds="x")
    one.allocated(refused, [7, 1], 0, 0)
    assert one.plan().fences == [saved.job]
    one.step([Progress("b", 4, [2], first=False)])
    assert one.plan().fences == [saved.job]


def test_a_load_that_fails_is_counted_where_its_request_ends_before_it_is_reported() -> None:
    one = half()
    keep(one, 8)
    one.matched(request("r", 9), 0)
    one.allocated(request("r", 9), [5, 6, 7], 0, 8)
    assert one.finished("r", [5, 6, 7], 8, failed=True)
    end(one, failed=True)
    one.received("r", failed=True)
    assert one.counters["failed_loads"] == 1


def test_a_load_under_way_is_cancelled_by_a_reset() -> None:
    one = half()
    keep(one, 8)
    one.matched(request("a", 9), 0)
    one.allocated(request("a", 9), [5, 6], 0, 8)
    job = one.plan().loads[0].job
    one.reset()
    assert one.plan().cancels == [job]
    one.absorb(ReuseReport({job: 1}, {job: "not wanted"}))
    assert one.catalog.used == 0


def test_a_request_of_an_unknown_kind_is_refused_and_counted() -> None:
    one = half()
    view = request("r", 9, prompt_embeds="x")
    for _ in range(3):  # as an engine does that has no room for it yet
        assert one.matched(view, 0) == 0
    one.allocated(view, [1, 2, 3], 0, 0)
    began(one, "r")
    one.finished("r", [1, 2, 3], 9)
    assert one.plan().empty
    assert one.counters["refused"] == 1


def test_hits_and_misses_are_counted_once_a_request() -> None:
    one = half()
    keep(one, 8)
    before = one.counters.copy()
    for _ in range(5):  # the engine asks at every step until there is room
        assert one.matched(request("a", 17), 0) == 8
    one.allocated(request("a", 17), [5, 6], 0, 8)
    end(one)
    one.received("a", failed=False)
    one.allocated(request("a", 17), [5, 6, 7, 8, 9], 8, 0)
    found = one.counters - before
    assert (found["hit_blocks"], found["missed_blocks"], found["loads"]) == (2, 2, 1)


def test_a_cap_is_kept_and_pinned_blocks_stay() -> None:
    one = half(slots=3)
    keep(one, 12)
    one.matched(request("a", 9), 0)
    one.allocated(request("a", 9), [5, 6], 0, 8)
    keep(one, 12, family="g")
    assert one.catalog.used == 3
    assert one.catalog.pinned == 0
    assert one.catalog.counters["no_room"] == 1
    assert one.counters["saved_blocks"] == 4


def test_of_a_prompt_longer_than_all_slots_the_beginning_is_kept() -> None:
    one = half(slots=3)
    view = request("r", 28)
    one.allocated(view, list(range(1, 8)), 0, 0)
    for computed in (8, 16, 24):
        one.step([Progress("r", computed, ())])
        end(one)
    assert one.catalog.pinned == 0
    assert one.matched(request("again", 28), 0) == 12
