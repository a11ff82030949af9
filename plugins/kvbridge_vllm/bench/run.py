"""Start everything, measure, print, and stop everything."""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from kvbridge.bench import report
from kvbridge.bench.serve_report import Report
from kvbridge.config import nearest
from kvbridge.errors import ConfigError, KVBridgeError
from kvbridge_vllm.bench.contenders import contender
from kvbridge_vllm.bench.measure import ANSWER, Cell, Measurement
from kvbridge_vllm.bench.model import MODEL, kv_bytes
from kvbridge_vllm.bench.pair import Pair
from kvbridge_vllm.bench.report import describe, show
from kvbridge_vllm.launch import LaunchError
from kvbridge_vllm.launch.checkpoints import make_checkpoint
from kvbridge_vllm.launch.process import cache_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbridge_vllm.bench.contenders import Contender

WIDTH = 120
"""Columns of the tables where no terminal says how many there are."""


def run(
    names: Sequence[str],
    tokens: Sequence[int],
    concurrent: Sequence[int],
    *,
    rounds: int,
    dtype: str,
    cache_gib: int,
    options: str = "{}",
    json_file: Path | None = None,
    html_file: Path | None = None,
) -> int:
    """Measure contenders, print, and write the report where it is wanted.

    Returns:
        The exit code: 0; 1 when an answer was wrong, a load failed or a file could not be written; 3 when one cannot
        work here.
    """
    console = Console(stderr=True, highlight=False)
    try:
        chosen = _options(options, names)
        contenders = [contender(name, chosen.get(name)) for name in names]
    except KVBridgeError as error:
        console.print(str(error), markup=False)
        return 3
    cells = [Cell(length, at_a_time) for length in tokens for at_a_time in concurrent]
    try:
        found = _measure(contenders, cells, rounds, dtype, cache_gib, console)
    except (LaunchError, OSError) as error:
        console.print(f"the benchmark ended: {error}", markup=False)
        return 1
    return finish(found, json_file, html_file)


def finish(found: dict[str, Any], json_file: Path | None, html_file: Path | None) -> int:
    """Print a report and write it. Returns the exit code."""
    out = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    typed = msgspec.convert(found, Report)
    show(typed, out)
    try:
        report.write(found, json_file, html_file)
    except (KVBridgeError, OSError) as error:
        out.print(f"the report was not written: {error}", markup=False, soft_wrap=True)
        return 1
    return int(typed.wrong > 0 or bool(typed.failed))


def _options(text: str, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    try:
        found = msgspec.json.decode(text, type=dict[str, dict[str, Any]])
    except msgspec.DecodeError as error:
        raise ConfigError(f"--options: expected an object of options for each backend by name; {error}") from error
    for name in found:
        if name not in names:
            raise ConfigError(f"--options: {name!r} does not take part; {nearest(name, names)}")
    return found


def _measure(
    contenders: Sequence[Contender],
    cells: Sequence[Cell],
    rounds: int,
    dtype: str,
    cache_gib: int,
    console: Console,
) -> dict[str, Any]:
    logs = Path(tempfile.mkdtemp(prefix="kvbridge-bench-"))
    console.print(f"Logs: {logs}", soft_wrap=True)
    model = make_checkpoint(cache_folder() / f"bench-{dtype}", torch_dtype=dtype, **MODEL)
    longest = max(cell.tokens for cell in cells) + 64
    with ExitStack() as stack, console.status("") as status:
        pairs = []
        for one in contenders:  # one after the other: a start costs a minute of both cores
            pair = Pair(one, model, logs, dtype=dtype, longest=longest, cache_gib=cache_gib)
            stack.callback(pair.close)
            pair.wait_ready(lambda what, name=one.name: status.update(f"{name}: {what}"))  # type: ignore[misc]
            pair.stop()
            pairs.append(pair)
        measured = Measurement(pairs, cells, kv_bytes(dtype), MODEL["vocab_size"], status.update)
        measured.prepare()
        for number in range(rounds):
            measured.round(lambda what, number=number: status.update(f"round {number + 1} of {rounds}: {what}"))  # type: ignore[misc]
    if not measured.samples:
        raise LaunchError("; ".join(measured.failed.values()))
    facts = {"dtype": dtype, "kv_bytes_per_token": kv_bytes(dtype), "answer_tokens": ANSWER, "model": MODEL}
    return describe(measured, cells, rounds, **facts)
