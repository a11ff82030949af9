"""A report of a benchmark as one HTML page that needs nothing else: charts, tables, what they mean.

Text of a report is escaped (`kvbridge.markup`), and the page's own policy allows neither a script nor the network, so
that a report from elsewhere can be looked at without care.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kvbridge.bench.page.sheet import whole
from kvbridge.bench.report import parse

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["write_page"]


def write_page(path: Path, report: Mapping[str, Any]) -> None:
    """Write the page of a report.

    Args:
        path: The HTML file; one that exists is replaced.
        report: What `kvbridge.bench.report.describe` made, or JSON gave back.

    Raises:
        KVBridgeError: It is a report of a benchmark that has no page, or not complete.
        OSError: The file cannot be written.
    """
    found = parse(dict(report), "the report")
    kind = importlib.import_module(f"{__name__}.{found.benchmark}")
    path.write_bytes(whole(found, kind.sheet(found)).encode())
