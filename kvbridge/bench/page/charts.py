"""The charts, as SVG: bandwidth against size, a line for each backend; latency for each size, a stem for each backend.

All charts of a section have the same axes, so that they can be compared by eye.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, NamedTuple

from kvbridge.bench.figures import in_bytes, in_time, number, short, size
from kvbridge.bench.page import marks
from kvbridge.bench.page.axis import Axis, apart, between
from kvbridge.markup import Child, Html, el

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbridge.bench.page.marks import Look
    from kvbridge.bench.transfer_report import Report, Row

WIDTH, HEIGHT = 440, 316
LEFT, RIGHT, TOP, BOTTOM = 66, 432, 28, 252
"""The frame in the picture. Left of it and below it stand the labels."""

_MARGIN = 16
"""Between the frame and the first and the last size."""
_LABEL = 34
"""Width of the label of a size."""
_BAND, _STEM = 0.8, 16.0
"""Part of the room of a size that its stems take; and the room that a stem takes at most."""


class Series(NamedTuple):
    """A line of a chart of bandwidth: GB/s by size."""

    name: str
    look: Look
    values: dict[int, float]


class Scale(NamedTuple):
    """What all charts of a section share: the sizes, and the figures on the other axis."""

    sizes: list[int]
    axis: Axis


def sizes(report: Report) -> list[int]:
    """Return all sizes, ascending."""
    return sorted({row.nbytes for row in report.rows})


def series(rows: Sequence[Row], backends: Sequence[str]) -> list[Series]:
    """Return the lines of one chart, in the order of its legend.

    Args:
        rows: Of one layout, and of so many values at a time.
        backends: All of the report, which gives each its look.
    """
    lines = [
        Series(name, marks.backend(index), {row.nbytes: row.gb_per_s for row in rows if row.backend == name})
        for index, name in enumerate(backends)
    ]
    lines += [
        Series(
            f"{name}, raw library",
            marks.raw(index),
            {row.nbytes: row.nbytes / row.raw_seconds / 1e9 for row in rows if row.backend == name and row.raw_seconds},
        )
        for index, name in enumerate(backends)
    ]
    lines.append(Series("memcpy", marks.MEMCPY, _median(rows, lambda row: row.memcpy_gb_per_s)))
    sockets = [row for row in rows if row.socket_seconds]
    lines.append(
        Series("socket", marks.SOCKET, _median(sockets, lambda row: row.nbytes / (row.socket_seconds or 1) / 1e9))
    )
    return [one for one in lines if one.values]


def _median(rows: Sequence[Row], ask: Callable[[Row], float]) -> dict[int, float]:
    """Return one figure for each size: it was measured beside each backend, and has nothing to do with it."""
    return {
        nbytes: statistics.median(ask(row) for row in rows if row.nbytes == nbytes)
        for nbytes in sorted({row.nbytes for row in rows})
    }


def bandwidth(id_: str, title: str, lines: Sequence[Series], scale: Scale) -> Html:
    """Draw GB/s against size."""

    def place(nbytes: int) -> float:
        return between(nbytes, (scale.sizes[0], scale.sizes[-1]), (LEFT + _MARGIN, RIGHT - _MARGIN))

    drawn = []
    for name, look, values in reversed(lines):
        places = {nbytes: (place(nbytes), scale.axis.at(value)) for nbytes, value in sorted(values.items())}
        drawn.append(marks.line(look, list(places.values())))
        drawn += [
            marks.point(look, *places[nbytes], f"{name}, {in_bytes(nbytes)}: {number(values[nbytes])} GB/s")
            for nbytes in places
        ]
    largest = max(nbytes for one in lines for nbytes in one.values)
    said = ", ".join(f"{one.name} {number(one.values[largest])}" for one in lines if largest in one.values)
    about = (
        f"GB/s against size of a value, both logarithmic. At {in_bytes(largest)}: {said}. All figures: in the table."
    )
    frame = [_across(scale.axis, short, "GB/s"), _below(scale.sizes, [place(nbytes) for nbytes in scale.sizes])]
    return _picture(id_, title, about, frame, drawn)


def latency(id_: str, title: str, rows: Sequence[Row], backends: Sequence[str], scale: Scale) -> Html:
    """Draw the percentiles of each size: for each backend a mark at the median, a dash at p90, and an end at p99."""
    here = [name for name in backends if any(row.backend == name for row in rows)]
    room = (RIGHT - LEFT) / len(scale.sizes)
    step = min(_STEM, room * _BAND / len(here))
    centres = [LEFT + room * (index + 0.5) for index in range(len(scale.sizes))]
    drawn = [
        _stem(
            row,
            marks.backend(backends.index(row.backend)),
            centres[scale.sizes.index(row.nbytes)] + step * (here.index(row.backend) - (len(here) - 1) / 2),
            min(4.0, step / 2),
            scale.axis,
        )
        for row in rows
    ]
    largest = max(row.nbytes for row in rows)
    said = ", ".join(f"{row.backend} {in_time(row.seconds.p50)}" for row in rows if row.nbytes == largest)
    about = (
        f"Time of one hand-over for each size of a value, logarithmic: median, p90 and p99. Medians at "
        f"{in_bytes(largest)}: {said}. All figures: in the table."
    )
    between_sizes = [
        el("path", d=f"M{LEFT + room * index:.1f} {TOP}V{BOTTOM}", class_="grid")
        for index in range(1, len(scale.sizes))
    ]
    frame = [
        _across(scale.axis, lambda tick: in_time(tick, short), "time"),
        between_sizes,
        _below(scale.sizes, centres),
    ]
    return _picture(id_, title, about, frame, drawn)


def _stem(row: Row, look: Look, x: float, half: float, axis: Axis) -> Html:
    p50, p90, p99 = (axis.at(value) for value in (row.seconds.p50, row.seconds.p90, row.seconds.p99))
    times = ", ".join(f"{name} {in_time(getattr(row.seconds, name))}" for name in ("p50", "p90", "p99"))
    said = f"{row.backend}, {in_bytes(row.nbytes)}: {times}, of {row.count}"
    return el(
        "g",
        el("title", said),
        el("path", d=f"M{x:.1f} {p50:.1f}V{p99:.1f}", class_=f"stem {look.css}"),
        el("path", d=f"M{x - half:.1f} {p90:.1f}h{2 * half:.1f}", class_=f"dash {look.css}"),
        el("path", d=f"M{x - half:.1f} {p99:.1f}h{2 * half:.1f}", class_=f"cap {look.css}"),
        marks.point(look._replace(size=half), x, p50, said),
    )


def _across(axis: Axis, words: Callable[[float], str], name: str) -> Html:
    """Draw the lines across the frame, with their values, and what is measured above them."""
    lines: list[Child] = [el("text", name, x=str(LEFT - 8), y=str(TOP - 14), class_="name end")]
    for tick in axis.ticks:
        y = axis.at(tick)
        lines.append(el("path", d=f"M{LEFT} {y:.1f}H{RIGHT}", class_="grid"))
        lines.append(el("text", words(tick), x=str(LEFT - 8), y=f"{y + 4:.1f}", class_="end"))
    return el("g", lines)


def _below(nbytes: Sequence[int], places: Sequence[float]) -> Html:
    """Draw the sizes under the frame, the number over its unit, as many as there is room for."""
    labels: list[Child] = []
    for index in apart(places, _LABEL):
        x = f"{places[index]:.1f}"
        value, unit = size(nbytes[index])
        labels.append(el("path", d=f"M{x} {BOTTOM}v5", class_="tick"))
        labels.append(el("text", value, x=x, y=str(BOTTOM + 20)))
        labels.append(el("text", unit, x=x, y=str(BOTTOM + 35)))
    middle = (LEFT + RIGHT) / 2
    labels.append(el("text", "size of a value", x=f"{middle:.1f}", y=str(HEIGHT - 8), class_="name"))
    return el("g", labels)


def _picture(id_: str, title: str, about: str, frame: Child, drawn: Child) -> Html:
    outline = el("path", d=f"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}", class_="tick")
    return el(
        "svg",
        el("title", title, id=f"{id_}-title"),
        el("desc", about, id=f"{id_}-about"),
        el("g", frame, class_="frame"),
        drawn,
        outline,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_labelledby=f"{id_}-title",
        aria_describedby=f"{id_}-about",
        class_="chart",
    )
