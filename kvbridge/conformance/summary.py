"""The summary of a run in plain lines: what was tried, what failed, what is not claimed, what is waived."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kvbridge.conformance import wording
from kvbridge.conformance.results import Outcome, counts

if TYPE_CHECKING:
    from kvbridge.conformance.results import Report, Result

REASON = 300
"""Characters of a reason that are shown; the rest is in the JSON report."""


def lines(report: Report) -> list[str]:
    """Return the summary, line by line."""
    ran = [r for r in report.results if r.outcome in (Outcome.PASSED, Outcome.FAILED, Outcome.WAIVED)]
    found = [f"contract {report.contract}, {report.peers} peers, {report.seconds:.0f} s"]
    found.append(f"selected: {wording.first_line(wording.selection(report))}")
    found.append(f"core requirements run: {sum(not r.needs for r in ran)}, passed: {_passed(ran, claimed=False)}")
    found.append(
        f"claimed requirements run: {sum(bool(r.needs) for r in ran)}, passed: {_passed(ran, claimed=True)}"
        f"{_by_flag(ran)}"
    )
    found.extend(_reasons(report, Outcome.UNCLAIMED, "not claimed"))
    found.extend(_each(report, Outcome.WAIVED, "waived"))
    found.extend(_reasons(report, Outcome.NOT_RUN, "not run"))
    found.extend(f"SHOULD, does not count: {_said(r)}" for r in report.results if _forgiven(r, strict=report.strict))
    found.extend(f"failed: {_said(r)}" for r in report.failures if r.outcome is Outcome.FAILED)
    found.extend(f"wrong with this run: {_short(fault)}" for fault in report.faults)
    found.append(f"{report.backend}: {wording.verdict(report).headline}")
    return found


def _passed(results: list[Result], *, claimed: bool) -> int:
    return sum(r.outcome is Outcome.PASSED for r in results if bool(r.needs) is claimed)


def _by_flag(results: list[Result]) -> str:
    flags = Counter(flag for result in results for flag in result.needs)
    return f" ({', '.join(f'{flag} {count}' for flag, count in sorted(flags.items()))})" if flags else ""


def _reasons(report: Report, outcome: Outcome, what: str) -> list[str]:
    by_reason: dict[str, list[Result]] = {}
    for result in report.results:
        if result.outcome is outcome:
            by_reason.setdefault(_short(result.reason), []).append(result)
    found = [f"{what}: {_which(results)} ({reason})" for reason, results in sorted(by_reason.items())]
    return found or [f"{what}: nothing"]


def _which(results: list[Result]) -> str:
    return results[0].id if len(results) == 1 else f"{len(results)} requirements, {results[0].id} to {results[-1].id}"


def _each(report: Report, outcome: Outcome, what: str) -> list[str]:
    found = [f"{what}: {_said(r)}" for r in report.results if r.outcome is outcome]
    return found or [f"{what}: nothing"]


def _forgiven(result: Result, *, strict: bool) -> bool:
    return result.outcome is Outcome.FAILED and not counts(result, strict=strict)


def _said(result: Result) -> str:
    return f"{result.id}: {_short(result.reason)}"


def _short(text: str) -> str:
    text = " ".join(wording.plain(text).split())
    return text if len(text) <= REASON else f"{text[:REASON]}…"
