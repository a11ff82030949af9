"""What was measured, as tables and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from kvbridge.bench.machine import describe_machine
from kvbridge.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from kvbridge_vllm.bench.measure import Cell, Measurement

LEGEND = (
    "TTFT: from sending the decode leg until its first token; the prompt was computed before. "
    "of floor: TTFT over that of an engine that has the KV, plus one copy of it. "
    "rate: whole requests, both legs. cpu: processor time of both engines for a request. "
    "Engines that are not measured are stopped; all are measured in every round."
)


def as_json(measured: Measurement, cells: Sequence[Cell], facts: dict[str, Any]) -> dict[str, Any]:
    """Return everything as JSON values."""
    return {
        "kvbridge": __version__,
        "machine": describe_machine(),
        **facts,
        "floors": [
            {"tokens": cell.tokens, "concurrent": cell.concurrent, "seconds": measured.floors[cell]} for cell in cells
        ],
        "contenders": {
            name: [measured.samples[name, cell].row(cell) for cell in cells]
            for name in dict.fromkeys(name for name, _ in measured.samples)
        },
    }


def show(found: dict[str, Any], console: Console) -> None:
    """Print a table for each cell's length of prompt."""
    names = list(found["contenders"])
    floors = {(floor["tokens"], floor["concurrent"]): floor["seconds"] for floor in found["floors"]}
    for tokens in dict.fromkeys(tokens for tokens, _ in floors):
        table = Table(
            "at a time",
            "connector",
            "TTFT (median)",
            "p95",
            "of floor",
            "between tokens",
            "rate",
            "cpu",
            "right",
            title=f"{tokens} tokens, {found['kv_bytes_per_token'] * tokens / (1 << 20):.0f} MiB of KV, "
            f"{found['rounds']} interleaved rounds; floor {floors[tokens, 1] * 1000:.0f} ms"
            if (tokens, 1) in floors
            else f"{tokens} tokens",
        )
        for concurrent in (concurrent for one, concurrent in floors if one == tokens):
            rows = {name: _row(found["contenders"][name], tokens, concurrent) for name in names}
            best = min(row["ttft_median"] for row in rows.values())
            for name, row in rows.items():
                mark = "[bold]" if row["ttft_median"] == best else ""
                table.add_row(
                    str(concurrent),
                    f"{mark}{name}",
                    f"{mark}{row['ttft_median'] * 1000:,.0f} ms",
                    f"{row['ttft_p95'] * 1000:,.0f} ms",
                    f"{row['ttft_median'] / floors[tokens, concurrent]:.2f}",
                    "" if row["between_median"] is None else f"{row['between_median'] * 1000:,.0f} ms",
                    f"{row['requests_per_s']:.2f}/s",
                    f"{row['cpu_seconds_per_request']:.2f} s",
                    f"{row['right']} of {row['right'] + row['wrong']}",
                )
            table.add_section()
        console.print(table)
    console.print(LEGEND, soft_wrap=True)


def _row(rows: list[dict[str, Any]], tokens: int, concurrent: int) -> dict[str, Any]:
    return next(row for row in rows if row["tokens"] == tokens and row["concurrent"] == concurrent)
