"""`kvbridge bench compare`: what moved from one report of a benchmark to another one of it, beyond their noise."""

from __future__ import annotations

import math
import statistics
import sys
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvbridge.bench.figures import percent
from kvbridge.bench.report import Figure, Report, read, words
from kvbridge.errors import KVBridgeError
from kvbridge.plain import plain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvbridge.bench.report import Words

LEAST = 0.05
"""Part by which a median has to change at least."""
TO_SIGMA = 1.4826
"""A median absolute deviation times this is the standard deviation, where the noise is normal."""
SIGMAS = 2
FEW = 5
"""Rounds below which a spread is hardly known."""
WIDTH = 120
"""Columns of the table where no terminal says how many there are."""

_SAME, _SLOWER, _UNUSABLE = 0, 1, 2
"""Exit codes."""


def definitions(said: Words) -> dict[str, str]:
    """Say what the words mean. It is printed before the figures."""
    return {
        "slower, faster": f"the medians of the rounds' {said.figure} differ by more than {LEAST * 100:g} % of the "
        "first, and by more than the noise.",
        "noise": "the spreads of both reports together, as a part of the first median. A spread is "
        f"{SIGMAS} x {TO_SIGMA} x the median absolute deviation of the rounds.",
        f"of {said.reference}": f"{said.about}, judged by the noise of the rounds' ratios (by that of the "
        f"{said.figure}, where a report does not have them). Where {said.figure} moved and the ratio did not (ratio "
        "steady), the machine may be the reason: another one, or a loaded one.",
        **said.more,
    }


class Change(NamedTuple):
    """What became of a figure.

    Attributes:
        figure: The first report's.
        before: Median of its rounds.
        after: The same in the second report.
        noise: What the median may change by without meaning, as a part of `before`.
        ratio: Change of the ratio to the reference, 0.1 for a tenth more.
        ratio_noise: What that may change by without meaning.
        more: Changes of other values.
    """

    figure: Figure
    before: float
    after: float
    noise: float
    ratio: float
    ratio_noise: float
    more: tuple[float, ...]

    @property
    def change(self) -> float:
        """The change of the figure, 0.1 for a tenth more."""
        return self.after / self.before - 1

    @property
    def moved(self) -> bool:
        """Whether the figure changed beyond noise."""
        return abs(self.change) > max(LEAST, self.noise)

    @property
    def slower(self) -> bool:
        """Whether it got worse beyond noise."""
        return self.moved and (self.change < 0) is self.figure.rises

    @property
    def ratio_moved(self) -> bool:
        """Whether the ratio to the reference changed beyond noise."""
        return abs(self.ratio) > max(LEAST, self.ratio_noise)

    @property
    def alone(self) -> bool:
        """Whether it moved and its ratio to the reference did not: the machine may be the reason."""
        return self.moved and self.figure.ratio > 0 and not self.ratio_moved

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
                f"{first} and {second} have no case in common, expected two reports of one benchmark with the same "
                f"{words(before).who}s and cases: measure with the same arguments"
            )
    except KVBridgeError as error:
        Console(stderr=True, highlight=False).print(plain(str(error)), markup=False, soft_wrap=True)
        return _UNUSABLE
    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    said = words(before)
    for name, text in definitions(said).items():
        console.print(f"[bold]{name}[/]: {text}")
    for name, path, report in (("first", first, before), ("second", second, after)):
        run_of = f"{path}, {report.when}, kvbridge {report.kvbridge}, {report.rounds} rounds"
        console.print(Text.assemble((name, "bold"), f": {plain(run_of)}"), soft_wrap=True)
    for sentence in conditions(before, after):
        console.print(Text(plain(sentence), "yellow"))
    console.print(_table(found, said))
    for line in (_count(found), _left_out(before, after, first, second)):
        if line:
            console.print(plain(line), markup=False)
    return _SLOWER if any(one.slower for one in found) else _SAME


def changes(before: Report, after: Report) -> list[Change]:
    """Return what became of each figure that both reports have: what moved first, and of that what changed most."""
    if before.benchmark != after.benchmark:
        return []
    old, new = _by_case(before), _by_case(after)
    found = [_change(old[case], new[case]) for case in old if case in new]
    return sorted(found, key=lambda one: (one.moved, abs(math.log(one.after / one.before))), reverse=True)


def _by_case(report: Report) -> dict[tuple[str, str], Figure]:
    return {(figure.who, figure.case): figure for figure in report.figures()}


def _change(old: Figure, new: Figure) -> Change:
    noise = _noise(old.rounds, new.rounds)
    return Change(
        old,
        statistics.median(old.rounds),
        statistics.median(new.rounds),
        noise,
        new.ratio / old.ratio - 1 if old.ratio else 0.0,
        _noise(old.ratios, new.ratios) if old.ratios and new.ratios else noise,
        tuple(after / before - 1 for before, after in zip(old.more, new.more, strict=True)),
    )


def _noise(before: Sequence[float], after: Sequence[float]) -> float:
    return (_spread(before) + _spread(after)) / statistics.median(before)


def _spread(values: Sequence[float]) -> float:
    middle = statistics.median(values)
    return SIGMAS * TO_SIGMA * statistics.median(abs(value - middle) for value in values)


def conditions(before: Report, after: Report) -> list[str]:
    """Say, a sentence each, what was not the same in both runs, so that figures cannot be compared one to one."""
    found = []
    for what in dict.fromkeys([*before.machine, *after.machine]):
        old, new = (str(report.machine.get(what, "not said")) for report in (before, after))
        if old != new:
            reference = words(before).reference
            found.append(f"Different machines: {what} {old}, then {new}. Look at the ratio to {reference}.")
    if before.kvbridge != after.kvbridge:
        found.append(f"Different versions of kvbridge: {before.kvbridge}, then {after.kvbridge}.")
    if before.rounds != after.rounds:
        found.append(f"Different numbers of rounds: {before.rounds}, then {after.rounds}.")
    if min(before.rounds, after.rounds) < FEW:
        found.append(f"Fewer than {FEW} rounds: the noise is hardly known, and more may seem to have moved.")
    return found


def _table(found: Sequence[Change], said: Words) -> Table:
    table = Table(said.who, "case", title="first → second", title_justify="left")
    for name in (said.figure, "change", "noise", f"of {said.reference}", *said.more):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for one in found:
        style = "" if not one.moved else "yellow" if one.alone else "red" if one.slower else "green"
        ratio = Text(percent(one.ratio), "bold" if one.ratio_moved else "") if one.figure.ratio else ""
        table.add_row(
            Text(plain(one.figure.who)),
            Text(plain(one.figure.case)),
            f"{one.figure.form(one.before)} → {one.figure.form(one.after)}",
            Text(percent(one.change), style),
            f"± {one.noise:.1%}".replace("%", " %"),
            ratio,
            *map(percent, one.more),
            Text(one.verdict, style),
        )
    return table


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
    old, new = set(_by_case(before)), set(_by_case(after))
    counts = ((len(old - new), first), (len(new - old), second))
    only = [f"{count} only in {path}" for count, path in counts if count]
    return f"Not compared: {', '.join(only)}." if only else ""
