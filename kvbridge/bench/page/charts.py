"""The charts, as SVG: bandwidth against size, a line for each backend; latency for each size, a stem for each backend.

All charts of a section have the same axes, so that they can be compared by eye.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from kvbridge.bench.figures import in_bytes, in_time, number, short, size
from kvbridge.bench.page import marks
from kvbridge.bench.page.frame import BOTTOM, LEFT, RIGHT, TOP, across, below, picture
from kvbridge.bench.page.plot import Scale, Series, Words, lines
from kvbridge.markup import Html, el

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbridge.bench.page.axis import Axis
    from kvbridge.bench.page.marks import Look
    from kvbridge.bench.transfer_report import Report, Row

_BAND, _STEM = 0.8, 16.0
"""Part of the room of a size that its stems take; and the room that a stem takes at most."""


def sizes(report: Report) -> list[int]:
    """Return all sizes, ascending."""
    return sorted({row.nbytes for row in report.rows})


def series(rows: Sequence[Row], backends: Sequence[str]) -> list[Series]:
    """Return the lines of one chart, in the order of its legend.

    Args:
        rows: Of one layout, and of so many values at a time.
        backends: All of the report, which gives each its look.
    """
    found = [
        Series(name, marks.backend(index), {row.nbytes: row.gb_per_s for row in rows if row.backend == name})
        for index, name in enumerate(backends)
    ]
    found += [
        Series(
            f"{name}, raw library",
            marks.raw(index),
            {row.nbytes: row.nbytes / row.raw_seconds / 1e9 for row in rows if row.backend == name and row.raw_seconds},
        )
        for index, name in enumerate(backends)
    ]
    found.append(Series("memcpy", marks.MEMCPY, _median(rows, lambda row: row.memcpy_gb_per_s)))
    sockets = [row for row in rows if row.socket_seconds]
    found.append(
        Series("socket", marks.SOCKET, _median(sockets, lambda row: row.nbytes / (row.socket_seconds or 1) / 1e9))
    )
    return [one for one in found if one.values]


def _median(rows: Sequence[Row], ask: Callable[[Row], float]) -> dict[int, float]:
    """Return one figure for each size: it was measured beside each backend, and has nothing to do with it."""
    return {
        nbytes: statistics.median(ask(row) for row in rows if row.nbytes == nbytes)
        for nbytes in sorted({row.nbytes for row in rows})
    }


def bandwidth(id_: str, title: str, found: Sequence[Series], scale: Scale) -> Html:
    """Draw GB/s against size."""
    largest = max(nbytes for one in found for nbytes in one.values)
    said = ", ".join(f"{one.name} {number(one.values[largest])}" for one in found if largest in one.values)
    about = (
        f"GB/s against size of a value, both logarithmic. At {in_bytes(largest)}: {said}. All figures: in the table."
    )
    words = Words(
        size, "size of a value", short, "GB/s", lambda nbytes, value: f"{in_bytes(nbytes)}: {number(value)} GB/s"
    )
    return lines(id_, title, about, found, scale, words)


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
        across(scale.axis, lambda tick: in_time(tick, short), "time"),
        between_sizes,
        below([size(nbytes) for nbytes in scale.sizes], centres, "size of a value"),
    ]
    return picture(id_, title, about, frame, drawn)


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
