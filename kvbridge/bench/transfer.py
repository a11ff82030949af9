"""`kvbridge bench transfer`: hand values over between two processes, with one hand-over in flight.

Definitions, which are printed with the figures:

- *hand-over time*: from just before the producer's `insert` until the consumer's `drop_select`, which was waiting for
  the key, has all bytes in its own memory. Both clocks are the host's monotonic clock.
- *GB/s*: bytes of the value, counted once, over the median hand-over time (1 GB = 10^9 bytes).
- *memcpy*: one thread copies the same number of bytes once, in the producer's process, in the same round.
- *ratio*: GB/s of the hand-over over GB/s of memcpy. A hand-over through a pool copies twice: 0.5 is the ceiling
  unless the two copies overlap.
- *raw*: the backend's library without kvbridge, where it has one: the same pages, registered, prepared and connected
  beforehand; from just before one transfer is posted until it is done. In the same round.
- *of raw*: GB/s of the hand-over over GB/s of the raw library; *added*: hand-over time less raw time.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kvbridge.abc import Key
from kvbridge.bench.raw import Raw, load_raw
from kvbridge.control.endpoint import Endpoint
from kvbridge.errors import KVBridgeError
from kvbridge.memory import Pages, Region
from kvbridge.registry import create_backend

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

PAGE = 16 << 10
SIZES = (PAGE, 64 << 10, 1 << 20, 16 << 20, 256 << 20)
WARM_UP = 2
"""Rounds that are not counted: first contact, page faults."""
TIMEOUT = 60.0
RAW = "raw: the library alone, prepared beforehand. "
"""What the legend says of a column that only some backends have."""


@dataclass(frozen=True)
class Case:
    """One kind of value: `layout` is "contiguous" (a tensor) or "scattered" (pages of 16 KiB in random order)."""

    nbytes: int
    layout: str

    def payload(self, memory: NDArray[np.uint8], seed: int) -> Any:
        """Make the value (or its destination) over a process's memory."""
        if self.layout == "contiguous":
            return memory[: self.nbytes]
        return Pages.of([region_of(memory)], self.pages(memory, seed))

    def pages(self, memory: NDArray[np.uint8], seed: int) -> NDArray[np.int64]:
        """Name the pages of the value."""
        count = self.nbytes // PAGE
        if self.layout == "contiguous":
            return np.arange(count)
        return np.random.default_rng(seed).permutation(memory.nbytes // PAGE)[:count]


def region_of(memory: NDArray[np.uint8]) -> Region:
    """Return a process's memory as one region. The backend knows it beforehand, as it knows an engine's cache."""
    return Region.over(memory, PAGE)


@dataclass(frozen=True)
class Sample:
    """Seconds of one round: the hand-over, a plain copy, and the raw library where there is one."""

    handed_over: float
    copied: float
    raw: float | None


CASES = [Case(size, layout) for layout in ("contiguous", "scattered") for size in SIZES]


def run(backend: str, options: str, rounds: int, *, as_json: bool) -> int:
    """Measure and print. Returns the exit code: 0, or 1 when a hand-over failed or bytes were wrong."""
    console = Console(stderr=as_json)
    try:
        rows = measure(backend, json.loads(options), rounds, console)
    except (KVBridgeError, ValueError) as error:
        console.print(f"the benchmark ended: {error}")
        return 1
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        _table(rows, backend, rounds, console)
    return 0


def measure(backend: str, options: dict[str, Any], rounds: int, console: Console) -> list[dict[str, Any]]:
    """Run all cases in interleaved rounds."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(
        target=_consume, args=(there, backend, options), name="kvbridge-bench-consumer", daemon=True
    )
    child.start()
    there.close()
    try:
        return _produce(here, backend, options, rounds, console)
    finally:
        here.close()
        child.join(5)
        if child.is_alive():
            child.kill()


def _open(backend: str, options: dict[str, Any]) -> tuple[Any, Endpoint, Any]:
    plane = create_backend(backend, options)
    endpoint = Endpoint(plane)
    return plane, endpoint, plane.open_buffer(endpoint, timeout=TIMEOUT)


def _produce(
    pipe: Connection, backend: str, options: dict[str, Any], rounds: int, console: Console
) -> list[dict[str, Any]]:
    plane, endpoint, buffer = _open(backend, options)
    memory = np.random.default_rng(0).integers(0, 255, max(SIZES), dtype=np.uint8)
    target = np.zeros_like(memory)
    plane.register([region_of(memory)])
    samples: dict[Case, list[Sample]] = {case: [] for case in CASES}
    raw = _raw(backend, options, memory)
    try:
        if raw is not None:
            raw.meet(pipe.recv())
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("handing over", total=(rounds + WARM_UP) * len(CASES))
            for turn in range(rounds + WARM_UP):
                for case in CASES:
                    key = f"{turn}/{case.nbytes}/{case.layout}"
                    elapsed = _hand_over(pipe, buffer, endpoint.address, key, case, memory)
                    bare = None if raw is None else _move_raw(pipe, raw, case, memory)
                    started = time.monotonic()
                    target[: case.nbytes] = memory[: case.nbytes]
                    copied = time.monotonic() - started
                    if turn >= WARM_UP:
                        samples[case].append(Sample(elapsed, copied, bare))
                    progress.advance(task)
        pipe.send(None)
    finally:
        if raw is not None:
            raw.close()
        buffer.close()
        endpoint.close()
        plane.close()
    return [_row(case, samples[case]) for case in CASES]


def _raw(backend: str, options: dict[str, Any], memory: NDArray[np.uint8]) -> Raw | None:
    cls = load_raw(backend)
    return None if cls is None else cls(options, memory, PAGE)


def _move_raw(pipe: Connection, raw: Raw, case: Case, memory: NDArray[np.uint8]) -> float:
    """Move a value with the raw library, which may need the other process's help."""
    source, target = case.pages(memory, 1), case.pages(memory, 2)
    pipe.send("help")
    pipe.recv()
    started = time.monotonic()
    raw.move(f"{case}", source, target)
    elapsed = time.monotonic() - started
    pipe.send("enough")
    pipe.recv()
    return elapsed


def _hand_over(pipe: Connection, buffer: Any, home: str, key: str, case: Case, memory: NDArray[np.uint8]) -> float:
    payload = case.payload(memory, seed=1)
    pipe.send((home, key, case))
    pipe.recv()  # the consumer has asked
    time.sleep(0.002)  # and its question has arrived
    started = time.monotonic()
    buffer.insert(Key(key), payload).wait(TIMEOUT)
    ended, error = pipe.recv()
    if error:
        raise KVBridgeError(f"the hand-over of {case.nbytes} bytes failed: {error}")
    return float(ended - started)


def _consume(pipe: Connection, backend: str, options: dict[str, Any]) -> None:
    plane, endpoint, buffer = _open(backend, options)
    source = np.random.default_rng(0).integers(0, 255, max(SIZES), dtype=np.uint8)
    memory = np.zeros_like(source)
    plane.register([region_of(memory)])
    raw = _raw(backend, options, memory)
    try:
        if raw is not None:
            pipe.send(raw.card())
        while True:
            order = pipe.recv()
            if order is None:
                return
            if order == "help" and raw is not None:
                _help(pipe, raw)
                continue
            home, key, case = order
            memory[: case.nbytes] = 0
            out = case.payload(memory, seed=2)
            transfer = buffer.drop_select(Key(key, home), out)
            pipe.send("asked")
            error = ""
            try:
                transfer.wait(TIMEOUT)
            except KVBridgeError as failure:
                error = str(failure)
            ended = time.monotonic()
            pipe.send((ended, error or _verify(case, source, memory)))
    except EOFError:
        return
    finally:
        if raw is not None:
            raw.close()
        buffer.close()
        endpoint.close()
        plane.close()


def _help(pipe: Connection, raw: Raw) -> None:
    """Let the raw library make progress here until the other side has what it wants."""
    pipe.send("helping")
    while not pipe.poll(0.0005):
        raw.progress()
    pipe.recv()
    pipe.send("helped")


def _verify(case: Case, source: NDArray[np.uint8], memory: NDArray[np.uint8]) -> str:
    """Compare what arrived with what the producer has, which is made from one seed on both sides."""
    if case.layout == "contiguous":
        same = bool((memory[: case.nbytes] == source[: case.nbytes]).all())
    else:
        sent, got = case.payload(source, seed=1), case.payload(memory, seed=2)
        same = bool((got.regions[0].rows()[got.block_ids[0]] == sent.regions[0].rows()[sent.block_ids[0]]).all())
    return "" if same else "the bytes that arrived are not the ones that were sent"


def _row(case: Case, samples: list[Sample]) -> dict[str, Any]:
    times, copies = [one.handed_over for one in samples], [one.copied for one in samples]
    median, copy = statistics.median(times), statistics.median(copies)
    row = {
        "layout": case.layout,
        "bytes": case.nbytes,
        "seconds_median": median,
        "seconds_min": min(times),
        "seconds_max": max(times),
        "gb_per_s": case.nbytes / median / 1e9,
        "memcpy_gb_per_s": case.nbytes / copy / 1e9,
        "ratio": statistics.median(c / t for c, t in zip(copies, times, strict=True)),
    }
    bare = [one.raw for one in samples if one.raw is not None]
    if bare:
        row["raw_seconds_median"] = statistics.median(bare)
        row["of_raw"] = statistics.median(r / t for r, t in zip(bare, times, strict=True))
        row["added_seconds"] = statistics.median(t - r for r, t in zip(bare, times, strict=True))
    return row


def _table(rows: list[dict[str, Any]], backend: str, rounds: int, console: Console) -> None:
    with_raw = "of_raw" in rows[0]
    table = Table(
        "layout",
        "value",
        "hand-over (median)",
        "min … max",
        "GB/s",
        "memcpy GB/s",
        "ratio",
        *(["raw", "of raw", "added"] if with_raw else []),
        title=f"{backend}: two processes, one hand-over in flight, {rounds} interleaved rounds",
        caption="hand-over: from before insert until a waiting drop_select has all bytes. memcpy: one thread, once, "
        f"same round. ratio: median of the rounds' ratios. {RAW if with_raw else ''}Bytes were verified.",
    )
    for row in rows:
        table.add_row(
            row["layout"],
            _size(row["bytes"]),
            f"{row['seconds_median'] * 1e6:,.0f} us",
            f"{row['seconds_min'] * 1e6:,.0f} … {row['seconds_max'] * 1e6:,.0f}",
            f"{row['gb_per_s']:.2f}",
            f"{row['memcpy_gb_per_s']:.2f}",
            f"{row['ratio']:.2f}",
            *_raw_cells(row),
        )
    console.print(table)


def _raw_cells(row: dict[str, Any]) -> list[str]:
    if "of_raw" not in row:
        return []
    return [
        f"{row['raw_seconds_median'] * 1e6:,.0f} us",
        f"{row['of_raw']:.2f}",
        f"{row['added_seconds'] * 1e6:,.0f} us",
    ]


def _size(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"
