"""`kvbridge bench compare`: what moved from one report of `kvbridge bench transfer` to another, beyond their noise."""

from __future__ import annotations

import math
import statistics
import sys
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvbridge.bench.figures import in_bytes, number, percent
from kvbridge.bench.transfer_report import CaseKey, Report, Row, read
from kvbridge.errors import KVBridgeError
from kvbridge.plain import plain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LEAST = 0.05
"""Part by which a median has to change at least."""
TO_SIGMA = 1.4826
"""A median absolute deviation times this is the standard deviation, where the noise is normal."""
SIGMAS = 2
FEW = 5
"""Rounds below which a spread is hardly known."""
WIDTH = 120
"""Columns of the table where no terminal says how many there are."""

DEFINITIONS = {
    "slower, faster": f"the medians of the rounds' GB/s differ by more than {LEAST * 100:g} % of the first, and by "
    "more than the noise.",
    "noise": "the spreads of both reports together, as a part of the first median. A spread is "
    f"{SIGMAS} x {TO_SIGMA} x the median absolute deviation of the rounds.",
    "of memcpy": "the change of the ratio to a memory copy in the same round, judged by the same noise. Where GB/s "
    "moved and the ratio did not (ratio steady), the machine may be the reason: another one, or a loaded one.",
    "p50": "the change of the median time of one hand-over. It is not judged.",
}
"""What the words mean. They are printed before the figures."""

_SAME, _SLOWER, _UNUSABLE = 0, 1, 2
"""Exit codes."""


class Change(NamedTuple):
    """What became of a case.

    Attributes:
        key: The case.
        before: Median of the rounds' GB/s in the first report.
        after: The same in the second.
        noise: What the median may change by without meaning, as a part of `before`.
        of_memcpy: Change of the ratio to a memory copy, 0.1 for a tenth more.
        latency: Change of the median latency, likewise.
    """

    key: CaseKey
    before: float
    after: float
    noise: float
    of_memcpy: float
    latency: float

    @property
    def change(self) -> float:
        """The change of GB/s, 0.1 for a tenth more."""
        return self.after / self.before - 1

    @property
    def moved(self) -> bool:
        """Whether GB/s changed beyond noise."""
        return abs(self.change) > max(LEAST, self.noise)

    @property
    def slower(self) -> bool:
        """Whether it got slower beyond noise."""
        return self.moved and self.change < 0

    @property
    def ratio_moved(self) -> bool:
        """Whether the ratio to a memory copy changed beyond noise."""
        return abs(self.of_memcpy) > max(LEAST, self.noise)

    @property
    def alone(self) -> bool:
        """Whether it moved and its ratio to a memory copy did not: the machine may be the reason."""
        return self.moved and not self.ratio_moved

    @property
    def verdict(self) -> str:
        """Say it in words."""
        if not self.moved:
            return "within noise"
        return f"{'slower' if self.slower else 'faster'}{', ratio steady' if self.alone else ''}"


def run(first: Path, second: Path) -> int:
    """Compare two files and print.

    Returns:
        The exit code: 0 nothing got slower beyond noise, 1 something did, 2 a file cannot be read, or the two have no
        case in common.
    """
    try:
        before, after = read(first), read(second)
        found = changes(before, after)
        if not found:
            raise KVBridgeError(  # noqa: TRY301 - one way out
                f"{first} and {second} have no case in common, expected the same backends, layouts and sizes: measure "
                "with the same profile"
            )
    except KVBridgeError as error:
        Console(stderr=True, highlight=False).print(plain(str(error)), markup=False, soft_wrap=True)
        return _UNUSABLE
    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    for name, text in DEFINITIONS.items():
        console.print(f"[bold]{name}[/]: {text}")
    for name, path, report in (("first", first, before), ("second", second, after)):
        said = f"{path}, {report.when}, kvbridge {report.kvbridge}, {report.rounds} rounds"
        console.print(Text.assemble((name, "bold"), f": {plain(said)}"), soft_wrap=True)
    for sentence in conditions(before, after):
        console.print(Text(plain(sentence), "yellow"))
    console.print(_table(found))
    for line in (_count(found), _left_out(before, after, first, second)):
        if line:
            console.print(plain(line), markup=False)
    return _SLOWER if any(one.slower for one in found) else _SAME


