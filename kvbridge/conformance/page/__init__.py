"""The reports as one HTML page that needs nothing else: backends side by side, for whoever has to choose one.

Text of a report is escaped (`kvbridge.markup`), and the page's own policy allows no script but the page's own and no
network, so that a report from elsewhere can be looked at without care.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from string import Template
from typing import TYPE_CHECKING

from kvbridge.conformance.page.parts import requirements
from kvbridge.conformance.page.top import capabilities, overview, runs, verdicts
from kvbridge.conformance.wording import labels, ordered, some
from kvbridge.markup import escape, join

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvbridge.conformance.results import Report

__all__ = ["write_page"]

_MANY = 5
"""Columns from which on the tables scroll sideways."""


def write_page(path: Path, reports: Sequence[Report]) -> None:
    """Write the page of one or several reports.

    Args:
        path: The HTML file; one that exists is replaced.
        reports: One for each column, in this order.

    Raises:
        ValueError: There is no report.
        OSError: The file cannot be written.
    """
    path.write_bytes(_page(reports).encode())


def _page(reports: Sequence[Report]) -> str:
    if not reports:
        raise ValueError("found no report, expected at least one: run the suite first")
    names = labels(reports)
    script, style = _file("page.js"), _file("page.css")
    body = [
        verdicts(reports, names),
        overview(reports, names),
        capabilities(reports, names),
        runs(reports, names),
        requirements(reports, names),
    ]
    return Template(_file("page.html")).substitute(
        title=escape(f"kvbridge conformance: {', '.join(names)}"),
        heading=escape(f"Conformance of {names[0] if len(names) == 1 else _how_many(reports)}"),
        lead=escape(_lead(reports, names)),
        width="many" if len(names) >= _MANY else "one few" if len(names) == 1 else "few",
        style=style,
        script=script,
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        body=join(body),
    )


def _file(name: str) -> str:
    return (resources.files(__name__) / name).read_text(encoding="utf-8")


def _how_many(reports: Sequence[Report]) -> str:
    backends = {report.backend for report in reports}
    return f"{len(reports)} {'backends' if len(backends) == len(reports) else 'runs'}"


def _lead(reports: Sequence[Report], names: Sequence[str]) -> str:
    contracts = sorted({report.contract for report in reports})
    against = f"contract {contracts[0]}" if len(contracts) == 1 else f"contracts {' and '.join(contracts)}"
    who = f"{', '.join(names)}: " if len(names) > 1 else ""
    return f"{who}{some(len(ordered(reports)), 'requirement')} of {against}."
