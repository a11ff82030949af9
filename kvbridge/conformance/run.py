"""`kvbridge conformance NAME`: the suite in a child process, so that a native crash is a failure that has a name.

The child writes each result to a journal at once. When it dies, or holds its interpreter for too long, the requirement
that was running has failed, and a new child goes on with the rest.
"""

from __future__ import annotations

import dataclasses
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvbridge.conformance.child import Child
from kvbridge.conformance.configuration import read_waivers
from kvbridge.conformance.patience import patience
from kvbridge.conformance.recorder import Entry, conclude, wrong_waivers
from kvbridge.conformance.requirement import Requirement, order
from kvbridge.conformance.results import FAILED, USAGE, Outcome, Report, Result, counts
from kvbridge.conformance.unfinished import blank, unfinished
from kvbridge.conformance.wording import some
from kvbridge.registry import find_backend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbridge.conformance.configuration import SuiteConfig

GRACE = 30.0
"""Seconds beyond a requirement's own deadline after which the child counts as hung: its own watch did not work."""

START = 180.0
"""Seconds for the child to import the backend, start its rig and collect the suite."""

END = 60.0
"""Seconds for the child to stop its rig and end, after the last requirement."""

POLL = 0.05
"""Seconds between two looks at the journal."""

ENDS = (0, 1, 5)
"""Exit codes of a child that ended in order: nothing failed, something failed, nothing applied."""


