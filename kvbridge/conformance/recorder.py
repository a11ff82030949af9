"""`Recorder`: what became of each requirement of a run, and the report that follows from it."""

from __future__ import annotations

import os
import platform
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from kvbridge.conformance import CONTRACT
from kvbridge.conformance.results import Outcome, Report, Result, counts
from kvbridge.version import __version__

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from kvbridge.conformance.configuration import SuiteConfig
    from kvbridge.conformance.requirement import Requirement
    from kvbridge.conformance.setting import Setting


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the journal.

    Attributes:
        start: The requirement whose test starts.
        result: What became of one.
        report: The run, before its first test.
        fault: Something that is wrong with the run itself.
        refusal: Why nothing can be run at all.
        code: Exit code that goes with it.
    """

    start: str = ""
    result: Result | None = None
    report: Report | None = None
    fault: str = ""
    refusal: str = ""
    code: int = 0


class Recorder:
    """Outcomes of one run.

    Args:
        config: What the run was asked to do.
        setting: The backend and its surroundings.
        waivers: Ids that are known to fail, with reasons.
        journal: File to which each line is written at once, so that a crash loses nothing.
    """

    def __init__(
        self, config: SuiteConfig, setting: Setting, waivers: dict[str, str], journal: Path | None = None
    ) -> None:
        self._config = config
        self._setting = setting
        self._waivers = waivers
        self._journal = journal
        self._selected: tuple[str, ...] = config.prefixes
        self._chosen: Sequence[Requirement] = ()
        self._results: dict[str, Result] = {}
        self._known: Collection[str] = ()
        self._faults: list[str] = []
        self._started = time.time()

    def begin(self, chosen: Sequence[Requirement], known: Sequence[Requirement]) -> None:
        """Take note of what is to be run, out of all that is known; write what the run is."""
        self._chosen = chosen
        self._known = {r.id for r in known}
        if len(chosen) < sum(r.selected(self._config.prefixes) for r in known):  # by options of pytest's own
            self._selected = tuple(r.id for r in chosen)
        write_entry(self._journal, Entry(report=self.report()))

    @property
    def results(self) -> Collection[Result]:
        """The results so far."""
        return self._results.values()

    @property
    def begun(self) -> bool:
        """Whether there is anything to report."""
        return bool(self._chosen)

    def applies(self, requirement: Requirement) -> bool:
        """Whether a requirement is to be run; one that is not gets its result here."""
        subject = self._setting.subject
        unclaimed = requirement.unclaimed(subject.capabilities)
        if requirement.transport and not subject.is_transport and unclaimed is None:
            unclaimed = "about transports: this backend is a store"
        if unclaimed is not None:
            self.ended(requirement, Outcome.UNCLAIMED, 0.0, unclaimed)
            return False
        if requirement.processes and not subject.processes:
            claimed = subject.capabilities.cross_process
            why = "it needs peers in processes of their own: run with process peers"
            reason = why if claimed else "not claimed: cross_process"
            self.ended(requirement, Outcome.NOT_RUN if claimed else Outcome.UNCLAIMED, 0.0, reason)
            return False
        return True

    def started(self, requirement: Requirement) -> None:
        """Take note that a test starts."""
        write_entry(self._journal, Entry(start=requirement.id))

    def fault(self, said: str) -> None:
        """Take note of something that is wrong with the run itself: nothing is proven by it then."""
        self._faults.append(said)
        write_entry(self._journal, Entry(fault=said))

    def finish(self) -> Report:
        """Return the report of the run, which ends; what was not reached keeps it from proving anything.

        With a journal nothing is said of it: whoever reads that has it run by another process.
        """
        late = [r for r in self._chosen if r.id not in self._results and self._journal is None]
        for requirement in late:
            self.ended(requirement, Outcome.NOT_RUN, 0.0, "the run ended before it")
        if late:
            self.fault(f"incomplete: it ended before {len(late)} of {len(self._chosen)} requirements")
        return msgspec.structs.replace(self.report(), incomplete=bool(late))

    def ended(
        self, requirement: Requirement, outcome: Outcome, seconds: float, reason: str = "", details: str = ""
    ) -> Result:
        """Take note of an outcome."""
        result = conclude(requirement, self._waivers, outcome, seconds, reason, details)
        self._results[requirement.id] = result
        write_entry(self._journal, Entry(result=result))
        return result

    def counts(self, result: Result) -> bool:
        """Whether a result makes the backend fail."""
        return counts(result, strict=self._config.strict)

    def report(self) -> Report:
        """Return the report of what is known so far."""
        subject = self._setting.subject
        results = tuple(self._results[r.id] for r in self._chosen if r.id in self._results)
        return Report(
            backend=subject.name,
            distribution=self._setting.distribution,
            kvbridge=__version__,
            contract=CONTRACT,
            options=dict(subject.options),
            capabilities=msgspec.to_builtins(subject.capabilities),
            peers="process" if subject.processes else "thread",
            strict=self._config.strict,
            selected=self._selected,
            started=datetime.fromtimestamp(self._started, UTC).isoformat(timespec="seconds"),
            seconds=round(time.time() - self._started, 2),
            machine=machine(),
            results=results,
            timeout=self._config.timeout,
            faults=(*self._faults, *wrong_waivers(self._waivers, self._known, results)),
        )


def conclude(
    requirement: Requirement,
    waivers: Mapping[str, str],
    outcome: Outcome,
    seconds: float,
    reason: str = "",
    details: str = "",
) -> Result:
    """Return a result; a failure that is waived is turned into one that counts as known."""
    waiver = waivers.get(requirement.id)
    if outcome is Outcome.FAILED and waiver is not None:
        outcome, reason = Outcome.WAIVED, f"{waiver} (found: {reason})"
    return Result(
        id=requirement.id,
        level=requirement.level,
        sentence=requirement.sentence,
        needs=requirement.flags,
        lacks=requirement.lacks,
        outcome=outcome,
        seconds=round(seconds, 4),
        reason=reason,
        details=details,
    )


def write_entry(journal: Path | None, entry: Entry) -> None:
    """Write a line of the journal, if there is one, at once."""
    if journal is not None:
        with journal.open("ab") as file:
            file.write(msgspec.json.encode(entry) + b"\n")


def wrong_waivers(waivers: dict[str, str], known: Collection[str], results: Sequence[Result]) -> tuple[str, ...]:
    """Say which waivers name no requirement, or one that is met: a waiver must not hide a later failure."""
    passed = {result.id for result in results if result.outcome is Outcome.PASSED}
    unknown = [f"the waivers name {name!r}, which is no requirement" for name in waivers if name not in known]
    useless = [f"{name!r} is waived but passes: delete the waiver" for name in waivers if name in passed]
    return (*unknown, *useless)


def machine() -> dict[str, Any]:
    """Describe this machine."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "processors": str(os.cpu_count()),
    }
