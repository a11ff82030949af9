"""What happened, as a timeline of faults against outcomes, as tables, and as JSON."""

from __future__ import annotations

import json
import shlex
import statistics
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from kvbridge.bench.machine import describe_machine
from kvbridge.version import __version__
from kvbridge_vllm.chaos.outcomes import errors, recovery, share_right, verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console

    from kvbridge_vllm.chaos.outcomes import Outcome, Record, Result, Struck

MARKS: Mapping[Result, str] = {
    "right": "·",
    "error": "e",
    "left": "l",
    "stranded": "s",
    "wrong": "[bold red]W[/]",
    "hang": "[bold red]H[/]",
}
"""One character for each request of the timeline."""

LEGEND = "· right   e error, told to the client   l client left   s stranded: prefill only   W wrong   H no answer"

ROW = 10.0
"""Seconds of one row of the timeline."""


def as_json(record: Record) -> dict[str, Any]:
    """Return everything as JSON values."""
    return {
        "kvbridge": __version__,
        "machine": describe_machine(),
        "seed": record.seed,
        "backend": record.backend,
        "policy": record.policy,
        "options": dict(record.options),
        "held": not verdict(record),
        "broken": verdict(record),
        "share_right": share_right(record.outcomes),
        "errors": dict(errors(record.outcomes)),
        "facts": record.facts,
        "faults": [
            {**asdict(one.fault), "began": one.began, "ended": one.ended, "recovery": recovery(one, record.outcomes)}
            for one in record.struck
        ],
        "outcomes": [asdict(one) for one in record.outcomes],
    }


def show(record: Record, console: Console) -> None:
    """Print the timeline, the figures and the verdict."""
    console.print(_timeline(record))
    console.print(LEGEND, soft_wrap=True)
    console.print(_recoveries(record))
    for line in _figures(record):
        console.print(line, soft_wrap=True)
    found = verdict(record)
    for what in found:
        console.print(f"[bold red]broken[/]: {escape(what)}", soft_wrap=True)
    again = f"kvbridge chaos {record.backend} --seed {record.seed} --policy {record.policy}"
    if record.options:
        again += f" --options {shlex.quote(json.dumps(dict(record.options)))}"
    word = "[bold red]The promise was broken" if found else "[bold green]The promise held"
    console.print(f"{word}[/]: {_counted(record.outcomes)}. Seed {record.seed}; again: {again}", soft_wrap=True)


def _timeline(record: Record) -> Table:
    table = Table("time", "answers, by when they came", "faults", title="timeline", show_lines=False)
    last = max([one.ended for one in record.outcomes] + [one.began for one in record.struck], default=0.0)
    start = 0.0
    while start <= last:
        ended = sorted((o for o in record.outcomes if start <= o.ended < start + ROW), key=lambda o: o.ended)
        began = [one for one in record.struck if start <= one.began < start + ROW]
        faults = "\n".join(f"{one.began:.1f} s {one.fault}" for one in began)
        if ended or began:
            table.add_row(f"{start:.0f} s", "".join(MARKS[one.result] for one in ended), escape(faults))
        start += ROW
    return table


def _recoveries(record: Record) -> Table:
    table = Table("fault", "times", "lasted, s", "recovered after, s: median", "longest", title="recovery")
    kinds: dict[str, list[Struck]] = {}
    for one in record.struck:
        kinds.setdefault(one.fault.kind, []).append(one)
    for kind, struck in kinds.items():
        lasted = [one.ended - one.began for one in struck if one.ended is not None]
        found = [recovery(one, record.outcomes) for one in struck]
        times = [one for one in found if one is not None]
        never = f" [red]({len(found) - len(times)} never)" if len(times) < len(found) else ""
        table.add_row(
            kind,
            str(len(struck)),
            f"{min(lasted):.1f} … {max(lasted):.1f}" if lasted else "",
            f"{statistics.median(times):.1f}{never}" if times else "[red]never",
            f"{max(times):.1f}" if times else "",
        )
    return table


def _figures(record: Record) -> Iterator[str]:
    yield f"answered right: {share_right(record.outcomes):.1%} of those who waited for an answer"
    yield "Every other one was told:" if errors(record.outcomes) else "Nobody was told of an error."
    for what, count in errors(record.outcomes).most_common():
        yield f"  {count:4} x {escape(what)}"
    yield "; ".join(f"{name} {value:,.0f}" for name, value in record.facts.items())


def _counted(outcomes: Sequence[Outcome]) -> str:
    asked = [one for one in outcomes if one.number >= 0]
    counts = {result: sum(one.result == result for one in asked) for result in MARKS}
    probes = len(outcomes) - len(asked)
    return f"{len(asked)} requests, " + ", ".join(f"{n} {what}" for what, n in counts.items()) + f"; {probes} probes"
