"""What the pages of all benchmarks have in common: their frame, sections, charts with their tables, and the run."""

from __future__ import annotations

from importlib import resources
from string import Template
from typing import TYPE_CHECKING, NamedTuple

from kvbridge.bench.page import marks, tables
from kvbridge.markup import Child, Html, el, escape, join

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbridge.bench.report import Report


class Sheet(NamedTuple):
    """What is on a page.

    Attributes:
        title: What was measured, in a few words.
        heading: The same as a heading.
        lead: How much was measured.
        sections: Names and contents by their ids.
        tables: Id of the section that has the figures as tables.
        facts: What the run was of.
    """

    title: str
    heading: str
    lead: str
    sections: dict[str, tuple[str, Html]]
    tables: str
    facts: list[tuple[str, str]]


def whole(report: Report, sheet: Sheet) -> str:
    """Make the page."""
    words = el("dl", [[el("dt", name), el("dd", text)] for name, text in report.definitions.items()])
    sections = {
        **sheet.sections,
        "definitions": ("Definitions", section("definitions", "What the figures mean", None, words)),
        "run": ("Run", section("run", "How it was measured", None, tables.facts(report, sheet.facts))),
    }
    links = [[el("a", name, href=f"#{id_}"), " "] for id_, (name, _) in sections.items()]
    return Template((resources.files(__package__) / "page.html").read_text(encoding="utf-8")).substitute(
        brand=escape(f"kvbridge bench {report.benchmark}"),
        title=escape(f"kvbridge bench {report.benchmark}: {sheet.title}"),
        heading=escape(sheet.heading),
        lead=escape(sheet.lead),
        nav=join(links),
        tables=escape(sheet.tables),
        style=(resources.files(__package__) / "page.css").read_text(encoding="utf-8"),
        body=join([content for _, content in sections.values()]),
    )


def rounds(report: Report) -> str:
    """Say how often everything was measured."""
    return f"{report.rounds} interleaved {'round' if report.rounds == 1 else 'rounds'}"


def figure(id_: str, words: str, chart: Html, looks: Sequence[tuple[str, marks.Look]], table: Html) -> Html:
    """Make a chart with its heading, its legend, and its figures."""
    heading = el("figcaption", el("h3", words, id=id_))
    figures = el("details", el("summary", "Figures"), table)
    return el("figure", heading, marks.legend(looks), chart, figures, aria_labelledby=id_)


def section(id_: str, heading: str, lead: str | None, *children: Child) -> Html:
    """Make a section."""
    return el(
        "section",
        el("h2", heading, id=f"{id_}-heading"),
        el("p", lead, class_="lead") if lead else None,
        children,
        id=id_,
        aria_labelledby=f"{id_}-heading",
    )
