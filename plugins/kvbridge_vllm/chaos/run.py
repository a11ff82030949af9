"""Start everything, let chaos reign, look at what is left, print, and stop everything."""

from __future__ import annotations

import json
import random
import signal
import sys
import tempfile
import time
from contextlib import ExitStack, nullcontext
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from kvbridge.errors import KVBridgeError
from kvbridge.registry import find_backend, probe_backend
from kvbridge_vllm.chaos.aftermath import look_after, probe_count
from kvbridge_vllm.chaos.campaign import Campaign
from kvbridge_vllm.chaos.cluster import Cluster
from kvbridge_vllm.chaos.oracle import plain_engine, right_answers
from kvbridge_vllm.chaos.outcomes import Record, verdict
from kvbridge_vllm.chaos.report import as_json, show
from kvbridge_vllm.chaos.schedule import make_schedule
from kvbridge_vllm.launch import LaunchError
from kvbridge_vllm.launch.checkpoints import make_checkpoint
from kvbridge_vllm.launch.process import cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvbridge_vllm.launch import Engine

WIDTH = 120
"""Columns where no terminal says how many there are."""

SEEDS = 1 << 31
"""A seed that is not given is less than this."""

QUIET = 10.0
"""Seconds between two lines of progress in a file."""

ENDED = 10.0
"""Seconds that processes have to be gone after they were stopped."""

_INTERRUPTED = 130  # what a shell reports for a program ended by Ctrl-C


def run(
    backend: str,
    options: Mapping[str, Any],
    *,
    seed: int | None,
    requests: int,
    policy: str,
    json_file: str | None,
) -> int:
    """Run `kvbridge chaos`. Returns its exit code."""
    console = Console(stderr=True, highlight=False)
    seed = random.SystemRandom().randrange(SEEDS) if seed is None else seed
    unusable = _why_not(backend, options)
    if unusable:
        console.print(unusable, markup=False, soft_wrap=True)
        return 3
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stopping is the same as Ctrl-C
    logs = Path(tempfile.mkdtemp(prefix="kvbridge-chaos-"))
    console.print(f"Seed: {seed}. Logs: {logs}", soft_wrap=True)
    try:
        with console.status("") as status:
            tell = status.update if console.is_terminal else _Lines(console).tell
            record = carry_out(backend, options, seed=seed, requests=requests, policy=policy, logs=logs, tell=tell)
    except KeyboardInterrupt:
        console.print(f"\nInterrupted; everything that was started has been stopped. Seed: {seed}", soft_wrap=True)
        return _INTERRUPTED
    except (LaunchError, OSError, HTTPException) as error:
        console.print(f"The run ended: {error or type(error).__name__}. Seed: {seed}", markup=False, soft_wrap=True)
        return 1
    show(record, Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else WIDTH))
    written = json_file is None or _write(record, Path(json_file), console)
    return int(bool(verdict(record)) or not written)


def _write(record: Record, file: Path, console: Console) -> bool:
    try:
        file.write_text(json.dumps(as_json(record), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        console.print(f"the report was not written: {error}", markup=False, soft_wrap=True)
        return False
    return True


def _why_not(backend: str, options: Mapping[str, Any]) -> str:
    """Say why a backend cannot hand KV over here; empty if it can."""
    try:
        find_backend(backend)
        found = probe_backend(backend, options).probe
    except KVBridgeError as error:
        return str(error)
    return "" if found.ok else f"{backend}: {found.reason}"


class _Lines:
    """Progress where there is no terminal: a line now and then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said = 0.0

    def tell(self, what: str) -> None:
        """Print a line, unless one was printed a moment ago."""
        if time.monotonic() - self._said > QUIET:
            self._said = time.monotonic()
            self._console.print(what, markup=False, soft_wrap=True)


def carry_out(
    backend: str,
    options: Mapping[str, Any],
    *,
    seed: int,
    requests: int,
    policy: str,
    logs: Path,
    tell: Callable[[str], None],
    plain: Engine | None = None,
) -> Record:
    """Run a seed's schedule on engines of a backend, and stop them.

    Args:
        backend: Its name.
        options: Its options.
        seed: Of the schedule.
        requests: How many are sent.
        policy: vLLM's `kv_load_failure_policy`.
        logs: Folder for logs.
        tell: Called with what is going on.
        plain: An engine without connector whose answers are the right ones; by default one is started for that.

    Raises:
        LaunchError: An engine or the router did not start at the beginning.
        OSError: The oracle broke off.
    """
    schedule = make_schedule(seed, requests)
    record = Record(seed, backend, policy, options=options)
    model = plain.spec.model if plain is not None else make_checkpoint(cache_folder() / "chaos")
    makers = [lambda n, request=request: schedule.prompt(request, n) for request in schedule.requests]
    makers += [lambda n, number=number: schedule.probe(number, n) for number in range(probe_count())]
    with nullcontext(plain) if plain is not None else plain_engine(model, logs, tell) as engine:
        tell(f"oracle: answering {len(makers)} prompts")
        known = right_answers(engine, makers)
    cluster = Cluster(backend, options, policy, model, logs)
    with ExitStack() as stack:
        cluster.start_all(stack, tell)
        campaign = Campaign(schedule, known[:requests], cluster, model.name, record, tell)
        campaign.run()
        tell("looking at what is left")
        look_after(cluster, campaign.clients, known[requests:], record)
    record.broken.extend(cluster.left(ENDED))
    return record
