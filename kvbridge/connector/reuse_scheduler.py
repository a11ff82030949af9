"""The scheduler half of reuse: which blocks are kept, which are loaded back, and when their memory is whose.

A request's full blocks are saved once they were computed, one step later, by a copy that the step does not wait for:
if the engine gives such a block to somebody else meanwhile, the step that would write to it is *fenced*, that is, the
copy ends first. A request that comes with a prefix that is kept loads it before it is computed.
"""

from __future__ import annotations

import itertools
import logging
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvbridge.connector.reuse_copies import Copies
from kvbridge.connector.reuse_observer import Kept, Observer
from kvbridge.connector.reuse_plan import ReusePlan, ReuseReport
from kvbridge.connector.reuse_tiers import TierPlanner
from kvbridge.errors import UnsupportedError
from kvbridge.reuse.keys import block_keys, namespace, narrowed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvbridge.connector.reuse_view import Progress, ReusableRequest, ReuseSettings
    from kvbridge.connector.tier_state import TierSettings
    from kvbridge.reuse.catalog import Catalog, Place

logger = logging.getLogger(__name__)

NEVER = 1 << 62
"""More blocks than any request has: none of it is saved any more."""


@dataclass(eq=False)
class _Request:
    """A request that may use, or add to, what is kept."""

    view: ReusableRequest
    space: bytes
    keys: list[bytes] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    saved: int = 0
    load: int = 0
    computing: bool = False
    barred: bool = False
    asked: bool = False
    held: list[Place] = field(default_factory=list)
    sources: dict[int, int] = field(default_factory=dict)


