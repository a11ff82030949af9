"""Reports of `kvbridge bench transfer` for tests: made by its own code, of times that are written down here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvbridge.bench import transfer
from kvbridge.bench.transfer_case import Case
from kvbridge.bench.transfer_sides import Sample

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


def report(rows: Sequence[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    machine = {"processor": "Sample 9000", "cores": 2, "numpy": "2.0"}
    known = {"machine": machine, "when": "2026-03-14T09:26:00+00:00", "kvbridge": "0.1.0"}
    return {**transfer.describe(rows, "quick", len(STEADY)), **known, **fields}


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
