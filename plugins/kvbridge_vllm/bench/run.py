"""Start everything, measure, print, and stop everything."""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from kvbridge.errors import KVBridgeError
from kvbridge_vllm.bench.contenders import contender
from kvbridge_vllm.bench.measure import ANSWER, Cell, Measurement
from kvbridge_vllm.bench.model import MODEL, kv_bytes
from kvbridge_vllm.bench.pair import Pair
from kvbridge_vllm.bench.report import as_json, show
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
    json_file: str | None,
) -> int:
    """Measure contenders. Returns the exit code: 0, 1 when an answer was wrong, 3 when one cannot work here."""
    console = Console(stderr=True, highlight=False)
    try:
        contenders = [contender(name) for name in names]
    except KVBridgeError as error:
        console.print(str(error), markup=False)
        return 3
    cells = [Cell(length, at_a_time) for length in tokens for at_a_time in concurrent]
    try:
        found = _measure(contenders, cells, rounds, dtype, cache_gib, console)
    except (LaunchError, OSError) as error:
        console.print(f"the benchmark ended: {error}", markup=False)
        return 1
    if json_file is not None:
        Path(json_file).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    show(found, Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else WIDTH))
    return int(any(row["wrong"] for rows in found["contenders"].values() for row in rows))


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
    facts = {
        "rounds": rounds,
        "dtype": dtype,
        "kv_bytes_per_token": kv_bytes(dtype),
        "answer_tokens": ANSWER,
        "model": MODEL,
    }
    return as_json(measured, cells, facts)
