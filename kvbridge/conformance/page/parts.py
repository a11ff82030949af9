"""The lower half of the page: every requirement, one cell for each run, with reasons, evidence and times."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from kvbridge.conformance import wording
from kvbridge.conformance.page.top import badge, css, link, section
from kvbridge.conformance.results import Outcome, Report, Result, counts
from kvbridge.conformance.wording import ABSENT, ABSENT_SYMBOL, SYMBOLS, first_line, in_time, some
from kvbridge.markup import Html, el
from kvbridge.plain import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

EXPLAINED = {
    Outcome.PASSED: "Its test ran and found nothing.",
    Outcome.FAILED: "Its test found a fault, hung, or took the process down.",
    Outcome.WAIVED: "Its test failed, and whoever ran it declared that this is known.",
    Outcome.UNCLAIMED: "It does not apply to a backend that claims what this one claims. That is no fault.",
    Outcome.NOT_RUN: "It needs something that this run did not have. The reason says what.",
}

_SHORT = 240
"""Characters of a reason that are shown at once; more of it opens on demand."""
_EVIDENCE = 20_000
"""Characters of evidence that the page carries for one result: the JSON report has all of it."""
_SHORTEST = 0.001
"""Seconds at which the bar of a time begins."""


class _Columns(NamedTuple):
    """The runs, and what all rows share."""

    reports: Sequence[Report]
    names: Sequence[str]
    longest: float


def requirements(reports: Sequence[Report], names: Sequence[str]) -> Html:
    """Make the filters, the meaning of the words, and a table for each part."""
    by_id = wording.ordered(reports)
    times = [result.seconds for report in reports for result in report.results]
    columns = _Columns(reports, names, max(times, default=0.0))
    parts = [
        _part(part, {id_: results for id_, results in by_id.items() if id_.partition("/")[0] == part}, columns)
        for part in dict.fromkeys(id_.partition("/")[0] for id_ in by_id)
    ]
    nothing = el("p", "Nothing fits these filters.", id="nothing", hidden=True)
    return section("requirements", "Requirements", _legend(columns), _filters(reports), nothing, parts)


def _legend(columns: _Columns) -> Html:
    words = [
        [el("dt", el("span", SYMBOLS[outcome], class_="mark"), " ", outcome.value, class_=css(outcome)), el("dd", text)]
        for outcome, text in EXPLAINED.items()
    ]
    absent = [el("dt", el("span", ABSENT_SYMBOL, class_="mark"), " ", ABSENT), el("dd", "It was not selected.")]
    should = "A SHOULD that fails is shown, and counts only in runs with --strict."
    times = (
        f"How long its test took. The bars are logarithmic, from 1 ms to {in_time(columns.longest)}. They show what "
        "hangs or waits, not how fast a backend moves values."
    )
    levels = [el("dt", "MUST, SHOULD"), el("dd", should), el("dt", "times"), el("dd", times)]
    return el("details", el("summary", "What the words mean"), el("dl", words, absent, levels), class_="legend")


def _filters(reports: Sequence[Report]) -> Html:
    choices = [("all", "all")]
    if len(reports) > 1:
        choices.append(("differs", "only differences"))
    choices.append(("failed", "only failures"))
    only = [
        el("label", el("input", type="radio", name="only", value=value, checked=value == "all"), " ", text)
        for value, text in choices
    ]
    search = el("input", type="search", name="find", placeholder="key, deadline, pipe/03 …", autocomplete="off")
    return el(
        "form",
        el("fieldset", el("legend", "Show"), only),
        el("label", "Search ", search, class_="find"),
        el("output", name="shown"),
        id="filters",
        hidden=True,
        aria_label="Filters",
    )


def _part(part: str, by_id: dict[str, list[Result | None]], columns: _Columns) -> Html:
    heads = [el("th", name, scope="col") for name in columns.names]
    table = el(
        "table",
        el("caption", f"{some(len(by_id), 'requirement')} of the part {part}."),
        el("thead", el("tr", el("th", "requirement", scope="col"), heads)),
        [_requirement(id_, results, columns) for id_, results in by_id.items()],
        class_="results",
    )
    purpose = wording.PARTS.get(part)
    return el(
        "section",
        el("h3", part, id=f"part-{part}"),
        el("p", purpose, class_="purpose") if purpose else None,
        el("div", table, class_="scroll", tabindex="0", role="region", aria_labelledby=f"part-{part}"),
        class_="part",
        aria_labelledby=f"part-{part}",
    )


def _requirement(id_: str, results: Sequence[Result | None], columns: _Columns) -> Html:
    """Make one requirement: a row of outcomes, and under it a row of evidence where there is some."""
    first = next(result for result in results if result)
    head = el(
        "th",
        el("span", link(id_), " ", el("span", first.level, class_=f"level {first.level.lower()}"), class_="id"),
        el("span", first.sentence, class_="sentence"),
        scope="row",
    )
    pairs = list(zip(results, columns.reports, columns.names, strict=True))
    cells = [_cell(result, report, name, first, columns.longest) for result, report, name in pairs]
    evidence = [_evidence(result, name) for result, _, name in pairs if result and result.details.strip()]
    failed = any(
        result and (result.outcome in {Outcome.FAILED, Outcome.WAIVED} or counts(result, strict=report.strict))
        for result, report, _ in pairs
    )
    return el(
        "tbody",
        el("tr", head, cells),
        el("tr", el("td", evidence, colspan=str(len(results) + 1)), class_="evidence") if evidence else None,
        id=id_,
        data_requirement=True,
        data_differs=wording.differs(results),
        data_failed=failed,
    )


def _cell(result: Result | None, report: Report, name: str, first: Result, longest: float) -> Html:
    who = el("span", name, class_="who", aria_hidden="true")
    if result is None:
        return el("td", who, el("div", badge(None), class_="outcome"), class_="absent")
    faulty = result.outcome is Outcome.FAILED
    soft = faulty and not counts(result, strict=report.strict)
    notes = []
    if soft:
        notes.append(el("p", "A SHOULD: does not count in this run.", class_="note"))
    elif counts(result, strict=report.strict) and not faulty:
        notes.append(el("p", "Counts as a failure: the run is strict.", class_="note"))
    if (result.level, result.sentence) != (first.level, first.sentence):
        notes.append(el("p", f"In this run's contract: {result.level}. {result.sentence}", class_="note"))
    return el(
        "td",
        who,
        el("div", badge(result, soft=soft), _time(result, longest), class_="outcome"),
        _reason(result),
        notes,
        class_=f"{css(result.outcome)}{' soft' if soft else ''}",
    )


def _time(result: Result, longest: float) -> Html | None:
    if result.outcome in {Outcome.UNCLAIMED, Outcome.NOT_RUN} and not result.seconds:
        return None
    width = 0.0
    if longest > _SHORTEST and result.seconds > _SHORTEST:
        width = math.log(result.seconds / _SHORTEST) / math.log(longest / _SHORTEST)
    bar = el("span", el("span", style=f"width:{width:.0%}"), class_="bar", aria_hidden="true")
    return el("span", bar, " ", el("span", in_time(result.seconds), class_="number"), class_="time")


def _reason(result: Result) -> Html | None:
    text = plain(result.reason).strip()
    if not text:
        return None
    if len(text) <= _SHORT and "\n" not in text:
        return el("p", text, class_="reason")
    return el("details", el("summary", first_line(text)), el("p", text, class_="whole"), class_="reason")


def _evidence(result: Result, name: str) -> Html:
    text = plain(result.details).strip("\n")
    lines = some(text.count("\n") + 1, "line")
    if len(text) > _EVIDENCE:
        half = _EVIDENCE // 2
        left_out = f"\n\n… {len(text) - 2 * half:,} characters left out here; the JSON report has them …\n\n"
        text = text[:half] + left_out + text[-half:]
    title = f"Evidence of {name} for {result.id}"
    return el(
        "details",
        el("summary", "Evidence: ", el("b", name), f", {lines}"),
        el("pre", text, tabindex="0", role="region", aria_label=title),
    )
