"""The tables: the figures of the charts, ratios to what they are compared with, and how all was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbridge.bench.figures import in_bytes, in_time, number
from kvbridge.markup import Child, Html, el, moment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbridge.bench.page.plot import Series
    from kvbridge.bench.report import Report
    from kvbridge.bench.transfer_report import Row

NOTHING = "\N{EN DASH}"

_RATIOS: list[tuple[str, Callable[[Row], str]]] = [
    ("GB/s", lambda row: number(row.gb_per_s)),
    ("of memcpy", lambda row: _ratio(row.of_memcpy)),
    ("of socket", lambda row: _ratio(row.of_socket)),
    ("of raw", lambda row: _ratio(row.of_raw)),
    ("added to raw", lambda row: NOTHING if row.added_to_raw is None else in_time(row.added_to_raw)),
    ("CPU s/GiB, producer", lambda row: number(row.cpu.producer)),
    ("CPU s/GiB, consumer", lambda row: number(row.cpu.consumer)),
]
_TIMES: list[tuple[str, Callable[[Row], str]]] = [
    ("p50", lambda row: in_time(row.seconds.p50)),
    ("p90", lambda row: in_time(row.seconds.p90)),
    ("p99", lambda row: in_time(row.seconds.p99)),
    ("hand-overs", lambda row: f"{row.count:,}"),
]


def bandwidths(title: str, lines: Sequence[Series]) -> Html:
    """Make the table of a chart of bandwidth."""
    sizes = sorted({nbytes for one in lines for nbytes in one.values})
    body = [
        el(
            "tr",
            el("th", in_bytes(nbytes), scope="row"),
            [el("td", number(one.values[nbytes]) if nbytes in one.values else NOTHING) for one in lines],
        )
        for nbytes in sizes
    ]
    return table(f"{title}: GB/s", ["size"], [one.name for one in lines], el("tbody", body))


def latencies(title: str, rows: Sequence[Row], backends: Sequence[str]) -> Html:
    """Make the table of a chart of latency."""
    return _by_size(f"{title}: time of one hand-over", rows, backends, _TIMES)


def ratios(title: str, rows: Sequence[Row], backends: Sequence[str]) -> Html:
    """Make a table of what a hand-over costs beside other means."""
    return _by_size(f"{title}: ratios and processor time", rows, backends, _RATIOS)


def _ratio(value: float | None) -> str:
    return NOTHING if value is None else number(value)


def _by_size(
    caption: str, rows: Sequence[Row], backends: Sequence[str], columns: Sequence[tuple[str, Callable[[Row], str]]]
) -> Html:
    """Make a table with the backends side by side in each size."""
    body = []
    for nbytes in sorted({row.nbytes for row in rows}):
        same = sorted((row for row in rows if row.nbytes == nbytes), key=lambda row: backends.index(row.backend))
        first = el("th", in_bytes(nbytes), scope="rowgroup", rowspan=str(len(same)))
        lines = [
            el(
                "tr",
                None if index else first,
                el("th", row.backend, scope="row"),
                [el("td", say(row)) for _, say in columns],
            )
            for index, row in enumerate(same)
        ]
        body.append(el("tbody", lines))
    return table(caption, ["size", "backend"], [name for name, _ in columns], body)


def table(caption: str, words: Sequence[str], numbers: Sequence[str], body: Child) -> Html:
    """Make a table with a head: columns of words, then columns of numbers."""
    head = [el("th", name, scope="col", class_="words") for name in words]
    head += [el("th", name, scope="col") for name in numbers]
    whole = el("table", el("caption", caption), el("thead", el("tr", head)), body, class_="figures")
    return el("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def facts(report: Report, first: Sequence[tuple[str, str]]) -> Html:
    """Make the table of how all was measured; `first` is what was."""
    known: list[tuple[str, Child]] = [
        *first,
        ("rounds", f"{report.rounds:,}, interleaved"),
        *([("profile", report.profile)] if report.profile else []),
        ("kvbridge", report.kvbridge),
        ("when", moment(report.when)),
        *((f"machine: {name}", str(value)) for name, value in report.machine.items()),
    ]
    body = [el("tr", el("th", name, scope="row"), el("td", value)) for name, value in known]
    return el("table", el("caption", "Machine, versions and rounds"), el("tbody", body), class_="facts")
