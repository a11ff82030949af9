"""Bars side by side in groups, from 0 upwards, with lines across for what they are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvbridge.bench.figures import in_time, short
from kvbridge.bench.page import marks
from kvbridge.bench.page.axis import Linear
from kvbridge.bench.page.frame import BOTTOM, LEFT, RIGHT, TOP, across, below, picture
from kvbridge.markup import Html, el

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbridge.bench.page.marks import Look

_BAND, _WIDEST = 0.8, 34.0
"""Part of the room of a group that its bars take; and the room that a bar takes at most."""

_FAR = 4.0
"""A line so many times above the highest bar is not drawn where it stands: bars would be too low to be told apart."""


class Bar(NamedTuple):
    """A bar: a time, and a stem above it up to another one.

    Attributes:
        name: What it is of.
        look: How it looks.
        value: Seconds.
        high: Where the stem ends.
    """

    name: str
    look: Look
    value: float
    high: float


class Line(NamedTuple):
    """What the bars of a group are compared with, in seconds."""

    name: str
    css: str
    value: float


class Group(NamedTuple):
    """Bars that stand side by side, and the lines across them."""

    label: tuple[str, str]
    bars: list[Bar]
    lines: list[Line]


def bars(id_: str, title: str, about: str, groups: Sequence[Group], name: str) -> Html:
    """Draw groups of bars; `name` is what the groups differ in."""
    highest = max(bar.high for group in groups for bar in group.bars)
    near = [line.value for group in groups for line in group.lines if line.value <= _FAR * highest]
    axis = Linear(max([highest, *near]), BOTTOM, TOP)
    room = (RIGHT - LEFT) / len(groups)
    drawn = [_group(group, LEFT + room * index, room, axis) for index, group in enumerate(groups)]
    frame = [
        across(axis, lambda tick: in_time(tick, short) if tick else "0", "time"),
        below([group.label for group in groups], [LEFT + room * (index + 0.5) for index in range(len(groups))], name),
    ]
    return picture(id_, title, about, frame, drawn)


def _group(group: Group, left: float, room: float, axis: Linear) -> Html:
    width = min(_WIDEST, room * _BAND / len(group.bars))
    start = left + (room - width * len(group.bars)) / 2
    drawn = [_bar(bar, start + width * index, width, axis) for index, bar in enumerate(group.bars)]
    return el("g", drawn, [_line(line, left, room, axis) for line in group.lines])


def _bar(bar: Bar, left: float, width: float, axis: Linear) -> Html:
    top, high, middle = axis.at(bar.value), axis.at(bar.high), left + width / 2
    said = f"{bar.name}: {in_time(bar.value)}, p95 {in_time(bar.high)}"
    return el(
        "g",
        el("title", said),
        el(
            "path",
            d=f"M{left + 1:.1f} {BOTTOM}V{top:.1f}H{left + width - 1:.1f}V{BOTTOM}Z",
            class_=f"bar {bar.look.css}",
        ),
        el("path", d=f"M{middle:.1f} {top:.1f}V{high:.1f}", class_=f"stem {bar.look.css}"),
        marks.point(bar.look._replace(size=min(bar.look.size, width / 2)), middle, top, said),
    )


def _line(line: Line, left: float, room: float, axis: Linear) -> Html | None:
    if line.value > axis.highest:
        return None
    y = axis.at(line.value)
    path = el("path", d=f"M{left:.1f} {y:.1f}h{room:.1f}", class_=f"line reference {line.css}")
    return el("g", el("title", f"{line.name}: {in_time(line.value)}"), path)
