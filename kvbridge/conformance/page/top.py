"""The upper half of the page: what one needs to choose. Verdicts, parts, capabilities, and how each run was made."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from kvbridge.conformance import wording
from kvbridge.conformance.results import Outcome, Report, Result, counts
from kvbridge.conformance.wording import SYMBOLS
from kvbridge.markup import Child, Html, el, join, moment
from kvbridge.plain import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

MEANINGS = {
    "pipe": "Ordered pipes between two peers.",
    "buffer": "Values by key, which is what an engine's connector needs.",
    "takes": "Of all who ask to take a key's value, exactly one gets it.",
    "tombstones": "A key that was taken, dropped or has expired says so at once.",
    "slots": "Keeps blocks of an engine's cache, so that a beginning of a prompt need not be computed again.",
    "shared": "Values live in a store and outlive the process that inserted them.",
    "tensors": "Moves tensors.",
    "pages": "Moves pages of a paged KV cache.",
    "cuda": "Reaches GPU memory.",
    "cross_process": "Peers may be two processes of one host.",
    "cross_host": "Peers may be on two hosts.",
    "detaches": "Holds a copy, so that the producer's blocks are free before any consumer asks.",
    "mover": "Which side moves the bytes.",
    "max_value_bytes": "Largest single value.",
    "capacity_bytes": "What may be held at one time.",
}
"""What a flag or limit means for whoever chooses a backend."""

Row = tuple[Html, str | None, list[Html], bool]
"""A row of a small table: its name, what that means, a cell for each run, and whether the cells differ."""

_TONES = {"good": "✓", "mixed": "!", "bad": "✗"}
_CONDITIONS = {"kvbridge", "contract", "peers", "a SHOULD counts", "selection"}
"""What should be the same in all runs, and is marked where it is not."""
_SHOWN = 8
"""Failures that a card names; the rest is in the tables."""


def verdicts(reports: Sequence[Report], names: Sequence[str]) -> Html:
    """Make a card for each run, and the conditions under which runs cannot be compared."""
    cards = [_card(report, name) for report, name in zip(reports, names, strict=True)]
    conditions = wording.conditions(reports)
    warning = el(
        "div",
        el("p", el("strong", "These runs cannot be compared one to one.")),
        el("ul", [el("li", sentence) for sentence in conditions]),
        class_="warning",
        role="note",
    )
    return section("verdicts", "Verdicts", el("div", cards, class_="cards"), warning if conditions else None)


def _card(report: Report, name: str) -> Html:
    tone, headline, notes = wording.verdict(report)
    shown = [outcome for outcome in Outcome if report.count(outcome)]
    return el(
        "article",
        el("h3", name),
        el("p", report.distribution, class_="dist"),
        el("p", el("span", _TONES[tone], class_="mark", aria_hidden="true"), " ", headline, class_="verdict"),
        el(
            "div",
            [el("span", class_=css(outcome), style=f"flex-grow:{report.count(outcome)}") for outcome in shown],
            class_="share",
            aria_hidden="true",
        ),
        el("ul", [_count(report, outcome) for outcome in shown], class_="counts"),
        el("ul", [el("li", note) for note in (*notes, *report.faults)], class_="notes")
        if notes or report.faults
        else None,
        _failures(report),
        class_=f"card {tone}",
    )


def _count(report: Report, outcome: Outcome) -> Html:
    symbol = el("span", SYMBOLS[outcome], class_="mark", aria_hidden="true")
    return el("li", symbol, " ", el("b", str(report.count(outcome))), " ", outcome.value, class_=css(outcome))


def _failures(report: Report) -> Html | None:
    failed = [result.id for result in report.failures]
    if not failed:
        return None
    rest = f" and {len(failed) - _SHOWN} more" if len(failed) > _SHOWN else None
    return el(
        "p",
        "Counted against it: ",
        [[", " if at else None, link(id_)] for at, id_ in enumerate(failed[:_SHOWN])],
        rest,
        ".",
    )


def overview(reports: Sequence[Report], names: Sequence[str]) -> Html:
    """Make the table of parts: how many requirements of each passed."""
    by_id = wording.ordered(reports)
    rows = []
    for part in dict.fromkeys(id_.partition("/")[0] for id_ in by_id):
        columns = zip(*[results for id_, results in by_id.items() if id_.partition("/")[0] == part], strict=True)
        cells = [
            _part_cell([result for result in column if result], report)
            for column, report in zip(columns, reports, strict=True)
        ]
        rows.append((el("a", part, href=f"#part-{quote(plain(part))}"), wording.PARTS.get(part), cells, False))
    return section("parts", "Parts of the contract", table("How many requirements of each part passed", names, rows))


def _part_cell(results: Sequence[Result], report: Report) -> Html:
    count = {outcome: sum(result.outcome is outcome for result in results) for outcome in Outcome}
    if not results:
        return el("td", badge(None))
    if count[Outcome.UNCLAIMED] == len(results):
        return el("td", badge(results[0]))
    others = [f"{count[outcome]} {outcome.value}" for outcome in Outcome if count[outcome]][
        bool(count[Outcome.PASSED]) :
    ]
    faulty = (Outcome.FAILED, Outcome.WAIVED, Outcome.NOT_RUN)
    worst = next((outcome for outcome in faulty if count[outcome]), Outcome.PASSED)
    soft = worst is Outcome.FAILED and not any(counts(result, strict=report.strict) for result in results)
    return el(
        "td",
        el("span", SYMBOLS[worst], class_="mark", aria_hidden="true"),
        f" {count[Outcome.PASSED]} of {len(results)} passed",
        el("small", ", ".join(others), "; does not count" if soft else None) if others else None,
        class_=f"{css(worst)}{' soft' if soft else ''}",
    )


def capabilities(reports: Sequence[Report], names: Sequence[str]) -> Html:
    """Make the table of flags and limits."""
    rows = []
    for name in wording.capability_names(reports):
        said = [wording.capability(report.capabilities, name) for report in reports]
        known = [wording.tested(report, name) for report in reports]
        cells = [_flag(*pair) for pair in zip(said, known, strict=True)]
        rows.append((el("code", name), MEANINGS.get(name), cells, len(set(said)) > 1))
    caption = "What each claims, and how much of that was tested. What it does not claim, it refuses"
    return section("capabilities", "Capabilities", table(caption, names, rows))


def _flag(text: str, tested: str) -> Html:
    symbol = {"yes": SYMBOLS[Outcome.PASSED], "no": SYMBOLS[Outcome.UNCLAIMED]}.get(text)
    mark = el("span", symbol, class_="mark", aria_hidden="true") if symbol else None
    proof = [" ", el("small", tested)] if tested else None
    return el("td", mark, " " if mark else None, text, proof, class_=f"flag-{text}" if symbol else None)


def runs(reports: Sequence[Report], names: Sequence[str]) -> Html:
    """Make the table of how each run was made."""
    asked: list[tuple[str, Callable[[Report], Child]]] = [
        ("distribution", lambda report: report.distribution),
        ("kvbridge", lambda report: report.kvbridge),
        ("contract", lambda report: report.contract),
        ("options", lambda report: el("code", wording.options(report))),
        ("peers", lambda report: "processes" if report.peers == "process" else "threads of one process"),
        ("a SHOULD counts", lambda report: "yes (--strict)" if report.strict else "no"),
        ("selection", wording.selection),
        ("started", lambda report: moment(report.started)),
        ("took", lambda report: wording.in_time(report.seconds)),
    ]
    rows: list[Row] = []
    for what, ask in asked:
        said = [join(ask(report)) for report in reports]
        marked = len(set(said)) > 1 and what in _CONDITIONS
        rows.append((el("span", what), None, [el("td", text) for text in said], marked))
    for what in dict.fromkeys(key for report in reports for key in report.machine):
        on = [report.machine.get(what, "not said") for report in reports]
        rows.append((el("span", what), "machine", [el("td", text) for text in on], len(set(on)) > 1))
    return section("runs", "How the runs were made", table("Versions, options and machine", names, rows))


def section(id_: str, heading: str, *children: Child) -> Html:
    """Make a section of the page."""
    return el("section", el("h2", heading, id=f"{id_}-heading"), children, id=id_, aria_labelledby=f"{id_}-heading")


def table(caption: str, names: Sequence[str], rows: Iterable[tuple[Html, str | None, Sequence[Html], bool]]) -> Html:
    """Make a small table of the runs."""
    tag = el("span", "differs", class_="tag")
    lines = [
        el(
            "tr",
            el("th", name, [" ", tag] if differs else None, el("small", meaning) if meaning else None, scope="row"),
            cells,
            class_="differs" if differs else None,
        )
        for name, meaning, cells, differs in rows
    ]
    head = el("tr", el("td"), [el("th", name, scope="col") for name in names])
    whole = el("table", el("caption", caption, "."), el("thead", head), el("tbody", lines), class_="facts")
    return el("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def badge(result: Result | None, *, soft: bool = False) -> Html:
    """Make a result's outcome: a symbol and a word."""
    symbol, word = (
        (SYMBOLS[result.outcome], result.outcome.value) if result else (wording.ABSENT_SYMBOL, wording.ABSENT)
    )
    mark = el("span", symbol, class_="mark", aria_hidden="true")
    return el(
        "span", mark, " ", word, class_=f"badge {css(result.outcome if result else None)}{' soft' if soft else ''}"
    )


def css(outcome: Outcome | None) -> str:
    """Return the class of an outcome."""
    return outcome.value.replace(" ", "-") if outcome else "absent"


def link(id_: str) -> Html:
    """Make a link to a requirement."""
    return el("a", el("code", id_), href=f"#{quote(plain(id_))}")
