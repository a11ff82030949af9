"""What goes to lower tiers, and what comes back: planned in the scheduler's process, carried out by the workers.

A lower tier is a store. Its values are never loaded into the cache directly: they come back into slots first, while
their request waits, and is then a hit like any other. So a tier that is slow or dead costs a request some time at
most, and never a step; after a few failures it is left alone for a while.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

from kvbridge.connector.breaker import Breaker
from kvbridge.connector.reuse_plan import TierOrder
from kvbridge.connector.tier_state import Order, Search, Tier, TierSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvbridge.connector.reuse_observer import Observer
    from kvbridge.connector.reuse_plan import ReusePlan, ReuseReport
    from kvbridge.reuse.catalog import Catalog, Place

logger = logging.getLogger(__name__)

BATCH = 64
"""Blocks that are written to a tier in one order, so that it is heard soon whether the tier is well."""

ORDERS = 2
"""Orders to write that a tier has at one time."""

SPARE = 16
"""One of so many slots is kept empty where blocks come into a tier only when they are given up here."""


class TierPlanner:
    """Plans for the tiers below the slots. Called from the engine's scheduler thread only; never blocks.

    Args:
        settings: The tiers, the fastest first.
        catalog: Which key is in which slot.
        ranks: Number of workers.
        numbers: Numbers for orders, never the same twice.
        observer: Hears which blocks come and go.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        settings: Sequence[TierSettings],
        catalog: Catalog,
        ranks: int,
        numbers: Iterator[int],
        observer: Observer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._tiers = [Tier(one, Breaker(one.failures, one.retry, clock)) for one in settings]
        self._catalog = catalog
        self._ranks = ranks
        self._numbers = numbers
        self._observer = observer
        self._clock = clock
        self._searches: dict[str, Search] = {}
        self._orders: dict[int, Order] = {}
        self._ready: list[tuple[str, TierOrder]] = []

    @property
    def idle(self) -> bool:
        """Whether nothing is under way that will end, or to be ordered."""
        now = self._clock()
        return not (
            self._ready
            or any(order.deadline > now for order in self._orders.values())
            or any(self._writable(tier) for tier in self._tiers)
        )

    # -- requests ---------------------------------------------------------------------------------------------

    def looked_up(self, request_id: str, keys: Sequence[bytes]) -> bool:
        """Look for keys, none of which is in a slot; say whether there is nothing more to wait for.

        What was found meanwhile is in slots, and stays there until `release`.
        """
        search = self._searches.get(request_id)
        if search is None:
            waited = max(tier.settings.timeout for tier in self._tiers)
            search = self._searches[request_id] = Search(keys, self._clock() + waited)
        if search.over:
            return True
        if self._clock() > search.deadline:
            self._timed_out(search)
            return True
        if not search.job:
            self._go_on(request_id, search)
        return search.over

    def sources(self, request_id: str) -> dict[int, int]:
        """Return how many blocks came from each tier for a request, by the tier's number from 0."""
        search = self._searches.get(request_id)
        return dict(search.sources) if search is not None else {}

    def release(self, request_id: str) -> None:
        """Take note that a request does not wait any more: it has its blocks, or is over."""
        search = self._searches.pop(request_id, None)
        if search is not None:
            self._catalog.unpin(search.pinned)

    def _go_on(self, request_id: str, search: Search) -> None:
        """Ask the next tier that is well for what is still missing."""
        missing = search.keys[self._catalog.leading(search.keys) :]
        if missing and self._catalog.known(missing[0]):
            return  # it is on its way, for somebody else
        while missing and search.tier < len(self._tiers):
            if not self._tiers[search.tier].breaker.open:
                search.job = self._order("lookups", search.tier, [], missing, request_id)
                return
            self.counters["skipped"] += 1
            search.tier += 1
        search.over = True

    def _timed_out(self, search: Search) -> None:
        search.over = True
        self.counters["timeouts"] += 1
        if search.job and search.tier < len(self._tiers):  # else it was not asked: another request saves the block
            self._failed(search.tier, "no answer in time")

    # -- what comes and goes ----------------------------------------------------------------------------------

    def published(self, places: Sequence[Place]) -> None:
        """Take note of blocks that were kept: inclusive tiers get them too."""
        for tier in self._tiers:
            if not tier.settings.exclusive and not tier.breaker.open:
                tier.waiting.extend(place.key for place in places)

    def fill(self, plan: ReusePlan) -> None:
        """Move orders to this step's plan."""
        self._look_for_overdue()
        for index, tier in enumerate(self._tiers):
            if tier.breaker.open:
                self.counters["not_demoted"] += len(tier.waiting)
                tier.waiting.clear()
            while self._writable(tier):
                places = self._catalog.withdraw(SPARE, BATCH) if tier.settings.exclusive else self._waiting(tier)
                if not places:
                    break
                tier.writing += 1
                self._order("demotions", index, places, [place.key for place in places])
        for kind, order in self._ready:
            getattr(plan, kind).append(order)
        self._ready.clear()

    def _writable(self, tier: Tier) -> bool:
        if tier.breaker.open or tier.writing >= ORDERS:
            return False
        return self._catalog.short(SPARE) if tier.settings.exclusive else bool(tier.waiting)

    def _look_for_overdue(self) -> None:
        """Count a tier that does not answer at all as one that fails. What it was to do stays with it."""
        now = self._clock()
        for order in self._orders.values():
            if 0 < order.deadline <= now:
                order.deadline = 0
                self._failed(order.tier, "no answer at all")

    def _waiting(self, tier: Tier) -> list[Place]:
        found: list[Place] = []
        while tier.waiting and len(found) < BATCH:
            key = tier.waiting.popleft()
            if key in self._catalog:
                found.extend(self._catalog.hold([key]))
            else:
                self.counters["not_demoted"] += 1
        return found

    def ended(self, number: int, ranks: int, report: ReuseReport) -> None:
        """Take in that workers have ended an order."""
        order = self._orders.get(number)
        if order is None:
            return
        order.left -= ranks
        order.done = min(order.done, report.found.get(number, 0))
        if number in report.failed:
            self._failed(order.tier, report.failed[number])
        if order.left > 0:
            return
        del self._orders[number]
        if number not in report.failed:
            self._tiers[order.tier].breaker.succeeded()
        getattr(self, f"_{order.kind}_ended")(order, order.done)

    def _lookups_ended(self, order: Order, found: int) -> None:
        search = self._searches.get(order.request_id)
        if search is None:
            return
        search.job = 0
        if search.over:
            return
        if search.tier == len(self._tiers) - 1:
            self._observer.gone_below(order.keys[found : found + 1])  # of those after it nothing is known
        places = self._catalog.reserve(order.keys[:found]) if found else []
        if places:
            search.job = self._order(
                "promotions", order.tier, places, [place.key for place in places], order.request_id
            )
            return
        search.tier += 1
        self._go_on(order.request_id, search)

    def _promotions_ended(self, order: Order, moved: int) -> None:
        published = self._catalog.publish(order.places[:moved])
        self._catalog.abandon(order.places[moved:])
        self.counters["promoted_blocks"] += len(published)
        self._observer.back([place.key for place in published])
        if self._tiers[order.tier].settings.exclusive and published:
            self._order("removals", order.tier, [], [place.key for place in published])
            self._observer.gone_below([place.key for place in published])
        search = self._searches.get(order.request_id)
        if search is None:
            return
        search.job = 0
        search.pinned.extend(self._catalog.hold([place.key for place in published]))
        search.sources[order.tier] += len(published)
        search.tier += 1
        if not search.over:
            self._go_on(order.request_id, search)

    def _demotions_ended(self, order: Order, moved: int) -> None:
        tier = self._tiers[order.tier]
        tier.writing -= 1
        self.counters["demoted_blocks"] += moved
        self.counters["not_demoted"] += len(order.places) - moved
        if moved == len(order.places):
            self._observer.kept_below(order.keys)
        if tier.settings.exclusive:
            self._catalog.give_up(order.places)
        else:
            self._catalog.unpin(order.places)

    def _removals_ended(self, order: Order, moved: int) -> None:
        """Nothing waits for it."""

    def clear(self) -> None:
        """Forget everything that was kept: its keys are asked for never again."""
        for tier in self._tiers:
            tier.waiting.clear()
        for search in self._searches.values():
            search.over = True

    # -- inside -----------------------------------------------------------------------------------------------

    def _order(self, kind: str, tier: int, places: list[Place], keys: Sequence[bytes], request_id: str = "") -> int:
        number = next(self._numbers)
        found = tuple(keys)
        # A worker gives up after `timeout`; it says so later only if the store does not let go of memory.
        deadline = self._clock() + 2 * self._tiers[tier].settings.timeout
        self._orders[number] = Order(kind, tier, self._ranks, places, request_id, found, len(found), deadline)
        self._ready.append((kind, TierOrder(number, tier, found, tuple(place.slot for place in places))))
        return number

    def _failed(self, tier: int, why: str) -> None:
        self.counters["failures"] += 1
        if self._tiers[tier].breaker.failed():
            logger.warning(
                "the tier %r is left alone for a while, requests are computed instead: %s",
                self._tiers[tier].settings.name,
                why,
            )
