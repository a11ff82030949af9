"""A report in plain words: its verdict, its counts, its options. One wording for the terminal and for the page."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from kvbridge.conformance.patience import HANGS, patience
from kvbridge.conformance.results import CONFORMS, Outcome, Report, Result, coverage, untested
from kvbridge.plain import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PARTS = {
    "backend": "What one instance does by itself: probe, options, memory, an end without leftovers.",
    "pipe": "Values in order from one peer to another.",
    "buffer": "Values by key, each taken exactly once.",
    "connector": "What a serving engine sees of a hand-over.",
    "slots": "Blocks of a cache that are kept for reuse, and come back as they were.",
    "fault": "What happens when a peer dies, hangs, lies or is cut off.",
    "perf": "What it costs in time and memory.",
}
"""The parts of the contract, in its order."""

SYMBOLS = {
    Outcome.PASSED: "✓",
    Outcome.FAILED: "✗",
    Outcome.WAIVED: "!",
    Outcome.UNCLAIMED: "\u2013",
    Outcome.NOT_RUN: "○",
}
ABSENT_SYMBOL, ABSENT = "·", "not in this run"
UNTESTED = "claimed, not tested here"

_LONG = 200
"""Characters of a first line that are shown."""
_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_ZERO = {"max_value_bytes": "no limit but memory", "capacity_bytes": "values stay with the caller"}

Tone = Literal["good", "mixed", "bad"]


class Verdict(NamedTuple):
    """A run's verdict in plain words.

    Attributes:
        tone: `good` conforms without a reservation, `mixed` with one, `bad` does not.
        headline: The verdict, in a few words.
        notes: What one has to know beside it, a sentence each.
    """

    tone: Tone
    headline: str
    notes: tuple[str, ...]


def verdict(report: Report) -> Verdict:
    """Say what a run means for whoever chooses a backend."""
    tone, headline = _headline(report)
    soft = report.count(Outcome.FAILED) - sum(result.outcome is Outcome.FAILED for result in report.failures)
    unrun, waived, unclaimed = (report.count(o) for o in (Outcome.NOT_RUN, Outcome.WAIVED, Outcome.UNCLAIMED))
    notes = [
        f"Only a part of the contract was selected: {selection(report)}." if report.selected else "",
        f"{some(waived, 'known failure')} waived." if waived else "",
        f"{soft} SHOULD {plural(soft, 'fails', 'fail')}, which does not count in this run." if soft else "",
        f"{some(unrun, 'requirement')} did not run{', which counts: the run is strict' if report.strict else ''}."
        if unrun
        else "",
        f"{some(unclaimed, 'requirement')} {plural(unclaimed, 'does', 'do')} not apply{_because(report)}."
        if unclaimed
        else "",
        f"{UNTESTED.capitalize()}: {', '.join(untested(report))}." if untested(report) else "",
        f"{hurried(report)}." if hurried(report) else "",
    ]
    return Verdict(tone, headline, tuple(note for note in notes if note))


def _because(report: Report) -> str:
    needs = [flag for result in report.results if result.outcome is Outcome.UNCLAIMED for flag in result.needs]
    flags = [flag for flag in dict.fromkeys(needs) if not report.capabilities.get(flag)]
    return f": it does not claim {', '.join(flags)}" if flags else ""


def _headline(report: Report) -> tuple[Tone, str]:
    if report.exit_code != CONFORMS:
        return "bad", _objection(report)
    if not report.count(Outcome.PASSED):
        return "mixed", "nothing was tested"
    waived, unrun = report.count(Outcome.WAIVED), report.count(Outcome.NOT_RUN)
    but = f", but {some(unrun, 'requirement')} did not run" if unrun else ""
    if report.selected:
        return "mixed", f"passes what was selected{but}"
    if waived:
        return "mixed", f"conforms, but for {some(waived, 'waived failure')}"
    if unrun:
        return "mixed", f"conforms to contract {report.contract}{but}"
    return "good", f"conforms to contract {report.contract}"


def _objection(report: Report) -> str:
    failed = sum(result.outcome is Outcome.FAILED for result in report.failures)
    if report.incomplete:
        return f"incomplete; so far it fails {some(failed, 'requirement')}" if failed else "incomplete: no verdict"
    if failed:
        return f"fails {some(failed, 'requirement')}"
    if report.failures:
        return f"not proven: {some(len(report.failures), 'requirement')} did not run"
    return f"no verdict: the run itself has {some(len(report.faults), 'fault')}"


def hurried(report: Report) -> str:
    """Say that requirements got less time because others hung; empty where they did not."""
    short = patience(report.timeout, report.results)
    if short == report.timeout:
        return ""
    return (
        f"after {HANGS} requirements hung for {short:g} s or more, each had {short:g} s instead of {report.timeout:g} s"
    )


def tested(report: Report, name: str) -> str:
    """Say how much is known of a flag or limit; empty where it is not claimed."""
    count = coverage(report).get(name)
    return "" if count is None else f"tested by {some(count, 'requirement')}" if count else UNTESTED


def counted(report: Report) -> str:
    """Return the counts of a report's outcomes, those that are zero left out."""
    shown = [f"{report.count(outcome)} {outcome.value}" for outcome in Outcome if report.count(outcome)]
    return ", ".join(shown) or "no results"