class RunError(Exception):
    """The suite could not be run.

    Attributes:
        code: Exit code of the command.
        report: That nothing ran, and why; None for wrong usage.
    """

    def __init__(self, message: str, code: int, report: Report | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.report = report


def run(config: SuiteConfig, told: Callable[[Result], None], ended: Callable[[], str] = str) -> Report:
    """Run the suite.

    Args:
        config: What to do.
        told: Called with each result as it becomes known.
        ended: Says what ended the run from outside, such as a signal; empty while nothing did.

    Returns:
        The report of all children together.

    Raises:
        RunError: It could not be run: wrong usage, or the backend is not available here.
        ConfigError: The waivers cannot be read.
        BackendNotFoundError, BackendConflictError: There is no such backend, or there are two.
    """
    waivers = read_waivers(config.waivers)
    find_backend(config.backend)
    known = all_requirements()
    chosen = [r for r in known if r.selected(config.prefixes)]
    if not chosen:
        raise RunError(f"no requirement's id starts with {' or '.join(config.prefixes)}: see --list", USAGE)
    started, nothing = time.monotonic(), blank(config)
    found = _Findings(config, waivers, told, ended)
    while not found.over and (missing := [r for r in chosen if r.id not in found.results]):
        with tempfile.TemporaryDirectory(prefix="kvbridge-conformance-", ignore_cleanup_errors=True) as folder:
            found.take(missing, Path(folder))
    ordered = tuple(found.results[r.id] for r in chosen if r.id in found.results)
    report = msgspec.structs.replace(
        found.base or nothing,
        results=ordered,
        selected=config.prefixes,
        seconds=round(time.monotonic() - started, 2),
        faults=(*found.faults, *wrong_waivers(waivers, {r.id for r in known}, ordered)),
    )
    if len(ordered) < len(chosen):
        report = unfinished(report, chosen, found.results, found.over, found.running)
    if found.base is None and found.refusal is not None:
        code = found.refusal.code
        raise RunError(found.refusal.refusal, code, None if code == USAGE else report)
    return report


def all_requirements() -> list[Requirement]:
    """Return every requirement of the contract, in its order."""
    from kvbridge.conformance.catalogue import requirements  # noqa: PLC0415 - imports the suite, and pytest

    return sorted(requirements(), key=order)


class _Findings:
    """What the children found, one after the other.

    Attributes:
        results: By id.
        faults: What is wrong with the run itself.
        base: The run, as the first child that began it said; None while none did.
        over: Why no other child is to run; empty while one may.
        running: The requirement whose test runs; empty between two.
        refusal: Why the last child could run nothing; None if it could.
    """

    def __init__(
        self,
        config: SuiteConfig,
        waivers: dict[str, str],
        told: Callable[[Result], None],
        ended: Callable[[], str],
    ) -> None:
        self.results: dict[str, Result] = {}
        self.faults: list[str] = []
        self.base: Report | None = None
        self.over = ""
        self.running = ""
        self.refusal: Entry | None = None
        self._config = config
        self._waivers = waivers
        self._told = told
        self._ended = ended

    def take(self, missing: Sequence[Requirement], folder: Path) -> None:
        """Run one child, and say what became of the requirement that it died in. Something new is known then."""
        before, self.running, self.refusal = len(self.results), "", None
        config = dataclasses.replace(
            self._config,
            timeout=patience(self._config.timeout, self.results.values()),
            maxfail=max(0, self._config.maxfail - self._failures()),
        )
        child = Child(config, missing, folder, stacks_after=config.timeout + GRACE / 2)
        try:
            seconds = self._follow(child, {r.id for r in missing}, config.timeout)
        finally:
            child.kill()
        how = f"was killed: it did nothing for {seconds:.0f} s" if child.hung else _how(child.code)
        left = [r for r in missing if r.id not in self.results]
        if self.over:
            return
        if self.running:
            died_in = next(r for r in missing if r.id == self.running)
            what = f"it hung for {seconds:.0f} s and held the interpreter: the process was killed"
            reason = what if child.hung else f"the process {how} in this test"
            self._take_note(conclude(died_in, self._waivers, Outcome.FAILED, seconds, reason, child.output()))
        elif not left and (child.hung or child.code not in ENDS):
            self.faults.append(f"after the last requirement the process {how}")
        elif left and len(self.results) == before:
            self._give_up(how, child)
        elif left and not self._enough():
            self.faults.append(f"after {next(reversed(self.results))} the process {how}; the rest ran in a new one")
        if self._enough():
            self.over = f"it ended after {some(self._config.maxfail, 'failure')}, as --maxfail says"

    def _failures(self) -> int:
        return sum(r.outcome is Outcome.FAILED and counts(r, strict=self._config.strict) for r in self.results.values())

    def _enough(self) -> bool:
        return 0 < self._config.maxfail <= self._failures()

    def _follow(self, child: Child, missing: set[str], timeout: float) -> float:
        """Read what a child writes until it ends or hangs, or the run does; return for how long it did nothing."""
        since = time.monotonic()
        while True:
            ended = child.ended()
            for entry in child.read():
                since = time.monotonic()
                self._note(entry)
            if ended:
                return time.monotonic() - since
            if what := self._ended():
                between = "between two requirements" if self.results else "before the first requirement"
                where = f"while {self.running} was running" if self.running else between
                self.over = f"{what} {where}"
                return time.monotonic() - since
            done = missing <= self.results.keys()
            limit = timeout + GRACE if self.running else END if done else START
            if time.monotonic() - since > limit:
                child.hung = True
                return time.monotonic() - since
            time.sleep(POLL)

    def _note(self, entry: Entry) -> None:
        self.base = self.base or entry.report
        self.running = entry.start or self.running
        if entry.fault:
            self.faults.append(entry.fault)
        if entry.refusal:
            self.refusal = entry
        if entry.result is not None:
            self._take_note(entry.result)

    def _take_note(self, result: Result) -> None:
        self.running = "" if result.id == self.running else self.running
        self.results[result.id] = result
        self._told(result)

    def _give_up(self, how: str, child: Child) -> None:
        """A child ran nothing: what is left does not run."""
        why = f"before its first requirement the process {how}\n{child.output().strip()}"
        self.refusal = self.refusal or Entry(refusal=why, code=FAILED)
        self.over = f"it could not go on: {self.refusal.refusal}" if self.base else self.refusal.refusal


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    names = {number.value: number.name for number in signal.Signals}
    return f"was ended by {names.get(-code, f'signal {-code}')}"
