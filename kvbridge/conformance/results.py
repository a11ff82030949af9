"""What a run of the suite found: one result a requirement, one report a run, and the verdict that follows from it."""

from __future__ import annotations

import enum
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FORMAT = 1
"""Version of the report's JSON form."""

Level = Literal["MUST", "SHOULD"]

CONFORMS, FAILED, USAGE, UNAVAILABLE = 0, 1, 2, 3
"""Exit codes of the command."""


class Outcome(enum.Enum):
    """What became of one requirement."""

    PASSED = "passed"
    """Its test ran and found nothing."""
    FAILED = "failed"
    """Its test found a fault, hung, or took the process down."""
    WAIVED = "waived"
    """Its test failed, and the waivers say that this is known."""
    UNCLAIMED = "unclaimed"
    """It is about a capability that the backend does not claim."""
    NOT_RUN = "not run"
    """It needs something that this run did not have; the reason says what."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One requirement in one run.

    Attributes:
        id: The requirement: `part/number-name`.
        level: MUST, or SHOULD: a SHOULD that fails is shown, and counts with `--strict`.
        sentence: What has to hold.
        needs: Capability flags that it is about; empty for a core requirement.
        lacks: Capability flags without which it applies.
        outcome: What became of it.
        seconds: How long its test took.
        reason: Why it failed, was waived, or did not run, in one or a few sentences; empty where it passed.
        details: Traceback or other evidence, for whoever has to mend it.
    """

    id: str
    level: Level
    sentence: str
    needs: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    outcome: Outcome
    seconds: float = 0.0
    reason: str = ""
    details: str = ""

    @property
    def part(self) -> str:
        """The part of the contract that it belongs to."""
        return self.id.partition("/")[0]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the suite against one backend.

    Attributes:
        backend: The backend's name.
        distribution: Name and version of the distribution that brings it.
        kvbridge: Version of kvbridge.
        contract: Version of the contract.
        options: Options of the backend in this run.
        capabilities: Flags and limits that it claims.
        peers: `"process"` or `"thread"`.
        strict: Whether a SHOULD counts.
        selected: Prefixes of ids that were asked for; empty for all.
        started: When, as ISO 8601 in UTC.
        seconds: How long the run took.
        machine: What it ran on, by name: python, platform, processors.
        results: One for each requirement that was selected, in the contract's order.
        faults: What is wrong with the run itself, such as a waiver of a requirement that passes.
        timeout: Seconds for one requirement; 0 where that is not known.
        incomplete: Whether it ended before its last requirement; `faults` says why.
        format: Version of this form.
    """

    backend: str
    distribution: str
    kvbridge: str
    contract: str
    options: dict[str, Any]
    capabilities: dict[str, Any]
    peers: Literal["process", "thread"]
    strict: bool
    selected: tuple[str, ...]
    started: str
    seconds: float
    machine: dict[str, str]
    results: tuple[Result, ...]
    faults: tuple[str, ...] = ()
    timeout: float = 0.0
    incomplete: bool = False
    format: int = FORMAT

    def count(self, outcome: Outcome) -> int:
        """Return the number of results with an outcome."""
        return sum(result.outcome is outcome for result in self.results)

    @property
    def failures(self) -> tuple[Result, ...]:
        """Requirements that make the backend fail this run."""
        return tuple(result for result in self.results if counts(result, strict=self.strict))

    @property
    def exit_code(self) -> int:
        """The verdict: `CONFORMS` or `FAILED`."""
        return FAILED if self.failures or self.faults else CONFORMS


def counts(result: Result, *, strict: bool) -> bool:
    """Whether a result makes its backend fail."""
    if result.outcome is Outcome.NOT_RUN:
        return strict
    return result.outcome is Outcome.FAILED and (strict or result.level == "MUST")


def coverage(report: Report) -> dict[str, int]:
    """Return how many requirements about each claimed flag or limit ran; with 0 it is claimed and not tested here."""
    ran = (Outcome.PASSED, Outcome.FAILED, Outcome.WAIVED)
    covered = Counter(flag for result in report.results if result.outcome in ran for flag in result.needs)
    return {name: covered[name] for name, value in report.capabilities.items() if value and not isinstance(value, str)}


def untested(report: Report) -> list[str]:
    """Return what is claimed and not tested here: nothing is proven of it."""
    return [flag for flag, count in coverage(report).items() if not count]


def write_reports(path: Path, reports: Sequence[Report]) -> None:
    """Write one report as a JSON object, or several as a list; each with what follows from its results."""
    found = [
        {**msgspec.to_builtins(report), "coverage": coverage(report), "claimed_not_tested": untested(report)}
        for report in reports
    ]
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found[0] if len(found) == 1 else found)) + b"\n")


def read_report(path: Path) -> Report:
    """Read one report.

    Raises:
        OSError: It cannot be read.
        msgspec.DecodeError: It is not a report.
    """
    return msgspec.json.decode(path.read_bytes(), type=Report)
