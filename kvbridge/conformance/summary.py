"""The summary of a run in plain lines: what was tried, what failed, what is not claimed, what is waived."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kvbridge.conformance import wording
from kvbridge.conformance.results import Outcome, counts, untested
from kvbridge.plain import plain

if TYPE_CHECKING:
    from kvbridge.conformance.results import Report, Result

REASON = 300
"""Characters of a reason that are shown; the rest is in the JSON report."""


def lines(report: Report, *, failures: bool = True) -> list[str]:
    """Return the summary, line by line.

    Args:
        report: The run.
        failures: Whether to name what failed; not where something else has shown it.
    """
    ran = [r for r in report.results if r.outcome in (Outcome.PASSED, Outcome.FAILED, Outcome.WAIVED)]
    found = [f"contract {report.contract}, {report.peers} peers, {report.seconds:.0f} s"]
    found.append(f"selected: {wording.first_line(wording.selection(report))}")
    found.append(f"core requirements run: {sum(not r.needs for r in ran)}, passed: {_passed(ran, claimed=False)}")
    found.append(
        f"claimed requirements run: {sum(bool(r.needs) for r in ran)}, passed: {_passed(ran, claimed=True)}"
        f"{_by_flag(ran)}"
    )
    found.append(f"{wording.UNTESTED}: {', '.join(untested(report)) or 'nothing'}")
    found.extend(_unclaimed(report))
    found.extend(_each(report, Outcome.WAIVED, "waived"))
    found.extend(
        _reasons([r for r in report.results if r.outcome is Outcome.NOT_RUN], "not run") or ["not run: nothing"]
    )
    found.extend(f"deadline: {said}" for said in (wording.hurried(report),) if said)
    for result in report.results:
        if result.outcome is Outcome.FAILED and not counts(result, strict=report.strict):
            found.extend([f"SHOULD, does not count: {_said(result)}", f"    {_short(result.sentence)}"])
        elif result.outcome is Outcome.FAILED and failures:
            found.extend([f"failed: {_said(result)}", f"    {result.level}: {_short(result.sentence)}"])
    found.extend(f"wrong with this run: {_short(fault)}" for fault in report.faults)
    found.append(f"{report.backend}: {wording.verdict(report).headline}")
    return found


def _passed(results: list[Result], *, claimed: bool) -> int:
    return sum(r.outcome is Outcome.PASSED for r in results if bool(r.needs) is claimed)


def _by_flag(results: list[Result]) -> str:
    flags = Counter(flag for result in results for flag in result.needs)
    return f" ({', '.join(f'{flag} {count}' for flag, count in sorted(flags.items()))})" if flags else ""


def _unclaimed(report: Report) -> list[str]:
    """Say what does not apply: a line for each flag that is not claimed, one for all refusals, and the rest."""
    results = [r for r in report.results if r.outcome is Outcome.UNCLAIMED]
    by_flag: dict[str, list[Result]] = {}
    for flag, result in ((flag, r) for r in results for flag in r.needs if not report.capabilities.get(flag)):
        by_flag.setdefault(flag, []).append(result)
    found = [f"not claimed: {flag} ({_which(about)})" for flag, about in sorted(by_flag.items())] or [
        "not claimed: nothing"
    ]
    rest = [r for r in results if all(report.capabilities.get(flag) for flag in r.needs)]
    flags = sorted({flag for r in rest for flag in r.lacks if report.capabilities.get(flag)})
    refusals = [r for r in rest if r.lacks]
    if refusals:
        found.append(f"does not apply: {_which(refusals)} (about backends without {', '.join(flags)})")
    return found + _reasons([r for r in rest if not r.lacks], "does not apply")


def _reasons(results: list[Result], what: str) -> list[str]:
    by_reason: dict[str, list[Result]] = {}
    for result in results:
        by_reason.setdefault(_short(result.reason), []).append(result)
    return [f"{what}: {_which(found)} ({reason})" for reason, found in sorted(by_reason.items())]


def _which(results: list[Result]) -> str:
    return results[0].id if len(results) == 1 else f"{len(results)} requirements, {results[0].id} to {results[-1].id}"


def _each(report: Report, outcome: Outcome, what: str) -> list[str]:
    found = [f"{what}: {_said(r)}" for r in report.results if r.outcome is outcome]
    return found or [f"{what}: nothing"]


def _said(result: Result) -> str:
    return f"{result.id}: {_short(result.reason.removeprefix(result.id))}"


def _short(text: str) -> str:
    text = " ".join(plain(text).split())
    return text if len(text) <= REASON else f"{text[:REASON]}…"
