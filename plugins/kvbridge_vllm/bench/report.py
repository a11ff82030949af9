"""What was measured, as a report and as tables."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from kvbridge.bench import report
from kvbridge.bench.figures import in_bytes
from kvbridge.bench.serve_report import Report, middle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from kvbridge.bench.serve_report import Load
    from kvbridge_vllm.bench.measure import Cell, Floors, Measurement, Samples

DEFINITIONS = {
    "TTFT": "time to first token: from sending the decode leg of a request, with what the prefill leg returned, until "
    "its first token is here. The prefill engine has computed the prompt before, so that what is measured is the "
    "hand-over and one step of the decode engine. Median of all requests, and p95.",
    "local": "TTFT of the same prompt at an engine that has its KV in its own prefix cache, one request at a time; "
    "median, each round. copy: one plain copy of that KV in memory, each round. floor: both together.",
    "computed": "TTFT of a prompt of that length that nobody asked before, one request, each round: what a request "
    "costs without any hand-over.",
    "of floor": "TTFT of a round over the floor of that round; median of the rounds.",
    "between tokens": "the median time between two tokens of an answer.",
    "rate": "whole requests, both legs one after the other, over the time of all of them; median of the rounds.",
    "cpu": "processor time of both engines for a request; median of the rounds.",
    "right": "answers that are equal to those of an engine that had the KV already.",
    "engines": "those that are not being measured are stopped (SIGSTOP): they cost the others nothing, and all are "
    "measured in every round, one after the other.",
}
"""What the figures mean."""


def describe(measured: Measurement, cells: Sequence[Cell], rounds: int, **facts: Any) -> dict[str, Any]:
    """Make the report: figures, and what they were got with."""
    rows = [
        {"connector": name, **_row(cell, measured.samples[name, cell], measured.floors[cell])}
        for name in dict.fromkeys(name for name, _ in measured.samples)
        for cell in cells
        if (name, cell) in measured.samples
    ]
    seen = {cell for _, cell in measured.samples}
    floors = [{**_load(cell), **measured.floors[cell].seconds} for cell in cells if cell in seen]
    failed = [
        f"{name}, {cell.concurrent} x {cell.tokens} tokens: {why}" for (name, cell), why in measured.failed.items()
    ]
    return report.describe("serve", rows, rounds, DEFINITIONS, floors=floors, failed=failed, **facts)


def _load(cell: Cell) -> dict[str, int]:
    return {"tokens": cell.tokens, "concurrent": cell.concurrent}


def _row(cell: Cell, samples: Samples, floors: Floors) -> dict[str, Any]:
    ratios = [seconds / floor for seconds, floor in zip(samples.first_rounds, floors.rounds, strict=True)]
    return {
        **_load(cell),
        "requests": len(samples.first),
        "ttft_seconds": statistics.median(samples.first),
        "ttft_seconds_p95": float(np.percentile(samples.first, 95)),
        "ttft_seconds_rounds": samples.first_rounds,
        "of_floor": statistics.median(ratios),
        "of_floor_rounds": ratios,
        "between_tokens_seconds": statistics.median(samples.between) if samples.between else None,
        "requests_per_s": statistics.median(samples.rates),
        "requests_per_s_rounds": samples.rates,
        "cpu_seconds_per_request": statistics.median(samples.cpu),
        "right": samples.right,
        "wrong": samples.wrong,
    }


def show(found: Report, console: Console) -> None:
    """Print a table for each length of prompts."""
    for tokens in dict.fromkeys(floor.tokens for floor in found.floors):
        loads = [floor.load for floor in found.floors if floor.tokens == tokens]
        kv = in_bytes(found.kv_bytes_per_token * tokens)
        table = Table(
            *("at a time", "connector", "TTFT (median)", "p95", "of floor", "between tokens", "rate", "cpu", "right"),
            title=f"{tokens} tokens, {kv} of KV, {found.rounds} interleaved rounds; {_floors(found, loads[0])}",
        )
        for load in loads:
            _add(table, found, load)
        console.print(table)
    for one in found.failed:
        console.print(f"left out: {one}", markup=False, soft_wrap=True)
    for name, text in DEFINITIONS.items():
        console.print(f"[bold]{name}[/]: {text}")


def _floors(found: Report, load: Load) -> str:
    floor = found.floor(load)
    named = (("local", floor.local), ("floor", floor.rounds), ("computed", floor.computed))
    return ", ".join(f"{name} {_ms(middle(rounds))}" for name, rounds in named)


def _add(table: Table, found: Report, load: Load) -> None:
    rows = [row for row in found.rows if row.load == load]
    best = min(row.ttft for row in rows)
    for row in rows:
        mark = "[bold]" if row.ttft == best else ""
        table.add_row(
            str(load.concurrent),
            f"{mark}{row.connector}",
            f"{mark}{_ms(row.ttft)}",
            _ms(row.ttft_p95),
            f"{row.of_floor:.2f}",
            "" if row.between is None else _ms(row.between),
            f"{row.per_s:.2f}/s",
            f"{row.cpu:.2f} s",
            f"{row.right} of {row.right + row.wrong}",
        )
    table.add_section()


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms"
