"""`kvbridge bench policies`: what each eviction policy finds again of prompts, on traces made up from a seed.

Definitions:

- *hit rate*: of all blocks that the requests of a trace ask for, the part that is found in the tier as an unbroken run
  from the beginning of the prompt. Only such KV can be used. Blocks have equal numbers of tokens, so it is the hit rate
  of tokens too.
- *tier*: so many blocks, named as a part of the distinct blocks of the trace. It is empty at the beginning; what is
  missed comes in.
- *clairvoyant*: the most that is possible, see `kvbridge.bench.policies_replay.replay_clairvoyant`.

Equal seeds give equal figures. No time is measured.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvbridge.errors import KVBridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbridge.bench.traces import Trace

PERCENT = (1, 3, 10, 30)
"""Sizes of the tier, in percent of a trace's distinct blocks."""


@click.command()
@click.option("--policy", "names", multiple=True, metavar="NAME", help="A policy; again for more.  [default: all]")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Of the traces.")
@click.option("--json", "json_file", metavar="FILE", help="Write the figures.")
def policies(names: tuple[str, ...], seed: int, json_file: str | None) -> None:
    """Replay made-up traces against the eviction policies, and draw what each finds again.

    Exit code: 0, 1 a policy cannot be imported or does not keep to its contract, 2 wrong usage.
    """
    raise SystemExit(run(names, seed, json_file))


def run(names: Sequence[str], seed: int, json_file: str | None) -> int:
    """Measure and print.

    Args:
        names: Policies; all that are installed where there are none.
        seed: Of the traces.
        json_file: Where to write the figures.

    Returns:
        The exit code.
    """
    from rich.console import Console  # noqa: PLC0415 - each command loads what it needs
    from rich.progress import Progress  # noqa: PLC0415 - likewise

    from kvbridge.bench.policies_chart import CAPTION, show_trace  # noqa: PLC0415 - likewise
    from kvbridge.policies import list_policies  # noqa: PLC0415 - likewise

    installed = list_policies()
    chosen = list(dict.fromkeys(names)) or installed
    _check_names(chosen, installed)
    console = Console()
    try:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("replaying", total=1.0)
            figures = compare(chosen, seed, lambda part: progress.update(task, completed=part))
        for trace in figures["traces"]:
            show_trace(console, trace)
        console.print(CAPTION)
        if json_file is not None:
            Path(json_file).write_text(json.dumps(figures, indent=2) + "\n")
    except (KVBridgeError, OSError) as error:
        console.print(f"the benchmark ended: {error}", markup=False)
        return 1
    return 0


def _check_names(chosen: Sequence[str], installed: Sequence[str]) -> None:
    from kvbridge.config import nearest  # noqa: PLC0415 - each command loads what it needs

    for name in chosen:
        if name not in installed:
            raise click.UsageError(f"no installed package brings a policy {name!r}; {nearest(name, installed)}")


def compare(names: Sequence[str], seed: int, advance: Callable[[float], None] = lambda _: None) -> dict[str, Any]:
    """Replay every trace with every policy at every size.

    Args:
        names: Policies.
        seed: Of the traces.
        advance: Told how much is done, 0 to 1.

    Returns:
        Figures that JSON can hold.

    Raises:
        KVBridgeError: A policy cannot be made, or does not keep to its contract.
    """
    from kvbridge.bench.traces import TRACES  # noqa: PLC0415 - each command loads what it needs

    traces = []
    for done, (title, make) in enumerate(TRACES.items()):
        traces.append(compare_on(title, make(seed), names))
        advance((done + 1) / len(TRACES))
    return {"seed": seed, "policies": list(names), "traces": traces}


def compare_on(title: str, trace: Trace, names: Sequence[str]) -> dict[str, Any]:
    """Replay one trace with every policy at every size."""
    from kvbridge.bench.policies_replay import next_uses, replay, replay_clairvoyant  # noqa: PLC0415 - likewise
    from kvbridge.policies import create_policy  # noqa: PLC0415 - likewise

    uses = next_uses(trace)
    distinct = len({key for request in trace for key in request})
    tiers = []
    for percent in PERCENT:
        capacity = max(1, distinct * percent // 100)
        rates = {name: replay(trace, create_policy(name, capacity), capacity) for name in names}
        rates["clairvoyant"] = replay_clairvoyant(trace, uses, capacity)
        tiers.append({"percent": percent, "capacity": capacity, "hit_rate": rates})
    return {
        "trace": title,
        "requests": len(trace),
        "blocks": sum(len(request) for request in trace),
        "distinct": distinct,
        "tiers": tiers,
    }
