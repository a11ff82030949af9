"""`kvbridge bench transfer`: hand values over between two processes, for one backend or several in one run."""

from __future__ import annotations

import json
import statistics
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kvbridge.bench import report
from kvbridge.bench.figures import in_bytes, in_time
from kvbridge.bench.transfer_case import PROFILES, Case
from kvbridge.bench.transfer_sides import Pair, Sample
from kvbridge.errors import KVBridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

WIDE = 140
"""Columns of a terminal on which all figures have room."""

WARM_UP = 2
"""Rounds that are not counted: first contact, page faults."""

DEFINITIONS = {
    "hand-over": "from just before the producer's insert until the consumer's drop_select, which was waiting for the "
    "key, has all bytes in its own memory. Both clocks are the host's monotonic clock. Median, and p99, of all.",
    "GB/s": "bytes of all values in flight, counted once, over the median of the time from before the first insert "
    "until the last byte is there. 1 GB = 10^9 bytes.",
    "of memcpy": "one thread copies as many bytes once, in the producer's process, in the same round; median of the "
    "rounds' ratios. A hand-over through a pool copies twice: 0.5 unless the copies overlap.",
    "of socket": "likewise: a plain TCP connection on loopback sends as many bytes in one run.",
    "of raw": "likewise: the backend's library alone, where it can be had, with the same pages, registered, prepared "
    "and connected beforehand; from just before one transfer is posted until it is done. added: hand-over less raw.",
    "CPU s/GiB": "processor time of the producer's and of the consumer's process, all threads, over GiB handed over.",
}
"""What the figures mean. They are printed before the figures."""

Row = dict[str, Any]


def run(
    backends: Sequence[str],
    options: str,
    rounds: int,
    *,
    profile: str = "quick",
    json_file: Path | None = None,
    html_file: Path | None = None,
) -> int:
    """Measure and print, and write the report where it is wanted.

    Returns:
        The exit code: 0, or 1 when a hand-over failed, bytes were wrong or a file could not be written.
    """
    console = Console()
    try:
        typed = json.loads(options)
        for name, text in DEFINITIONS.items():
            console.print(f"[bold]{name}[/]: {text}", highlight=False)
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("starting", total=None)
            rows = measure(
                dict.fromkeys(backends, typed),
                PROFILES[profile],
                rounds,
                lambda done, total, what: progress.update(task, completed=done, total=total, description=what),
            )
    except (KVBridgeError, ValueError) as error:
        console.print(f"the benchmark ended: {error}")
        return 1
    for name in backends:
        console.print(table([row for row in rows if row["backend"] == name], name, rounds, console.width))
    try:
        report.write(describe(rows, profile, rounds), json_file, html_file)
    except (KVBridgeError, OSError) as error:
        console.print(f"the report was not written: {error}", markup=False, soft_wrap=True)
        return 1
    return 0


def describe(rows: Sequence[Row], profile: str, rounds: int) -> dict[str, Any]:
    """Make the report: figures, and what they were got with."""
    return report.describe("transfer", rows, rounds, DEFINITIONS, profile=profile)


def measure(
    backends: Mapping[str, dict[str, Any]],
    cases: Sequence[Case],
    rounds: int,
    tell: Callable[[int, int, str], None] | None = None,
) -> list[Row]:
    """Run all cases of all backends in interleaved rounds.

    Args:
        backends: Options by name.
        cases: What is handed over.
        rounds: How often; some more come before that are not counted.
        tell: Hears how much is done, of how much, and what is next.

    Raises:
        KVBridgeError: A hand-over failed, or bytes were wrong.
    """
    pairs: list[Pair] = []
    most = max(case.nbytes * case.flight for case in cases)
    samples: dict[tuple[str, Case], list[Sample]] = {(name, case): [] for name in backends for case in cases}
    total = (rounds + WARM_UP) * len(samples)
    try:
        pairs.extend(Pair(name, options, most) for name, options in backends.items())
        for pair in pairs:
            pair.wait_ready()
        done = 0
        for turn in range(rounds + WARM_UP):
            for case in cases:
                for pair in pairs:
                    if tell is not None:
                        tell(done, total, f"{pair.backend}, {in_bytes(case.nbytes)} {case.layout}")
                    found = pair.measure(case, turn)
                    done += 1
                    if turn >= WARM_UP:
                        samples[pair.backend, case].append(found)
    finally:
        for pair in pairs:
            pair.close()
    return [_row(name, case, found) for (name, case), found in samples.items()]


