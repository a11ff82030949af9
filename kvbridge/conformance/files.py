"""A report in the files that were asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvbridge.conformance.junit import write_junit
from kvbridge.conformance.results import write_reports

if TYPE_CHECKING:
    from kvbridge.conformance.results import Report


def write_files(report: Report, *, json: str | None, html: str | None, junit: str | None = None) -> None:
    """Write a report to the files that were asked for.

    Raises:
        OSError: One cannot be written.
    """
    if json is not None:
        write_reports(Path(json), [report])
    if junit is not None:
        write_junit(Path(junit), report)
    if html is not None:
        from kvbridge.conformance.page import write_page  # noqa: PLC0415 - rarely wanted

        write_page(Path(html), [report])
