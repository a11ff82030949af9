"""What the scheduler half asks of the workers in one step, and what they report back. Plain picklable data.

The engine carries these objects between its own processes, by its own means; they never come from a peer.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class RemoteKey:
    """A value at a prefill engine: one on each rank, under one id.

    Attributes:
        id: The value's id.
        addresses: Control address of each rank.
        generations: Incarnation of each rank.
        digest: Digest of the prompt.
    """

    id: str
    addresses: tuple[str, ...]
    generations: tuple[int, ...]
    digest: bytes

    @property
    def engine(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Which incarnation of which engine has it."""
        return self.addresses, self.generations


@dataclass(frozen=True)
class SaveOrder:
    """Hand these blocks over under a key, then report the request as sent.

    `to` names the control address of each rank of the engine that they are pushed to, if any.
    """

    request_id: str
    key: str
    digest: bytes
    block_ids: tuple[int, ...]
    to: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClaimOrder:
    """Ask the prefill engine to hold a value; report the outcome under the number `claim`."""

    claim: int
    key: RemoteKey


@dataclass(frozen=True)
class LoadOrder:
    """Fill these blocks from a claim, leaving out the value's first `skip` blocks; report the request as received."""

    request_id: str
    claim: int
    block_ids: tuple[int, ...]
    skip: int


@dataclass
class Plan:
    """One step's orders.

    Attributes:
        saves: Values to insert.
        claims: Values to ask for.
        loads: Claims to fill.
        releases: Claims that are not wanted any more.
        cancels: Requests whose load is not wanted any more; they are still reported as received.
        drops: Remote values that nobody wants, never claimed.
        layers: Prompts whose last tokens this step computes, to be handed over layer by layer meanwhile. The same order
            comes among `saves` when the request has ended.
        withdrawals: Requests that were handed over so, and whose value nobody will ask for; they are reported as sent.
        fences: Requests that were handed over so, and whose blocks this step may write to: nothing may read them.
    """

    saves: list[SaveOrder] = field(default_factory=list)
    claims: list[ClaimOrder] = field(default_factory=list)
    loads: list[LoadOrder] = field(default_factory=list)
    releases: list[int] = field(default_factory=list)
    cancels: list[str] = field(default_factory=list)
    drops: list[RemoteKey] = field(default_factory=list)
    layers: list[SaveOrder] = field(default_factory=list)
    withdrawals: list[str] = field(default_factory=list)
    fences: list[str] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not any(vars(self).values())


@dataclass
class Report:
    """What the workers have to say of claims, summed over ranks.

    Attributes:
        granted: For each claim the number of ranks that have it.
        refused: For each claim the first failing rank's reason, as `(code, message)`.
    """

    granted: dict[int, int] = field(default_factory=dict)
    refused: dict[int, tuple[str, str]] = field(default_factory=dict)

    def merge(self, other: Report) -> Report:
        """Add another rank's report."""
        for claim, count in other.granted.items():
            self.granted[claim] = self.granted.get(claim, 0) + count
        for claim, reason in other.refused.items():
            self.refused.setdefault(claim, reason)
        return self