def changes(before: Report, after: Report) -> list[Change]:
    """Return what became of each case that both reports have: what moved first, and of that what changed most."""
    old, new = before.by_key(), after.by_key()
    found = [_change(old[key], new[key]) for key in old if key in new]
    return sorted(found, key=lambda one: (one.moved, abs(math.log(one.after / one.before))), reverse=True)


def _change(old: Row, new: Row) -> Change:
    before, after = (statistics.median(row.gb_per_s_rounds) for row in (old, new))
    return Change(
        old.key,
        before,
        after,
        (_spread(old.gb_per_s_rounds) + _spread(new.gb_per_s_rounds)) / before,
        new.of_memcpy / old.of_memcpy - 1,
        new.seconds.p50 / old.seconds.p50 - 1,
    )


def _spread(values: Sequence[float]) -> float:
    middle = statistics.median(values)
    return SIGMAS * TO_SIGMA * statistics.median(abs(value - middle) for value in values)


def conditions(before: Report, after: Report) -> list[str]:
    """Say, a sentence each, what was not the same in both runs, so that figures cannot be compared one to one."""
    found = []
    for what in dict.fromkeys([*before.machine, *after.machine]):
        old, new = (str(report.machine.get(what, "not said")) for report in (before, after))
        if old != new:
            found.append(f"Different machines: {what} {old}, then {new}. Look at the ratio to memcpy.")
    if before.kvbridge != after.kvbridge:
        found.append(f"Different versions of kvbridge: {before.kvbridge}, then {after.kvbridge}.")
    if before.rounds != after.rounds:
        found.append(f"Different numbers of rounds: {before.rounds}, then {after.rounds}.")
    if min(before.rounds, after.rounds) < FEW:
        found.append(f"Fewer than {FEW} rounds: the noise is hardly known, and more may seem to have moved.")
    return found


def _table(found: Sequence[Change]) -> Table:
    table = Table("backend", "case", title="first → second", title_justify="left")
    for name in ("GB/s", "change", "noise", "of memcpy", "p50"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for one in found:
        style = "" if not one.moved else "yellow" if one.alone else "red" if one.slower else "green"
        table.add_row(
            Text(plain(one.key.backend)),
            Text(plain(_case(one.key))),
            f"{number(one.before)} → {number(one.after)}",
            Text(percent(one.change), style),
            f"± {one.noise:.1%}".replace("%", " %"),
            Text(percent(one.of_memcpy), "bold" if one.ratio_moved else ""),
            percent(one.latency),
            Text(one.verdict, style),
        )
    return table


def _case(key: CaseKey) -> str:
    times = f"{key.group.flight} × " if key.group.flight > 1 else ""  # noqa: RUF001 - so many times
    return f"{times}{in_bytes(key.nbytes)} {key.group.layout}"


def _count(found: Sequence[Change]) -> str:
    slower = [one for one in found if one.slower]
    alone = sum(one.alone for one in slower)
    faster = sum(one.moved for one in found) - len(slower)
    return (
        f"Of {len(found)} {'case' if len(found) == 1 else 'cases'}, {len(slower)} got slower beyond noise"
        f"{f' ({alone} of them with a steady ratio)' if alone else ''}, {faster} got faster, "
        f"{len(found) - len(slower) - faster} stayed within noise."
    )


def _left_out(before: Report, after: Report, first: Path, second: Path) -> str:
    old, new = set(before.by_key()), set(after.by_key())
    counts = ((len(old - new), first), (len(new - old), second))
    only = [f"{count} only in {path}" for count, path in counts if count]
    return f"Not compared: {', '.join(only)}." if only else ""
