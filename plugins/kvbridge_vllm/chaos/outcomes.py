"""What became of each request, and what it says of the promise: nothing here starts an engine."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvbridge_vllm.chaos.schedule import Fault

Result = Literal["right", "wrong", "error", "left", "stranded", "hang"]

BROKEN: Mapping[Result, str] = {"wrong": "wrong tokens", "hang": "no answer"}
"""Results that break the promise."""

WAITED: frozenset[Result] = frozenset(("right", "wrong", "error", "hang"))
"""Results of requests whose client waited for an answer."""


@dataclass(frozen=True)
class Outcome:
    """What became of one request.

    Attributes:
        number: Of the request; below 0 for those that are made after the faults.
        way: How it went.
        started: Seconds after the beginning.
        ended: Likewise.
        result: What became of it.
        detail: What the client was told, or which tokens came in place of which.
        engines: Which had a part in it, where that is known.
    """

    number: int
    way: str
    started: float
    ended: float
    result: Result
    detail: str = ""
    engines: tuple[str, ...] = ()


@dataclass
class Struck:
    """A fault as it happened.

    Attributes:
        fault: As it was planned.
        began: Seconds after the beginning.
        ended: When it ceased: for a kill, when the engine was healthy again. None until then.
    """

    fault: Fault
    began: float
    ended: float | None = None


@dataclass
class Record:
    """A whole run.

    Attributes:
        seed: What it was made of.
        backend: Which moved KV.
        policy: vLLM's `kv_load_failure_policy`.
        outcomes: Of every request.
        struck: Every fault.
        broken: What was found beside the requests: leaks, engines that ended by themselves or did not recover.
        facts: Figures for the report.
        options: The backend's.
    """

    seed: int
    backend: str
    policy: str
    outcomes: list[Outcome] = field(default_factory=list)
    struck: list[Struck] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def judge(answer: Sequence[int], expected: Sequence[int]) -> tuple[Result, str]:
    """Compare the tokens of an answer with those that it has to begin with."""
    found = list(answer[: len(expected)])
    if found == list(expected):
        return "right", ""
    return "wrong", f"tokens {found}, expected {list(expected)}"


def verdict(record: Record) -> list[str]:
    """Say how the promise was broken; an empty list if it held."""
    found = [
        f"request {one.number} ({one.way}, {', '.join(one.engines) or 'engines unknown'}) at {one.started:.1f} s: "
        f"{BROKEN[one.result]}: {one.detail}"
        for one in record.outcomes
        if one.result in BROKEN
    ]
    return found + record.broken


def share_right(outcomes: Sequence[Outcome]) -> float:
    """Return the share of requests that were answered right, among those whose client waited for the answer."""
    waited = [one for one in outcomes if one.result in WAITED and one.number >= 0]
    return sum(one.result == "right" for one in waited) / len(waited) if waited else 1.0


def recovery(struck: Struck, outcomes: Sequence[Outcome]) -> float | None:
    """Return the seconds from the end of a fault until the next right answer of that engine; None if none came."""
    if struck.ended is None:
        return None
    after = [
        one.ended - struck.ended
        for one in outcomes
        if one.result == "right" and struck.fault.engine in one.engines and one.ended >= struck.ended
    ]
    return min(after, default=None)


def errors(outcomes: Sequence[Outcome]) -> Counter[str]:
    """Count what clients were told."""
    return Counter(one.detail for one in outcomes if one.result == "error")