def _row(backend: str, case: Case, samples: Sequence[Sample]) -> Row:
    nbytes = case.nbytes * case.flight
    latencies = sorted(one for sample in samples for one in sample.latencies)
    times = [statistics.median(sample.elapsed) for sample in samples]
    ratios = [sample.copied / one for sample, one in zip(samples, times, strict=True)]
    gib = nbytes * case.repeats / (1 << 30)
    row: Row = {
        "backend": backend,
        "layout": case.layout,
        "bytes": case.nbytes,
        "in_flight": case.flight,
        "seconds": {
            "p50": statistics.median(latencies),
            "p90": _percentile(latencies, 90),
            "p99": _percentile(latencies, 99),
            "min": latencies[0],
            "max": latencies[-1],
        },
        "count": len(latencies),
        "gb_per_s": nbytes / statistics.median(times) / 1e9,
        "gb_per_s_rounds": [nbytes / one / 1e9 for one in times],
        "memcpy_gb_per_s": nbytes / statistics.median(sample.copied for sample in samples) / 1e9,
        "of_memcpy": statistics.median(ratios),
        "of_memcpy_rounds": ratios,
        "cpu_seconds_per_gib": {
            side: statistics.median(sample.cpu[index] for sample in samples) / gib
            for index, side in enumerate(("producer", "consumer"))
        },
    }
    for name in ("socket", "raw"):
        pairs = [
            (other, one)
            for sample, one in zip(samples, times, strict=True)
            if (other := getattr(sample, name)) is not None
        ]
        if pairs:
            row[f"{name}_seconds"] = statistics.median(other for other, _ in pairs)
            row[f"of_{name}"] = statistics.median(other / one for other, one in pairs)
            row[f"added_to_{name}_seconds"] = statistics.median(one - other for other, one in pairs)
    return row


def _percentile(ordered: Sequence[float], share: int) -> float:
    """Return the smallest value that so many in a hundred do not exceed."""
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)]


def table(rows: Sequence[Row], backend: str, rounds: int, width: int = WIDE) -> Table:
    """Show the figures of one backend, on a narrow terminal without those that tell the least."""
    wide = width >= WIDE
    columns: dict[str, Callable[[Row], str]] = {
        "layout": lambda row: row["layout"],
        "value": lambda row: in_bytes(row["bytes"]),
    }
    if any(row["in_flight"] > 1 for row in rows):
        columns["flight"] = lambda row: str(row["in_flight"])
    columns["hand-over"] = lambda row: in_time(row["seconds"]["p50"])
    if wide:
        columns["p99"] = lambda row: in_time(row["seconds"]["p99"])
    columns["GB/s"] = lambda row: f"[bold]{row['gb_per_s']:.2f}[/]"
    for name in ("memcpy", "socket", "raw"):
        if any(f"of_{name}" in row for row in rows):
            columns[f"of {name}" if wide or "flight" not in columns else f"/{name}"] = partial(_ratio, name)
    if wide and "of raw" in columns:
        columns["added"] = _added
    if wide:
        columns["CPU s/GiB"] = _cpu
    found = Table(title=f"{backend}: two processes, {rounds} interleaved rounds")
    for name in columns:
        found.add_column(name, no_wrap=True)
    for row in rows:
        found.add_row(*(show(row) for show in columns.values()))
    return found


def _ratio(name: str, row: Row) -> str:
    return f"{row[f'of_{name}']:.2f}" if f"of_{name}" in row else ""


def _added(row: Row) -> str:
    return in_time(row["added_to_raw_seconds"]) if "of_raw" in row else ""


def _cpu(row: Row) -> str:
    cpu = row["cpu_seconds_per_gib"]
    return f"{cpu['producer']:.2f} + {cpu['consumer']:.2f}"
