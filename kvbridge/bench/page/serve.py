"""The page of `kvbridge bench serve`: time to first token of each connector beside the floors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbridge.bench.figures import in_bytes, in_time, number
from kvbridge.bench.page import marks
from kvbridge.bench.page.bars import Bar, Group, Line, bars
from kvbridge.bench.page.sheet import Sheet, figure, rounds, section
from kvbridge.bench.page.tables import NOTHING, table
from kvbridge.bench.serve_report import middle
from kvbridge.markup import Child, Html, el

if TYPE_CHECKING:
    from kvbridge.bench.serve_report import Floor, Load, Report, Row

LOCAL, COMPUTED = "in its own cache", "computed"


def sheet(report: Report) -> Sheet:
    """Make the page of a report."""
    names = ", ".join(report.connectors)
    loads = "1 load" if len(report.floors) == 1 else f"{len(report.floors)} loads"
    return Sheet(
        names,
        f"Hand-over between engines: {names}",
        f"{loads}, {rounds(report)}, {report.dtype}, kvbridge {report.kvbridge}.",
        {
            "first": ("First token", _first(report)),
            "figures": ("Figures", _figures(report)),
        },
        "figures",
        [("connectors", names), ("dtype", report.dtype)],
    )


def _first(report: Report) -> Html:
    lengths = dict.fromkeys(floor.tokens for floor in report.floors)
    figures = [_chart(report, f"first-{index}", tokens) for index, tokens in enumerate(lengths)]
    return section(
        "first",
        "Time to first token",
        "Lower is better. A bar is the median of all requests, its stem ends at p95. The lines are an engine that has "
        "the prompt's KV in its own cache, which no hand-over can beat, and one that computes the prompt, which a "
        "hand-over has to beat. A line that would be far above all bars is left to the table.",
        el("div", figures, class_="charts"),
    )


def _chart(report: Report, id_: str, tokens: int) -> Html:
    words = f"{tokens:,} tokens, {in_bytes(tokens * report.kv_bytes_per_token)} of KV"
    floors = [floor for floor in report.floors if floor.tokens == tokens]
    groups = [_group(report, floor) for floor in floors]
    said = "; ".join(
        f"{floor.concurrent} at a time: " + ", ".join(f"{bar.name} {in_time(bar.value)}" for bar in group.bars)
        for floor, group in zip(floors, groups, strict=True)
    )
    about = f"Median time to first token. {said}. All figures: in the table."
    chart = bars(id_, f"Time to first token: {words}", about, groups, "requests at a time")
    looks = [(name, marks.backend(index)) for index, name in enumerate(report.connectors)]
    looks += [(LOCAL, marks.LOCAL), (COMPUTED, marks.COMPUTED)]
    return figure(id_, words, chart, looks, _times(report, words, floors))


def _group(report: Report, floor: Floor) -> Group:
    rows = [row for row in report.rows if row.load == floor.load]
    return Group(
        (str(floor.concurrent), ""),
        [
            Bar(row.connector, marks.backend(report.connectors.index(row.connector)), row.ttft, row.ttft_p95)
            for row in rows
        ],
        [
            Line(LOCAL, marks.LOCAL.css, middle(floor.local)),
            Line(COMPUTED, marks.COMPUTED.css, middle(floor.computed)),
        ],
    )


def _times(report: Report, words: str, floors: list[Floor]) -> Html:
    body = []
    for floor in floors:
        lines = [(row.connector, in_time(row.ttft), in_time(row.ttft_p95)) for row in _rows(report, floor.load)]
        lines += [(LOCAL, in_time(middle(floor.local)), NOTHING), (COMPUTED, in_time(middle(floor.computed)), NOTHING)]
        first = el("th", str(floor.concurrent), scope="rowgroup", rowspan=str(len(lines)))
        body.append(
            el(
                "tbody",
                [
                    el("tr", None if index else first, el("th", name, scope="row"), el("td", p50), el("td", p95))
                    for index, (name, p50, p95) in enumerate(lines)
                ],
            )
        )
    return table(f"{words}: time to first token", ["at a time", "of"], ["median", "p95"], body)


def _rows(report: Report, load: Load) -> list[Row]:
    return [row for row in report.rows if row.load == load]


def _figures(report: Report) -> Html:
    names = ["TTFT", "p95", "of floor", "of computed", "between tokens", "rate", "CPU s", "right"]
    body = []
    for floor in report.floors:
        rows = _rows(report, floor.load)
        first = el("th", floor.load.words, scope="rowgroup", rowspan=str(len(rows)))
        body.append(el("tbody", [_line(row, floor, None if index else first) for index, row in enumerate(rows)]))
    lead = (
        "Beside the floor of the same round: KV that is there, and one plain copy of it; and beside an engine that "
        "computes the prompt. The prefill leg comes before, and is in none of these times."
    )
    return section("figures", "Figures", lead, table("Figures of each load", ["load", "connector"], names, body))


def _line(row: Row, floor: Floor, first: Child) -> Html:
    cells = (
        in_time(row.ttft),
        in_time(row.ttft_p95),
        number(row.of_floor),
        number(row.ttft / middle(floor.computed)),
        NOTHING if row.between is None else in_time(row.between),
        f"{number(row.per_s)}/s",
        number(row.cpu),
        f"{row.right} of {row.right + row.wrong}",
    )
    return el("tr", first, el("th", row.connector, scope="row"), [el("td", cell) for cell in cells])
