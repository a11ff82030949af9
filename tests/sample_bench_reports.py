"""Reports of benchmarks for tests: made by their own code, of times that are written down here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvbridge.bench import transfer
from kvbridge.bench.buffer import run as buffer
from kvbridge.bench.buffer.engine import Spent
from kvbridge.bench.buffer.tally import Tally
from kvbridge.bench.transfer_case import Case
from kvbridge.bench.transfer_sides import Sample
from kvbridge_vllm.bench.measure import Cell, Floors, Measurement, Samples
from kvbridge_vllm.bench.report import describe as describe_serve

if TYPE_CHECKING:
    from collections.abc import Sequence

KIB, MIB = 1 << 10, 1 << 20
SIZES = (16 * KIB, MIB, 64 * MIB)
STEADY = (1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.0)
"""Times of the rounds, as parts of a hand-over's own."""


def row(
    backend: str,
    case: Case,
    seconds: float,
    *,
    copied: float | None = None,
    raw: bool = False,
    rounds: Sequence[float] = STEADY,
) -> dict[str, Any]:
    """The row of a case whose hand-overs took so long, of rounds that vary so much."""
    copied = seconds / 4 if copied is None else copied
    alone = case.flight == 1
    samples = [
        Sample(
            [seconds * part * (1 + 0.5 * (index == 0)) for index in range(case.flight)],
            [seconds * part],
            (0.25 * seconds, 0.125 * seconds),
            copied,
            raw=seconds / 2 if raw and alone else None,
            socket=seconds * 2 if alone else None,
        )
        for part in rounds
    ]
    return transfer._row(backend, case, samples)


KNOWN = {
    "machine": {"processor": "Sample 9000", "cores": 2, "numpy": "2.0"},
    "when": "2026-03-14T09:26:00+00:00",
    "kvbridge": "0.1.0",
}


def report(rows: Sequence[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {**transfer.describe(rows, "quick", len(STEADY)), **KNOWN, **fields}


def two_backends() -> dict[str, Any]:
    """Two layouts, one value and eight at a time; only one of the backends has a raw library."""
    cases = [
        Case(size, layout, flight) for layout in ("contiguous", "scattered") for flight in (1, 8) for size in SIZES
    ]
    return report(
        [
            row(name, case, slow * (1e-3 + case.nbytes * case.flight / 2e9), raw=name == "nccl")
            for name, slow in (("cpu", 1.0), ("nccl", 2.0))
            for case in cases
            if case.nbytes * case.flight <= SIZES[-1]
        ]
    )


def serve_report(seconds: dict[str, float], *, floor: float = 0.05, computed: float = 1.0) -> dict[str, Any]:
    """Two loads; each connector's first tokens come after so many seconds, eight at a time in twice that."""
    cells = [Cell(512, 1), Cell(512, 8)]
    measured = Measurement([], cells, 32 * KIB, 2048, lambda _: None)
    for cell in cells:
        slow = 2.0 if cell.concurrent == 8 else 1.0
        measured.floors[cell] = Floors(
            {
                "local": [0.8 * floor * part for part in STEADY],
                "copied": [0.2 * floor * part for part in STEADY],
                "computed": [computed * part for part in STEADY],
            }
        )
        for name, first in seconds.items():
            samples = measured.samples[name, cell] = Samples()
            samples.first_rounds = [first * slow * part for part in STEADY]
            samples.first = [one * part for one in samples.first_rounds for part in (0.9, 1.0, 1.0, 1.6)]
            samples.between, samples.cpu, samples.right = [0.01], [0.5] * len(STEADY), 4 * len(STEADY)
            samples.rates = [1 / first / part for part in STEADY]
    facts = {"dtype": "bfloat16", "kv_bytes_per_token": 32 * KIB, "answer_tokens": 4, "model": {}}
    return {**describe_serve(measured, cells, len(STEADY), **facts), **KNOWN}


def buffer_report(slow: float = 1.0, message: float = 1e-5) -> dict[str, Any]:
    """Operations on keys, which cost the same beside more of them, and on peers, which cost more."""
    found: dict[str, Any] = {"rows": [], "held": []}
    for part, sizes, grows in (("keys", (1_000, 100_000), 1.0), ("producers", (1, 1_000), 8.0)):
        tally = Tally(part)
        for steady in STEADY:
            tally.message = message * steady
            for size, factor in zip(sizes, (1.0, grows), strict=True):
                for operation, cost in (("insert", 5e-5), ("take, 64 at a time", 2e-4)):
                    spent = cost * slow * factor * steady * 10
                    tally.add(operation, size, 10, Spent(2 * spent, 0.75 * spent), Spent(0.0, 0.25 * spent))
        found["rows"] += tally.rows()
        found["held"] += [{"part": part, "size": size, "bytes_each": 2048.0} for size in sizes]
    found["held"][-1].update(files_each=4.0, idle_share=0.25)
    found["held"][1].update(collect_seconds=0.5)
    return {**buffer.describe(found, "quick", len(STEADY)), **KNOWN}