def labels(reports: Sequence[Report]) -> list[str]:
    """Name each run: its backend, with a number where a backend comes more than once."""
    backends = [plain(report.backend) for report in reports]
    often = Counter(backends)
    numbers = {name: itertools.count(1) for name in often}
    return [name if often[name] == 1 else f"{name} (run {next(numbers[name])})" for name in backends]


def conditions(reports: Sequence[Report]) -> list[str]:
    """Say, a sentence each, which conditions differ so that the runs cannot be compared one to one."""
    asked: list[tuple[str, Callable[[Report], str]]] = [
        ("contract versions", lambda report: report.contract),
        ("peers", lambda report: "processes" if report.peers == "process" else "threads"),
        ("strictness", lambda report: "strict" if report.strict else "not strict"),
        ("selection", selection),
    ]
    names = labels(reports)
    found = []
    for what, ask in asked:
        having: dict[str, list[str]] = {}
        for report, name in zip(reports, names, strict=True):
            having.setdefault(ask(report), []).append(name)
        if len(having) > 1:
            each = "; ".join(f"{answer} for {', '.join(who)}" for answer, who in having.items())
            found.append(f"Different {what}: {each}.")
    return found


def selection(report: Report) -> str:
    """Say which requirements were asked for."""
    return plain(", ".join(report.selected)) if report.selected else "all"


def options(report: Report) -> str:
    """Return the options of a run as JSON, or say that there are none."""
    text = msgspec.json.format(msgspec.json.encode(report.options, enc_hook=str, order="sorted"), indent=0).decode()
    return plain(text) if report.options else "the defaults"


def capability_names(reports: Sequence[Report]) -> list[str]:
    """Return the name of every flag and limit of the runs, in the order of the first that has it."""
    return list(dict.fromkeys(name for report in reports for name in report.capabilities))


def capability(capabilities: Mapping[str, Any], name: str) -> str:
    """Return a flag or limit in words."""
    value = capabilities.get(name)
    if name not in capabilities:
        return "not said"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value == 0 and name in _ZERO:
        return _ZERO[name]
    if isinstance(value, int) and name.endswith("_bytes"):
        return in_bytes(value)
    return plain(str(value))


def in_bytes(number: int) -> str:
    """Return a number of bytes with a unit, without loss of a digit that matters."""
    for unit, name in _UNITS:
        if number >= unit:
            return f"{number / unit:.4g} {name}"
    return f"{number} B"


def in_time(seconds: float) -> str:
    """Return a duration with a unit."""
    if seconds < 0.0005:  # noqa: PLR2004 - what rounds to 0 ms
        return "<1 ms"
    if seconds < 0.9995:  # noqa: PLR2004 - what rounds to 1000 ms
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:  # noqa: PLR2004 - what rounds to 60.0 s
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def ordered(reports: Sequence[Report]) -> dict[str, list[Result | None]]:
    """Return every requirement in the contract's order, each with its result of every run, None where there is none."""
    by_id = [{result.id: result for result in report.results} for report in reports]
    ids = sorted({id_ for results in by_id for id_ in results}, key=_place)
    return {id_: [results.get(id_) for results in by_id] for id_ in ids}


def _place(id_: str) -> tuple[int, str]:
    known, part = list(PARTS), id_.partition("/")[0]
    return (known.index(part) if part in known else len(known), id_)


def differs(results: Sequence[Result | None]) -> bool:
    """Whether a requirement's outcomes differ between the runs, or a run does not have it."""
    return len({None if result is None else result.outcome for result in results}) > 1


def first_line(text: str) -> str:
    """Return the first line of a text that says something, shortened where it is very long."""
    line = next((line.strip() for line in plain(text).splitlines() if line.strip()), "")
    return line if len(line) <= _LONG else line[: _LONG - 1].rstrip() + "…"


def plural(number: int, one: str, many: str) -> str:
    """Return the form that fits a number."""
    return one if number == 1 else many


def some(number: int, thing: str) -> str:
    """Return a number with its noun."""
    return f"{number} {plural(number, thing, thing + 's')}"
