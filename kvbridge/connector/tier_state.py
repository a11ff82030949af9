"""What the scheduler half knows of lower tiers: each of them, who searches them, and what they have been told to do."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbridge.connector.breaker import Breaker
    from kvbridge.reuse.catalog import Place


@dataclass(frozen=True)
class TierSettings:
    """One lower tier.

    Attributes:
        name: For log lines.
        exclusive: Whether a block moves to the tier when it is given up here, and away from it when it comes back.
        timeout: Seconds that a request waits for the tier.
        failures: Failures in a row after which it is left alone.
        retry: Seconds until it is tried again, at first.
    """

    name: str
    exclusive: bool = False
    timeout: float = 1.0
    failures: int = 3
    retry: float = 5.0


@dataclass(eq=False)
class Tier:
    """A lower tier, and what is to be written to it."""

    settings: TierSettings
    breaker: Breaker
    waiting: deque[bytes] = field(default_factory=deque)
    writing: int = 0


@dataclass(eq=False)
class Search:
    """A request that waits until its blocks are in slots, or are known not to be anywhere."""

    keys: Sequence[bytes]
    deadline: float
    tier: int = 0
    job: int = 0
    over: bool = False
    pinned: list[Place] = field(default_factory=list)
    sources: Counter[int] = field(default_factory=Counter)


@dataclass(eq=False)
class Order:
    """An order under way, on so many ranks."""

    kind: str
    tier: int
    left: int
    places: list[Place]
    request_id: str
    keys: tuple[bytes, ...]
    done: int
    deadline: float
