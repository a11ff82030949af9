"""The worker half of reuse: copies blocks into slots and back, and reports each order exactly once."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvbridge.abc.backend import MoveState
from kvbridge.abc.connector import Outcome, WorkerHalf
from kvbridge.connector.durations import Durations
from kvbridge.connector.reuse_plan import CopyOrder, ReusePlan, ReuseReport
from kvbridge.errors import CancelledError, KVBridgeError, SpecMismatchError, TransferTimeoutError
from kvbridge.memory import Pages
from kvbridge.reuse.processes import this_process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbridge.abc.backend import Move
    from kvbridge.abc.pool import SlotPool
    from kvbridge.connector.tier_mover import TierMover
    from kvbridge.memory.layout import CacheLayout

logger = logging.getLogger(__name__)

FENCE_LOOK = 0.0002
"""Seconds between two looks at a copy that a step waits for."""


@dataclass(eq=False)
class _Copy:
    """A copy under way. `move` is None for one that could not begin."""

    order: CopyOrder
    move: Move | None
    nbytes: int
    started: float
    spoilt: KVBridgeError | None = None


class ReuseWorker(WorkerHalf[ReusePlan, ReuseReport]):
    """Carries out orders of reuse in one rank. Called from the engine's worker thread only.

    Args:
        layout: The rank's cache.
        pool: The rank's slots.
        tiers: What moves values between slots and lower tiers, in order.
        timeout: Seconds that a step waits for a copy at most, and after which a load is given up.
    """

    def __init__(
        self, layout: CacheLayout, pool: SlotPool, *, tiers: Sequence[TierMover] = (), timeout: float = 30.0
    ) -> None:
        self.counters: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.durations = Durations()
        self._layout = layout
        self._pool = pool
        self.tiers = tiers
        self._timeout = timeout
        self._saves: dict[int, _Copy] = {}
        self._loads: dict[int, _Copy] = {}
        self._report = ReuseReport(joined={this_process()})
        self._closed = False

    def prepare(self, plan: ReusePlan) -> None:
        """Begin the saves of a plan, and wait for those whose blocks are written to next.

        To be called before the step computes anything: after it other requests own the blocks.
        """
        for order in plan.saves:
            self._saves[order.job] = self._start(order, save=True)
        for job in plan.fences:
            if job in self._saves:
                self._fence(self._saves[job])

    def begin(self, plan: ReusePlan) -> None:
        """Start what else the plan asks for. Never blocks."""
        for order in plan.loads:
            self._loads[order.job] = self._start(order, save=False)
        for job in plan.cancels:
            if job in self._loads:
                self._spoil(self._loads[job], CancelledError("nobody wants the blocks any more"))
        for tier in self.tiers:
            tier.begin(plan)

    def poll(self) -> Outcome:
        """Return which loads have ended since the last call."""
        outcome = Outcome()
        for job, save in list(self._saves.items()):
            ended, error = self._look(save)
            if ended:
                del self._saves[job]
                self._over(save, error, "save")
        for job, load in list(self._loads.items()):
            if time.monotonic() - load.started > self._timeout and load.spoilt is None:
                self._spoil(load, TransferTimeoutError(f"loading blocks took more than {self._timeout:g} s"))
            ended, error = self._look(load)
            if ended:
                del self._loads[job]
                outcome.received.add(load.order.request_id)
                if not self._over(load, error, "load"):
                    outcome.failed.add(load.order.request_id)
        for tier in self.tiers:
            tier.poll(self._report)
        return outcome

    def report(self) -> ReuseReport | None:
        """Return what the scheduler half has to know of orders."""
        if self._report.empty:
            return None
        report, self._report = self._report, ReuseReport()
        return report

    def close(self) -> None:
        """End everything. Idempotent, bounded."""
        if self._closed:
            return
        self._closed = True
        for tier in self.tiers:
            tier.close()
        self._pool.close()

    def loaded(self, request_id: str, pages: Pages) -> None:
        """Take note that a load filled these pages. For subclasses that look at what arrived."""

    # -- inside -----------------------------------------------------------------------------------------------

    def _start(self, order: CopyOrder, *, save: bool) -> _Copy:
        started = time.monotonic()
        try:
            if len(order.block_ids) != len(order.slots):
                raise SpecMismatchError("the blocks that were to be loaded are not kept any more")
            cache = self._layout.pages([order.block_ids] * len(self._layout.groups))
            slots = Pages.of(self._pool.regions, order.slots)
            move = self._pool.copy(cache, slots) if save else self._pool.copy(slots, cache)
            return _Copy(order, move, cache.nbytes, started)
        except KVBridgeError as error:
            return _Copy(order, None, 0, started, error)

    def _look(self, copy: _Copy) -> tuple[bool, KVBridgeError | None]:
        """Say whether a copy has ended, and in which error."""
        if copy.move is None:
            return True, copy.spoilt
        try:
            if copy.move.step() is not MoveState.DONE:
                return False, None
        except KVBridgeError as error:
            return True, copy.spoilt or error
        return True, copy.spoilt

    def _spoil(self, copy: _Copy, why: KVBridgeError) -> None:
        copy.spoilt = why
        if copy.move is not None:
            copy.move.abort()

    def _fence(self, save: _Copy) -> None:
        started = time.monotonic()
        self.counters["fences"] += 1
        while save.move is not None and save.spoilt is None:
            try:
                if save.move.step() is MoveState.DONE:
                    save.move = None
                    break
            except KVBridgeError as error:
                save.spoilt, save.move = error, None
                break
            if time.monotonic() - started > self._timeout:  # its blocks change under it now: it is worth nothing
                self._spoil(save, TransferTimeoutError(f"keeping blocks took more than {self._timeout:g} s"))
            time.sleep(FENCE_LOOK)
        self.durations.add("fence", time.monotonic() - started)

    def _over(self, copy: _Copy, error: KVBridgeError | None, what: str) -> bool:
        self._report.ended[copy.order.job] = 1
        if error is None:
            self.counters[f"{what}s"] += 1
            self.counters[f"{what}_bytes"] += copy.nbytes
            self.durations.add(what, time.monotonic() - copy.started)
            if what == "load":
                self.loaded(copy.order.request_id, self._layout.pages([copy.order.block_ids]))
            return True
        self._report.failed[copy.order.job] = str(error)
        self.counters[f"failed_{what}s"] += 1
        if not isinstance(error, CancelledError):
            self.failures[f"{what}:{type(error).__name__}"] += 1
            logger.warning("blocks could not be %s: %s", "kept" if what == "save" else "loaded", error)
        return False
