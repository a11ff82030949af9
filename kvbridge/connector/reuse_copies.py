"""Copies under way between the cache and slots, as the scheduler half sees them, and what comes of them."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvbridge.connector.reuse_plan import CopyOrder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kvbridge.connector.reuse_observer import Kept, Observer
    from kvbridge.connector.reuse_plan import ReusePlan
    from kvbridge.reuse.catalog import Catalog, Place

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Job:
    """A copy under way, on so many ranks."""

    places: list[Place]
    blocks: tuple[int, ...]
    left: int
    request_id: str = ""
    failed: str = ""
    kept: list[Kept] = field(default_factory=list)


class Copies:
    """The copies of all requests.

    Args:
        catalog: Which key is in which slot.
        ranks: Number of workers: each makes every copy.
        numbers: Numbers for orders, never the same twice.
        observer: Hears which blocks come and go.
        counters: Gets `saved_blocks` and `failed_saves`.
    """

    def __init__(
        self,
        catalog: Catalog,
        ranks: int,
        numbers: Iterator[int],
        observer: Observer,
        counters: Counter[str],
    ) -> None:
        self._catalog = catalog
        self._ranks = ranks
        self._numbers = numbers
        self._observer = observer
        self._counters = counters
        self._jobs: dict[int, _Job] = {}
        self._reading: dict[int, set[int]] = {}
        self._loading: Counter[bytes] = Counter()

    def __contains__(self, number: int) -> bool:
        return number in self._jobs

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._jobs

    def loading(self, key: bytes) -> bool:
        """Whether a request loads this key right now."""
        return key in self._loading

    def save(self, plan: ReusePlan, places: list[Place], blocks: tuple[int, ...], kept: list[Kept]) -> None:
        """Order blocks to be copied into slots that were reserved."""
        number = next(self._numbers)
        self._jobs[number] = _Job(places, blocks, self._ranks, kept=kept)
        for block in blocks:
            self._reading.setdefault(block, set()).add(number)
        plan.saves.append(CopyOrder(number, blocks, tuple(slot for _, slot in places)))

    def load(
        self, plan: ReusePlan, request_id: str, keys: Sequence[bytes], blocks: tuple[int, ...], held: list[Place]
    ) -> int:
        """Order keys to be copied into a request's blocks.

        Args:
            plan: Of the step.
            request_id: Whose blocks they are.
            keys: What is wanted.
            blocks: Where to.
            held: Places that are pinned for it already. If they are those of the keys, their pins are the order's.

        Returns:
            The number of the order.
        """
        number = next(self._numbers)
        if [place.key for place in held[: len(keys)]] == list(keys):
            places = held[: len(keys)]
            del held[: len(keys)]
            self._catalog.use(places)
        else:
            places = self._catalog.pin(keys)  # fewer than keys: every rank says that it failed, and why
        self._jobs[number] = _Job(places, blocks, self._ranks, request_id)
        self._loading.update(place.key for place in places)
        plan.loads.append(CopyOrder(number, blocks, tuple(slot for _, slot in places), request_id))
        return number

    def fence(self, plan: ReusePlan, blocks: Iterable[int]) -> None:
        """Keep the next step from writing to blocks that are still being copied."""
        if not self._reading:
            return
        for block in blocks:
            plan.fences.extend(job for job in self._reading.get(block, ()) if job not in plan.fences)

    def ended(self, number: int, ranks: int, failed: str) -> list[Place]:
        """Take note that a copy has ended on so many ranks. Returns what can be found from now on."""
        job = self._jobs[number]
        job.left -= ranks
        job.failed = job.failed or failed
        if job.left > 0:
            return []
        del self._jobs[number]
        if job.request_id:
            self._catalog.unpin(job.places)
            self._loading -= Counter(place.key for place in job.places)
            return []
        return self._saved(number, job)

    def forget(self) -> None:
        """Let nobody wait for loads that are under way, nor hear of saves: they come to nothing."""
        self._loading.clear()
        for job in self._jobs.values():
            job.kept.clear()

    def tell_of_evictions(self) -> None:
        """Tell the observer what was given up."""
        gone = self._catalog.drain()
        if gone:
            self._observer.gone(gone)

    def _saved(self, number: int, job: _Job) -> list[Place]:
        for block in job.blocks:
            readers = self._reading.get(block, set())
            readers.discard(number)
            if not readers:
                self._reading.pop(block, None)
        if job.failed:
            self._catalog.abandon(job.places)
            self._counters["failed_saves"] += 1
            logger.warning("blocks could not be kept: %s", job.failed)
            return []
        published = self._catalog.publish(job.places)
        self._counters["saved_blocks"] += len(published)
        found = {place.key for place in published}
        self.tell_of_evictions()
        self._observer.kept([block for block in job.kept if block.key in found])
        return published
