"""The page of `kvbridge bench transfer`: bandwidth and latency by size, and ratios to what is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbridge.bench.page import charts, marks, tables
from kvbridge.bench.page.axis import Axis
from kvbridge.bench.page.frame import BOTTOM, TOP
from kvbridge.bench.page.plot import Scale
from kvbridge.bench.page.sheet import Sheet, figure, rounds, section
from kvbridge.markup import Html, el

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvbridge.bench.transfer_report import Group, Report, Row


def sheet(report: Report) -> Sheet:
    """Make the page of a report."""
    names = ", ".join(report.backends)
    groups: dict[Group, list[Row]] = {}
    for row in sorted(report.rows, key=lambda row: row.flight):
        groups.setdefault(row.group, []).append(row)
    layouts = list(dict.fromkeys(row.layout for row in report.rows))
    groups = dict(sorted(groups.items(), key=lambda pair: (pair[0].flight, layouts.index(pair[0].layout))))
    return Sheet(
        names,
        f"Hand-over between two processes: {names}",
        f"{len(report.rows)} cases, {rounds(report)}, profile {report.profile}, kvbridge {report.kvbridge}.",
        {
            "bandwidth": ("Bandwidth", _bandwidth(report, groups)),
            "latency": ("Latency", _latency(report, groups)),
            "ratios": ("Ratios", _ratios(report, groups)),
        },
        "ratios",
        [("backends", names)],
    )


def _bandwidth(report: Report, groups: Mapping[Group, list[Row]]) -> Html:
    lines = {group: charts.series(rows, report.backends) for group, rows in groups.items()}
    known = [value for some in lines.values() for one in some for value in one.values.values()]
    scale = Scale(charts.sizes(report), Axis(known, BOTTOM, TOP))
    figures = [
        figure(
            f"bandwidth-{number}",
            group.words,
            charts.bandwidth(f"bandwidth-{number}", f"Bandwidth: {group.words}", lines[group], scale),
            [(one.name, one.look) for one in lines[group]],
            tables.bandwidths(group.words, lines[group]),
        )
        for number, group in enumerate(groups)
    ]
    return section(
        "bandwidth",
        "Bandwidth",
        "Higher is better. Beside each backend the same run copied as many bytes in memory, and sent them over a "
        "socket: those lines are medians over the backends. Both axes are logarithmic.",
        el("div", figures, class_="charts"),
    )


def _latency(report: Report, groups: Mapping[Group, list[Row]]) -> Html:
    known = [value for row in report.rows for value in (row.seconds.p50, row.seconds.p90, row.seconds.p99)]
    scale = Scale(charts.sizes(report), Axis(known, BOTTOM, TOP))
    looks = [(name, marks.backend(index)) for index, name in enumerate(report.backends)]
    figures = [
        figure(
            f"latency-{number}",
            group.words,
            charts.latency(f"latency-{number}", f"Latency: {group.words}", rows, report.backends, scale),
            [(name, look) for name, look in looks if any(row.backend == name for row in rows)],
            tables.latencies(group.words, rows, report.backends),
        )
        for number, (group, rows) in enumerate(groups.items())
    ]
    return section(
        "latency",
        "Latency",
        "Lower is better. The mark stands at the median of all hand-overs, the dash on its stem at p90, the end of the "
        "stem at p99. The axis of times is logarithmic.",
        el("div", figures, class_="charts"),
    )


def _ratios(report: Report, groups: Mapping[Group, list[Row]]) -> Html:
    found = [
        [el("h3", group.words), tables.ratios(group.words, rows, report.backends)] for group, rows in groups.items()
    ]
    return section(
        "ratios",
        "Ratios and processor time",
        "Beside what moved as many bytes in the same round: 1 is as fast, 0.5 takes twice as long. What a busy machine "
        "does to one side of a ratio it does to the other.",
        found,
    )
