"""`kvbridge conformance NAME`: the suite in a child process, so that a native crash is a failure that has a name.

The child writes each result to a journal at once. When it dies, or holds its interpreter for too long, the requirement
that was running has failed, and a new child goes on with the rest.
"""

from __future__ import annotations

import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvbridge.conformance.child import Child
from kvbridge.conformance.configuration import read_waivers
from kvbridge.conformance.recorder import wrong_waivers
from kvbridge.conformance.requirement import Requirement, order
from kvbridge.conformance.results import FAILED, USAGE, Outcome, Report, Result
from kvbridge.registry import find_backend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbridge.conformance.configuration import SuiteConfig
    from kvbridge.conformance.recorder import Entry

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
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def run(config: SuiteConfig, told: Callable[[Result], None]) -> Report:
    """Run the suite.

    Args:
        config: What to do.
        told: Called with each result as it becomes known.

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
    started = time.monotonic()
    found = _Findings(config, waivers, told)
    while missing := [r for r in chosen if r.id not in found.results]:
        with tempfile.TemporaryDirectory(prefix="kvbridge-conformance-", ignore_cleanup_errors=True) as folder:
            found.take(missing, Path(folder))
    if found.base is None:
        raise RunError("the suite wrote no report", FAILED)
    ordered = tuple(found.results[r.id] for r in chosen)
    return msgspec.structs.replace(
        found.base,
        results=ordered,
        selected=config.prefixes,
        seconds=round(time.monotonic() - started, 2),
        faults=(*found.faults, *wrong_waivers(waivers, {r.id for r in known}, ordered)),
    )


def all_requirements() -> list[Requirement]:
    """Return every requirement of the contract, in its order."""
    from kvbridge.conformance.catalogue import requirements  # noqa: PLC0415 - imports the suite, and pytest

    return sorted(requirements(), key=order)


class _Findings:
    """What the children found, one after the other."""

    def __init__(self, config: SuiteConfig, waivers: dict[str, str], told: Callable[[Result], None]) -> None:
        self.results: dict[str, Result] = {}
        self.faults: list[str] = []
        self.base: Report | None = None
        self._config = config
        self._waivers = waivers
        self._told = told
        self._running = ""
        self._last = ""
        self._refusal: Entry | None = None

    def take(self, missing: Sequence[Requirement], folder: Path) -> None:
        """Run one child, and say what became of the requirement that it died in. At least one result is new.

        Raises:
            RunError: It could not run any.
        """
        before, self._running, self._last, self._refusal = len(self.results), "", "", None
        child = Child(self._config, missing, folder, stacks_after=self._config.timeout + GRACE / 2)
        try:
            seconds = self._follow(child, {r.id for r in missing})
        finally:
            child.kill()
        how = f"was killed: it did nothing for {seconds:.0f} s" if child.hung else _how(child.code)
        left = [r for r in missing if r.id not in self.results]
        if self._running:
            died_in = next(r for r in missing if r.id == self._running)
            what = f"it hung for {seconds:.0f} s and held the interpreter: the process was killed"
            reason = what if child.hung else f"the process {how} in this test"
            self._conclude(died_in, Outcome.FAILED, reason, seconds, child.output())
        elif not left and (child.hung or child.code not in ENDS):
            self.faults.append(f"after the last requirement the process {how}")
        elif left and len(self.results) > before:
            self.faults.append(f"after {self._last} the process {how}; the rest ran in a new one")
        elif left:
            self._give_up(left, how, child)

    def _follow(self, child: Child, missing: set[str]) -> float:
        """Read what a child writes until it ends or hangs; return for how long it did nothing."""
        since = time.monotonic()
        while True:
            ended = child.ended()
            for entry in child.read():
                since = time.monotonic()
                self._note(entry)
            if ended:
                return time.monotonic() - since
            done = missing <= self.results.keys()
            limit = self._config.timeout + GRACE if self._running else END if done else START
            if time.monotonic() - since > limit:
                child.hung = True
                return time.monotonic() - since
            time.sleep(POLL)

    def _note(self, entry: Entry) -> None:
        self.base = self.base or entry.report
        self._running = entry.start or self._running
        if entry.fault:
            self.faults.append(entry.fault)
        if entry.refusal:
            self._refusal = entry
        if entry.result is not None:
            self._running = "" if entry.result.id == self._running else self._running
            self._last = entry.result.id
            self.results[entry.result.id] = entry.result
            self._told(entry.result)

    def _give_up(self, left: Sequence[Requirement], how: str, child: Child) -> None:
        """A child ran nothing: the first one ends the run, a later one leaves its requirements not run."""
        refusal = self._refusal
        why, code = f"before its first requirement the process {how}\n{child.output().strip()}", FAILED
        if refusal is not None:
            why, code = refusal.refusal, refusal.code
        if self.base is None:
            raise RunError(why, code)
        self.faults.append(f"it could not go on: {why}")
        for requirement in left:
            self._conclude(requirement, Outcome.NOT_RUN, "the run could not go on", 0.0, "")

    def _conclude(self, requirement: Requirement, outcome: Outcome, reason: str, seconds: float, details: str) -> None:
        waiver = self._waivers.get(requirement.id)
        if outcome is Outcome.FAILED and waiver is not None:
            outcome, reason = Outcome.WAIVED, f"{waiver} (found: {reason})"
        result = Result(
            id=requirement.id,
            level=requirement.level,
            sentence=requirement.sentence,
            needs=requirement.needs,
            outcome=outcome,
            seconds=round(seconds, 4),
            reason=reason,
            details=details,
        )
        self.results[requirement.id] = result
        self._told(result)


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    names = {number.value: number.name for number in signal.Signals}
    return f"was ended by {names.get(-code, f'signal {-code}')}"
