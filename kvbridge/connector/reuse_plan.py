"""What the scheduler half of reuse asks of the workers in one step, and what they report back. Plain picklable data.

The engine carries these objects between its own processes, by its own means; they never come from a peer.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class CopyOrder:
    """Copy blocks of the cache into slots, or back. Every rank does so, and reports `job` once.

    Attributes:
        job: Number of the order, never used twice.
        block_ids: Blocks of the cache.
        slots: As many slots.
        request_id: For a load the request, which is reported as received as well; else empty.
    """

    job: int
    block_ids: tuple[int, ...]
    slots: tuple[int, ...]
    request_id: str = ""


@dataclass(frozen=True)
class TierOrder:
    """Move values between slots and a lower tier. Every rank does so, and reports `job` once.

    Attributes:
        job: Number of the order, never used twice.
        tier: Which tier, counted from 0 for the first below the slots.
        keys: Names of the values.
        slots: As many slots; none where values are only looked up or removed.
    """

    job: int
    tier: int
    keys: tuple[bytes, ...]
    slots: tuple[int, ...] = ()


@dataclass
class ReusePlan:
    """One step's orders.

    Attributes:
        saves: Blocks to copy into slots, before the step computes anything.
        loads: Slots to copy into blocks.
        fences: Saves that must have ended before the step computes anything: it will write to their blocks.
        cancels: Loads that are not wanted any more; they are reported all the same, as failed.
        lookups: Values to look for in a tier.
        promotions: Values to read out of a tier.
        demotions: Values to write to a tier.
        removals: Values to remove from a tier.
    """

    saves: list[CopyOrder] = field(default_factory=list)
    loads: list[CopyOrder] = field(default_factory=list)
    fences: list[int] = field(default_factory=list)
    cancels: list[int] = field(default_factory=list)
    lookups: list[TierOrder] = field(default_factory=list)
    promotions: list[TierOrder] = field(default_factory=list)
    demotions: list[TierOrder] = field(default_factory=list)
    removals: list[TierOrder] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not any(vars(self).values())


@dataclass
class ReuseReport:
    """What the workers have to say of orders, summed over ranks.

    Attributes:
        ended: For each job the number of ranks in which it has ended.
        failed: For each job that failed somewhere the first failing rank's reason.
        found: For each job that looked for, read or wrote values of a tier: the fewest of its keys, counted from the
            first, that a rank found or moved.
        joined: Workers that have slots and said so for the first time, as `(process id, start time)`.
    """

    ended: dict[int, int] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    found: dict[int, int] = field(default_factory=dict)
    joined: set[tuple[int, int]] = field(default_factory=set)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to say."""
        return not (self.ended or self.joined)

    def merge(self, other: ReuseReport) -> ReuseReport:
        """Add another rank's report."""
        for job, count in other.ended.items():
            self.ended[job] = self.ended.get(job, 0) + count
        for job, reason in other.failed.items():
            self.failed.setdefault(job, reason)
        for job, count in other.found.items():
            self.found[job] = min(count, self.found.get(job, count))
        self.joined |= other.joined
        return self