class ReuseScheduler:
    """Plans what is kept. Called from the engine's scheduler thread only; never blocks.

    Args:
        settings: What it has to know of its engine.
        catalog: Which key is in which slot.
        tiers: The tiers below the slots, the fastest first.
        observer: Hears which blocks come and go.
    """

    def __init__(
        self,
        settings: ReuseSettings,
        catalog: Catalog,
        tiers: Sequence[TierSettings] = (),
        observer: Observer | None = None,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self.catalog = catalog
        self._settings = settings
        self._numbers = itertools.count(1)
        self._observer = observer or Observer()
        self.tiers = TierPlanner(tiers, catalog, settings.ranks, self._numbers, self._observer) if tiers else None
        self._space = namespace(settings.facts, "")
        self._requests: dict[str, _Request] = {}
        self._copies = Copies(catalog, settings.ranks, self._numbers, self._observer, self.counters)
        self._plan = ReusePlan()

    @property
    def idle(self) -> bool:
        """Whether nothing is under way, and the workers have no orders to hear."""
        return self._plan.empty and self._copies.idle and (self.tiers is None or self.tiers.idle)

    # -- what comes in ----------------------------------------------------------------------------------------

    def matched(self, view: ReusableRequest, local_tokens: int) -> int | None:
        """Say how many tokens beyond `local_tokens` can be loaded; None: ask again later. Pure for the engine."""
        request = self._known(view)
        if not request.space or request.barred or request.load:
            return 0
        request.asked = True
        first = local_tokens // self._settings.block_size
        keys = self._keys(request)[: (view.num_tokens() - 1) // self._settings.block_size]
        if len(keys) <= first:
            return 0
        if self._settings.waits and self._copies.loading(keys[first]):
            return None
        found = self.catalog.leading(keys, first)
        if self.tiers is not None and first + found < len(keys):
            if not self.tiers.looked_up(view.id, keys[first + found :]):
                return None
            found = self.catalog.leading(keys, first)
        if self.catalog.shared:
            found = self._hold(request, keys[first : first + found])
        tokens = found * self._settings.block_size
        return tokens if tokens >= self._settings.min_tokens else 0

    def _hold(self, request: _Request, keys: list[bytes]) -> int:
        """See to it that nobody else gives up what this request is told it can load. Returns how much of it."""
        if [place.key for place in request.held] != keys:
            self._let_go(request)
            request.held = self.catalog.hold(keys)
        held = [place.key for place in request.held]
        return next((index for index, key in enumerate(keys) if held[index : index + 1] != [key]), len(keys))

    def _let_go(self, request: _Request) -> None:
        held, request.held = request.held, []
        self.catalog.unpin(held)

    def allocated(self, view: ReusableRequest, block_ids: Sequence[int], local_tokens: int, tokens: int) -> None:
        """Take note of a request's blocks, and order the load of `tokens` after the first `local_tokens`."""
        request = self._known(view)
        request.blocks, request.saved, request.computing = list(block_ids), 0, False
        first, size = local_tokens // self._settings.block_size, self._settings.block_size
        self._copies.fence(self._plan, block_ids[first:])
        if request.asked:
            self._count(request, first, tokens // size)
        if tokens and not request.load:
            last = first + tokens // size
            request.load = self._copies.load(
                self._plan, view.id, request.keys[first:last], tuple(request.blocks[first:last]), request.held
            )
        request.asked = False
        self._let_go(request)
        if self.tiers is not None:
            request.sources = self.tiers.sources(view.id)
            self.tiers.release(view.id)

    def sources(self, request_id: str) -> dict[int, int]:
        """Return how many blocks of a request that was allocated came from each lower tier, by number from 0."""
        request = self._requests.get(request_id)
        return request.sources if request is not None else {}

    def _count(self, request: _Request, first: int, count: int) -> None:
        wanted = (request.view.num_tokens() - 1) // self._settings.block_size - first
        self.counters["hit_blocks"] += count
        self.counters["missed_blocks"] += max(0, wanted - count)

    def step(self, progress: Iterable[Progress]) -> None:
        """Take note of what a step computes. Called before it, with the plan for it to come."""
        size = self._settings.block_size
        for now in progress:
            request = self._requests.get(now.request_id)
            if request is None:  # what it writes to may still be copied for another one
                self._copies.fence(self._plan, now.blocks)
                continue
            request.computing = True
            if now.anew:
                request.blocks = list(now.blocks)
            elif now.blocks:
                request.blocks.extend(now.blocks)
            if now.blocks:
                new = request.blocks[now.computed // size :] if now.anew else now.blocks
                self._copies.fence(self._plan, new)
            if now.computed // size > request.saved and not now.first:
                self._save(request, now.computed)
        if self.tiers is not None:
            self.tiers.fill(self._plan)
        self._copies.tell_of_evictions()

    def finished(self, request_id: str, block_ids: Sequence[int], computed: int, *, failed: bool = False) -> bool:
        """Take note that a request ended, with `computed` tokens of KV in its blocks.

        They count only if a step has computed something for it: before that the engine says of a load, whoever makes
        it, that its tokens are there as soon as it has blocks for them, and it may have failed or been cut short.

        Returns:
            Whether its load is still under way, and will be reported as received.
        """
        request = self._requests.pop(request_id, None)
        if self.tiers is not None:
            self.tiers.release(request_id)
        if request is None:
            return False
        self._let_go(request)
        if request.load:
            self.counters["failed_loads"] += failed  # with vLLM's policy "fail" it ends before its load is reported
            self._plan.cancels.append(request.load)
            return True
        if request.computing:
            request.blocks = list(block_ids)
            self._save(request, computed)
        return False

    def received(self, request_id: str, *, failed: bool) -> None:
        """Take note that a load ended on all ranks, as the engine knows now too."""
        request = self._requests.get(request_id)
        if request is None or not request.load:
            return
        request.load = 0
        if failed:
            request.barred = True  # computed then: asking again could go on for ever
            self.counters["failed_loads"] += 1
        else:
            self.counters["loads"] += 1

    def absorb(self, report: ReuseReport) -> None:
        """Take in what the workers report."""
        if report.joined:
            self.catalog.joined(report.joined)
        for number, ranks in report.ended.items():
            if number in self._copies:
                published = self._copies.ended(number, ranks, report.failed.get(number, ""))
                if self.tiers is not None and published:
                    self.tiers.published(published)
            elif self.tiers is not None:
                self.tiers.ended(number, ranks, report)

    def reset(self) -> None:
        """Forget everything: the weights may be others now. What is under way comes to nothing."""
        self.counters["resets"] += 1
        self._space = namespace(self._settings.facts, uuid.uuid4().hex)
        self.catalog.clear()
        self._observer.cleared()
        if self.tiers is not None:
            self.tiers.clear()
        for request in self._requests.values():
            request.space = request.space and self._space_of(request.view)
            request.keys.clear()
            request.saved = NEVER  # what it has computed so far is of the old weights, unless it starts anew
            if request.load:
                self._plan.cancels.append(request.load)
        self._copies.forget()

    def plan(self) -> ReusePlan:
        """Return what the workers have to do next, and forget it."""
        plan, self._plan = self._plan, ReusePlan()
        return plan

    # -- inside -----------------------------------------------------------------------------------------------

    def _known(self, view: ReusableRequest) -> _Request:
        request = self._requests.get(view.id)
        if request is None:
            request = self._requests[view.id] = _Request(view, self._space_of(view))
        return request

    def _space_of(self, view: ReusableRequest) -> bytes:
        """Return what the keys of a request start from; nothing for one of a kind that is not kept."""
        try:
            return narrowed(self._space, view.dimensions())
        except UnsupportedError as error:
            self.counters["refused"] += 1
            logger.warning("request %s: %s", view.id, error)
            return b""

    def _keys(self, request: _Request) -> list[bytes]:
        hashes = request.view.hashes()
        if len(request.keys) < len(hashes):
            request.keys.extend(block_keys(request.space, hashes[len(request.keys) :]))
        return request.keys

    def _save(self, request: _Request, computed: int) -> None:
        """Order copies of those full blocks that are not kept yet."""
        if not request.space:
            return
        tokens = computed if self._settings.decoded else min(computed, request.view.num_prompt_tokens)
        keys = self._keys(request)
        start, end = request.saved, min(tokens // self._settings.block_size, len(request.blocks), len(keys))
        if end <= start:
            return
        request.saved = end
        # What comes before must not make room for what comes after it: without its beginning a prefix is of no use.
        full = self.catalog.used + end - start > self.catalog.slots
        before = self.catalog.hold(keys[:start]) if full else []
        places = self.catalog.reserve(keys[start:end])
        self.catalog.unpin(before)
        if not places:
            return
        index_of = dict(zip(keys[start:end], range(start, end), strict=True))
        kept = [Kept(key, request.view.origin, index_of[key]) for key, _ in places]
        self._copies.save(self._plan, places, tuple(request.blocks[one.index] for one in kept), kept)
