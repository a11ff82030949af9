"""Lower tiers as the scheduler half plans for them: searches, what goes down, what comes back, and tiers that fail."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from kvbridge.connector.breaker import Breaker
from kvbridge.connector.reuse_observer import Observer
from kvbridge.connector.reuse_plan import ReusePlan, ReuseReport, TierOrder
from kvbridge.connector.reuse_tiers import BATCH, TierPlanner
from kvbridge.connector.tier_state import TierSettings
from kvbridge.policies import create_policy
from kvbridge.reuse.own_catalog import OwnCatalog

if TYPE_CHECKING:
    from collections.abc import Sequence


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Below:
    """The planner, its clock, and what the workers would find in each tier."""

    def __init__(self, *settings: TierSettings, slots: int = 32) -> None:
        self.clock = Clock()
        self.catalog = OwnCatalog(slots, create_policy("lru", slots))
        self.planner = TierPlanner(settings, self.catalog, 1, itertools.count(1), Observer(), self.clock)
        self.there: list[set[bytes]] = [set() for _ in settings]
        self.fails: set[int] = set()
        self.mute: set[int] = set()
        self.seen: list[tuple[str, int, tuple[bytes, ...]]] = []

    def work(self) -> None:
        """One step: the workers do what is ordered, and report."""
        plan = ReusePlan()
        self.planner.fill(plan)
        for kind in ("lookups", "promotions", "demotions", "removals"):
            for order in getattr(plan, kind):
                self.seen.append((kind, order.tier, order.keys))
                if order.tier not in self.mute:
                    self.report(kind, order)

    def report(self, kind: str, order: TierOrder) -> None:
        there = self.there[order.tier]
        report = ReuseReport({order.job: 1}, found={order.job: 0})
        if order.tier in self.fails:
            report.failed[order.job] = "broken"
        elif kind == "demotions":
            there.update(order.keys)
            report.found[order.job] = len(order.keys)
        elif kind == "removals":
            there.difference_update(order.keys)
        else:
            report.found[order.job] = next(
                (index for index, key in enumerate(order.keys) if key not in there), len(order.keys)
            )
        self.planner.ended(order.job, 1, report)

    def settle(self, name: str, wanted: Sequence[bytes]) -> int:
        """Step until the request need not wait any more; return how many steps that took."""
        for count in range(50):
            if self.planner.looked_up(name, wanted):
                return count
            self.work()
        raise TimeoutError(name)

    def keep(self, wanted: Sequence[bytes]) -> None:
        self.planner.published(self.catalog.publish(self.catalog.reserve(wanted)))


def keys(count: int, start: int = 0) -> list[bytes]:
    return [f"key {index}".encode() for index in range(start, start + count)]


def test_what_is_kept_goes_down_and_comes_back() -> None:
    below = Below(TierSettings("files"), slots=4)
    below.keep(keys(4))
    below.work()
    assert below.there[0] == set(keys(4))
    below.keep(keys(4, 10))
    below.work()
    assert below.catalog.leading(keys(4)) == 0
    below.settle("r", keys(4))
    assert below.catalog.leading(keys(4)) == 4
    assert below.catalog.pinned == 4, "nobody takes it away before its request has it"
    assert below.planner.sources("r") == {0: 4}
    below.planner.release("r")
    assert below.catalog.pinned == 0
    assert below.planner.idle


def test_a_tier_that_was_not_asked_is_not_blamed_for_an_answer_that_does_not_come() -> None:
    below = Below(TierSettings("files"))
    below.catalog.reserve(keys(2))  # another request's blocks, on their way into slots
    for index in range(5):
        below.planner.looked_up(f"r{index}", keys(2))
        below.clock.now += 2
        assert below.planner.looked_up(f"r{index}", keys(2)), "it does not wait any more"
        below.planner.release(f"r{index}")
    below.catalog.clear()
    below.keep(keys(2, 20))
    below.work()
    assert below.there[0] == set(keys(2, 20)), "it is asked as before"


def test_a_prefix_that_lies_in_two_tiers_comes_back_whole() -> None:
    below = Below(TierSettings("files"), TierSettings("far"))
    below.there = [set(keys(3)), set(keys(6))]
    below.settle("r", keys(8))
    assert below.catalog.leading(keys(8)) == 6
    assert below.planner.sources("r") == {0: 3, 1: 3}


def test_what_is_nowhere_is_a_miss_at_once() -> None:
    below = Below(TierSettings("files"))
    assert below.settle("r", keys(8)) == 1
    assert below.catalog.used == 0
    assert [kind for kind, _, _ in below.seen] == ["lookups"]


def test_two_requests_for_the_same_blocks_bring_them_back_once() -> None:
    below = Below(TierSettings("files"))
    below.there = [set(keys(4))]
    assert not below.planner.looked_up("a", keys(4))
    below.work()
    assert not below.planner.looked_up("b", keys(4))
    below.settle("a", keys(4))
    below.settle("b", keys(4))
    assert sum(kind == "promotions" for kind, _, _ in below.seen) == 1


def test_a_mute_tier_costs_a_request_its_timeout_and_is_then_left_alone() -> None:
    below = Below(TierSettings("far", timeout=1.0, failures=2, retry=5.0))
    below.mute = {0}
    for name in "ab":
        assert not below.planner.looked_up(name, keys(2))
        below.work()
        below.clock.now += 1.1
        assert below.planner.looked_up(name, keys(2))
    assert below.planner.counters["timeouts"] == 2
    assert below.planner.looked_up("c", keys(2)), "a tier that failed twice is not asked a third time"
    below.clock.now += 2.1
    assert below.planner.idle, "an engine does not step for ever for a tier that says nothing"


def test_a_tier_that_heals_is_used_again() -> None:
    below = Below(TierSettings("far", failures=1, retry=5.0))
    below.there, below.fails = [set(keys(2))], {0}
    below.settle("a", keys(2))
    assert below.settle("b", keys(2)) == 0
    below.keep(keys(1, 20))
    assert below.planner.idle, "nothing is written to it meanwhile"
    below.fails, below.clock.now = set(), below.clock.now + 5.1
    below.settle("c", keys(2))
    assert below.catalog.leading(keys(2)) == 2


def test_a_failing_tier_gives_its_slots_and_pins_back() -> None:
    below = Below(TierSettings("far", failures=99))
    below.keep(keys(6))
    below.fails = {0}
    below.work()
    assert (below.catalog.pinned, below.planner.counters["not_demoted"]) == (0, 6)
    below.there, below.fails = [set(keys(3, 50))], set()
    below.planner.looked_up("r", keys(3, 50))
    below.work()
    below.fails = {0}
    below.settle("r", keys(3, 50))
    assert (below.catalog.filling, below.catalog.used) == (0, 6)


def test_an_answer_that_comes_after_its_request_has_gone_frees_everything() -> None:
    below = Below(TierSettings("far"))
    below.there = [set(keys(3))]
    below.planner.looked_up("r", keys(3))
    below.work()
    below.planner.release("r")
    below.work()
    assert below.catalog.pinned == 0
    assert below.catalog.filling == 0


def test_an_exclusive_tier_takes_what_is_given_up_and_gives_it_back() -> None:
    below = Below(TierSettings("files", exclusive=True), slots=16)
    below.keep(keys(15))
    below.work()
    assert below.there[0] == set(), "there is room: nothing is moved"
    below.keep(keys(1, 30))
    below.work()
    moved = keys(1, 14)
    assert below.there[0] == set(moved), "one of sixteen slots is emptied ahead, of the end of what is oldest"
    assert len(below.catalog) == 15
    below.settle("r", moved)
    below.work()
    assert moved[0] in below.catalog
    assert moved[0] not in below.there[0]


def test_what_was_used_while_it_was_moved_away_stays() -> None:
    below = Below(TierSettings("files", exclusive=True), slots=4)
    below.mute = {0}
    below.keep(keys(4))
    plan = ReusePlan()
    below.planner.fill(plan)
    moved = plan.demotions[0]
    pins = below.catalog.pin(list(moved.keys))
    below.report("demotions", moved)
    assert moved.keys[0] in below.catalog
    below.catalog.unpin(pins)
    assert below.catalog.pinned == 0
    below.mute = set()
    below.work()
    assert len(below.catalog) == 3


def test_no_more_is_written_at_a_time_than_can_be_heard_of_soon() -> None:
    below = Below(TierSettings("files"), slots=400)
    below.mute = {0}
    below.keep(keys(400))
    below.work()
    assert [len(found) for kind, _, found in below.seen if kind == "demotions"] == [BATCH, BATCH]
    assert below.catalog.pinned == 2 * BATCH


def test_a_breaker_waits_longer_each_time_and_closes_on_success() -> None:
    clock = Clock()
    breaker = Breaker(2, 5.0, clock)
    assert not breaker.failed()
    assert not breaker.open
    assert breaker.failed()
    assert breaker.open
    clock.now += 5.1
    assert not breaker.open, "one question is let through"
    assert breaker.failed()
    clock.now += 5.1
    assert breaker.open
    clock.now += 5.0
    breaker.succeeded()
    assert not breaker.failed()
    assert breaker.opened == 2
