"""`kvbridge backends`: what is installed, from which distribution, and whether it works here. Imports no backend."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvbridge.registry import Entry, Probed, list_backends, probe_backend

PARALLEL = 2
"""Probes at a time: importing a vendor's library is heavy."""


def show(*, as_json: bool, probe: bool) -> int:
    """Print the list. Returns the exit code."""
    entries = list_backends()
    twice = {name for name, count in Counter(entry.name for entry in entries).items() if count > 1}
    probed: list[Probed | None] = [None] * len(entries)
    if probe:
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="kvbridge-probe") as pool:
            probed = list(pool.map(lambda entry: probe_backend(entry.name), entries))
    rows = [_row(entry, found, twice=entry.name in twice) for entry, found in zip(entries, probed, strict=True)]
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(rows)).decode())
    else:
        _table(rows)
    broken = any(row["broken"] for row in rows)
    return int(broken or (probe and not any(row["available"] for row in rows)))


def _row(entry: Entry, found: Probed | None, *, twice: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": entry.name,
        "distribution": entry.distribution,
        "version": entry.version,
        "target": entry.target,
        "available": None if found is None else found.probe.ok,
        "broken": twice or (found is not None and bool(found.fault)),
        "reason": "" if found is None else found.probe.reason,
        "capabilities": None,
    }
    if twice:
        row["available"] = False
    if found is not None and found.capabilities is not None:
        row["capabilities"] = msgspec.to_builtins(found.capabilities)
    return row


def _table(rows: list[dict[str, Any]]) -> None:
    console = Console()
    if not rows:
        console.print("No backend is installed: reinstall kvbridge, whose distribution brings the backend 'cpu'.")
        return
    table = Table("backend", "works here", "what it is", show_lines=True)
    for row in rows:
        works = {True: "[green]yes[/]", False: "[red]no[/]", None: "not probed"}[row["available"]]
        flags = [name for name, value in (row["capabilities"] or {}).items() if value is True]
        moves = (row["capabilities"] or {}).get("mover")
        shown = ", ".join([*flags, *([f"mover={moves}"] if moves else [])])
        about = (f"{row['distribution']} {row['version']}", row["reason"], shown)
        table.add_row(row["name"], works, Text("\n".join(filter(None, about))))
    console.print(table)
