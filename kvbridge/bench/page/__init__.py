"""A report of `kvbridge bench transfer` as one HTML page that needs nothing else: charts, tables, what they mean.

Text of a report is escaped (`kvbridge.markup`), and the page's own policy allows neither a script nor the network, so
that a report from elsewhere can be looked at without care.
"""

from __future__ import annotations

from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any

from kvbridge.bench.page import charts, marks, tables
from kvbridge.bench.page.axis import Axis
from kvbridge.bench.page.charts import Scale
from kvbridge.bench.transfer_report import Group, Report, Row, parse
from kvbridge.markup import Child, Html, el, escape, join

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["write_page"]


def write_page(path: Path, report: Mapping[str, Any]) -> None:
    """Write the page of a report.

    Args:
        path: The HTML file; one that exists is replaced.
        report: What `kvbridge.bench.transfer.describe` made, or JSON gave back.

    Raises:
        KVBridgeError: It is a report of another benchmark, or not complete.
        OSError: The file cannot be written.
    """
    path.write_bytes(_page(parse(dict(report), "the report")).encode())


def _page(report: Report) -> str:
    names = ", ".join(report.backends)
    groups: dict[Group, list[Row]] = {}
    for row in sorted(report.rows, key=lambda row: row.flight):
        groups.setdefault(row.group, []).append(row)
    layouts = list(dict.fromkeys(row.layout for row in report.rows))
    groups = dict(sorted(groups.items(), key=lambda pair: (pair[0].flight, layouts.index(pair[0].layout))))
    body = [_bandwidth(report, groups), _latency(report, groups), _ratios(report, groups), _meaning(report)]
    return Template((resources.files(__name__) / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(f"kvbridge bench transfer: {names}"),
        heading=escape(f"Hand-over between two processes: {names}"),
        lead=escape(
            f"{len(report.rows)} cases, {report.rounds} interleaved {'round' if report.rounds == 1 else 'rounds'}, "
            f"profile {report.profile}, kvbridge {report.kvbridge}."
        ),
        style=(resources.files(__name__) / "page.css").read_text(encoding="utf-8"),
        body=join(body),
    )


def _bandwidth(report: Report, groups: Mapping[Group, list[Row]]) -> Html:
    lines = {group: charts.series(rows, report.backends) for group, rows in groups.items()}
    known = [value for some in lines.values() for one in some for value in one.values.values()]
    scale = Scale(charts.sizes(report), Axis(known, charts.BOTTOM, charts.TOP))
    figures = [
        _figure(
            f"bandwidth-{number}",
            group,
            charts.bandwidth(f"bandwidth-{number}", f"Bandwidth: {group.words}", lines[group], scale),
            [(one.name, one.look) for one in lines[group]],
            tables.bandwidths(group.words, lines[group]),
        )
        for number, group in enumerate(groups)
    ]
    return _section(
        "bandwidth",
        "Bandwidth",
        "Higher is better. Beside each backend the same run copied as many bytes in memory, and sent them over a "
        "socket: those lines are medians over the backends. Both axes are logarithmic.",
        el("div", figures, class_="charts"),
    )


def _latency(report: Report, groups: Mapping[Group, list[Row]]) -> Html:
    known = [value for row in report.rows for value in (row.seconds.p50, row.seconds.p90, row.seconds.p99)]
    scale = Scale(charts.sizes(report), Axis(known, charts.BOTTOM, charts.TOP))
    looks = [(name, marks.backend(index)) for index, name in enumerate(report.backends)]
    figures = [
        _figure(
            f"latency-{number}",
            group,
            charts.latency(f"latency-{number}", f"Latency: {group.words}", rows, report.backends, scale),
            [(name, look) for name, look in looks if any(row.backend == name for row in rows)],
            tables.latencies(group.words, rows, report.backends),
        )
        for number, (group, rows) in enumerate(groups.items())
    ]
    return _section(
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
    return _section(
        "ratios",
        "Ratios and processor time",
        "Beside what moved as many bytes in the same round: 1 is as fast, 0.5 takes twice as long. What a busy machine "
        "does to one side of a ratio it does to the other.",
        found,
    )


def _meaning(report: Report) -> Html:
    words = el("dl", [[el("dt", name), el("dd", text)] for name, text in report.definitions.items()])
    return join(
        [
            _section("definitions", "What the figures mean", None, words),
            _section("run", "How it was measured", None, tables.facts(report)),
        ]
    )


def _figure(id_: str, group: Group, chart: Html, looks: list[tuple[str, marks.Look]], table: Html) -> Html:
    heading = el("figcaption", el("h3", group.words, id=id_))
    figures = el("details", el("summary", "Figures"), table)
    return el("figure", heading, marks.legend(looks), chart, figures, aria_labelledby=id_)


def _section(id_: str, heading: str, lead: str | None, *children: Child) -> Html:
    return el(
        "section",
        el("h2", heading, id=f"{id_}-heading"),
        el("p", lead, class_="lead") if lead else None,
        children,
        id=id_,
        aria_labelledby=f"{id_}-heading",
    )
