"""The connector's two halves: what an engine's scheduler and its workers drive. Engine-neutral.

An engine plans in one process and computes in others. The *scheduler half* is a pure state machine: it never blocks,
moves no bytes, and turns the life of requests into *plans* for the workers. A *worker half* carries out plans with a
LookupBuffer and reports. Both are called from their engine's thread only.

Rules: a completion is reported exactly once for each request and attempt, also for a cancelled or failed load; after
it the memory is the engine's. No method raises for anything that a peer or a client did.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

P = TypeVar("P")
R = TypeVar("R")


@dataclass(frozen=True)
class RequestView:
    """What the scheduler half needs to know of a request.

    Attributes:
        id: The engine's own id of the request. It never leaves the engine.
        num_tokens: Tokens of the prompt.
        params: The transfer parameters that came with the request, as sent by the client or router; unchecked.
        digest: Computes the digest of what the prompt's KV depends on. Called at most once a request.
        plain: Whether the digest covers everything: false for prompts of embeddings, which are not handed over.
    """

    id: str
    num_tokens: int
    params: Mapping[str, Any] | None
    digest: Callable[[], bytes]
    plain: bool = True


@dataclass
class Outcome:
    """What a worker half has to tell its engine in this step.

    Attributes:
        sent: Requests whose blocks may be freed.
        received: Requests whose load has ended, in success or failure.
        failed: Those of `received` whose load failed.
    """

    sent: set[str] = field(default_factory=set)
    received: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)


class SchedulerHalf(ABC, Generic[P, R]):
    """Plans hand-overs for an engine's scheduler. `P` is the plan for workers, `R` their report."""

    @abstractmethod
    def matched(self, request: RequestView, local_tokens: int) -> int | None:
        """Say how many tokens beyond `local_tokens` can be loaded; None: ask again later. Pure for the engine."""

    @abstractmethod
    def allocated(self, request: RequestView, block_ids: Sequence[int], local_tokens: int, tokens: int) -> None:
        """Take note that `block_ids` hold the request, and that `tokens` after `local_tokens` are to be loaded."""

    @abstractmethod
    def finished(
        self, request: RequestView, block_ids: Sequence[int], *, completed: bool, failed: bool = False
    ) -> tuple[bool, dict[str, Any] | None]:
        """Take note that a request ended.

        Args:
            request: The request.
            block_ids: Its blocks.
            completed: Whether all of the prompt's KV was computed.
            failed: Whether the engine ended it with an error, as after a load that failed.

        Returns:
            Whether its blocks are still needed (until a worker reports it as sent), and the parameters to return to
            the client.
        """

    @abstractmethod
    def plan(self) -> P:
        """Return what the workers have to do next, and forget it."""

    @abstractmethod
    def absorb(self, report: R) -> None:
        """Take in what the workers report."""


class WorkerHalf(ABC, Generic[P, R]):
    """Carries out plans in one worker."""

    @abstractmethod
    def begin(self, plan: P) -> None:
        """Start what the plan asks for. Never blocks."""

    @abstractmethod
    def poll(self) -> Outcome:
        """Return what has ended since the last call."""

    @abstractmethod
    def report(self) -> R | None:
        """Return what the scheduler half has to know, and forget it; None for nothing."""

    @abstractmethod
    def close(self) -> None:
        """Cancel everything and release it. Idempotent, bounded."""
