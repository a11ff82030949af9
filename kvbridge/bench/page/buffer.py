"""The page of `kvbridge bench buffer`: what operations cost beside more keys, questions or peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbridge.bench.buffer_report import NOUNS
from kvbridge.bench.figures import in_bytes, in_time, number, short
from kvbridge.bench.page import marks
from kvbridge.bench.page.axis import Axis
from kvbridge.bench.page.frame import BOTTOM, TOP
from kvbridge.bench.page.plot import Scale, Series, Words, lines
from kvbridge.bench.page.sheet import Sheet, figure, rounds, section
from kvbridge.bench.page.tables import NOTHING, table
from kvbridge.markup import Html, el

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbridge.bench.buffer_report import Held, Report, Row

TITLES = {
    "keys": "Keys that a producer holds",
    "waiting": "Questions that wait for their keys",
    "consumers": "Consumers of one producer",
    "producers": "Producers of one consumer",
}

LEAD = (
    "Memory of the engine's process over the keys or peers that it has. While Python collects garbage in full, nothing "
    "else of the process runs."
)


def sheet(report: Report) -> Sheet:
    """Make the page of a report."""
    parts = {part: [row for row in report.rows if row.part == part] for part in report.parts}
    return Sheet(
        "the control plane",
        "What keys and peers cost in the control plane",
        f"{len(report.rows)} cases, {rounds(report)}, profile {report.profile}, kvbridge {report.kvbridge}.",
        {
            "cost": ("Cost", _cost(parts)),
            "held": ("Memory", _held(report.held)),
            "operations": ("Operations", _operations(parts)),
        },
        "operations",
        [("parts", ", ".join(report.parts))],
    )


def _cost(parts: dict[str, list[Row]]) -> Html:
    known = [row.cpu_seconds for rows in parts.values() for row in rows if row.cpu_seconds > 0]
    axis = Axis(known or [1e-6], BOTTOM, TOP)
    figures = [_chart(f"cost-{number}", part, rows, axis) for number, (part, rows) in enumerate(parts.items())]
    return section(
        "cost",
        "Processor time of one operation",
        "Lower is better, and level is what is wanted: an operation that does not cost more where there is more of "
        "everything. Both axes are logarithmic.",
        el("div", figures, class_="charts"),
    )


def _chart(id_: str, part: str, rows: Sequence[Row], axis: Axis) -> Html:
    found = _series(rows)
    noun = NOUNS.get(part, (part, part))[1]
    said = ", ".join(f"{one.name} {in_time(one.values[max(one.values)])}" for one in found)
    largest = max(row.size for row in rows)
    about = f"Processor time against {noun}, both logarithmic. At {largest:,}: {said}. All figures: in the table."
    words = Words(
        _count,
        noun,
        lambda tick: in_time(tick, short),
        "CPU",
        lambda size, value: f"{size:,} {noun}: {in_time(value)}",
    )
    title = TITLES.get(part, part)
    sizes = sorted({row.size for row in rows})
    chart = lines(id_, f"Cost: {title}", about, found, Scale(sizes, axis), words)
    body = [
        el(
            "tr",
            el("th", f"{size:,}", scope="row"),
            [el("td", in_time(one.values[size]) if size in one.values else NOTHING) for one in found],
        )
        for size in sizes
    ]
    figures = table(f"{title}: processor time", [noun], [one.name for one in found], el("tbody", body))
    return figure(id_, title, chart, [(one.name, one.look) for one in found], figures)


def _series(rows: Sequence[Row]) -> list[Series]:
    names = dict.fromkeys(row.operation for row in rows)
    found = [
        Series(
            name,
            marks.backend(index),
            {row.size: row.cpu_seconds for row in rows if row.operation == name and row.cpu_seconds > 0},
        )
        for index, name in enumerate(names)
    ]
    return [one for one in found if one.values]


def _count(size: int) -> tuple[str, str]:
    for unit, name in ((10**6, "M"), (10**3, "K")):
        if size >= unit:
            return f"{short(size / unit)} {name}", ""
    return str(size), ""


def _held(rows: Sequence[Held]) -> Html:
    body = [
        el(
            "tr",
            el("th", row.case, scope="row"),
            el("td", in_bytes(round(max(0.0, row.bytes_each)))),
            el("td", NOTHING if row.files_each is None else number(row.files_each)),
            el("td", NOTHING if row.idle_share is None else f"{row.idle_share:.1%}"),
            el("td", NOTHING if row.collect_seconds is None else in_time(row.collect_seconds)),
        )
        for row in rows
    ]
    names = ["memory of each", "open files of each", "idle, of a core", "full collection"]
    return section("held", "What each takes", LEAD, table("What each takes", ["held"], names, el("tbody", body)))


def _operations(parts: dict[str, list[Row]]) -> Html:
    found = []
    for part, rows in parts.items():
        title = TITLES.get(part, part)
        body = []
        for name in dict.fromkeys(row.operation for row in rows):
            same = [row for row in rows if row.operation == name]
            first = el("th", name, scope="rowgroup", rowspan=str(len(same)))
            body.append(el("tbody", [_line(row, None if index else first) for index, row in enumerate(same)]))
        names = ["per s", "CPU", "messages", "of least"]
        found.append([el("h3", title), table(f"{title}: operations", ["operation", "beside"], names, body)])
    return section(
        "operations",
        "Operations",
        "Beside a plain message of the same round, and beside the smallest size in the same round: what a busy machine "
        "does to one side of a ratio it does to the other.",
        found,
    )


def _line(row: Row, first: Html | None) -> Html:
    cells = (f"{row.per_s:,.0f}", in_time(row.cpu_seconds), number(row.messages), number(row.of_smallest))
    return el("tr", first, el("th", row.case, scope="row"), [el("td", cell) for cell in cells])
