"""Lines of figures against something that grows, both logarithmic."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvbridge.bench.page import marks
from kvbridge.bench.page.axis import between
from kvbridge.bench.page.frame import LEFT, RIGHT, across, below, picture

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbridge.bench.page.axis import Axis
    from kvbridge.bench.page.marks import Look
    from kvbridge.markup import Html

_MARGIN = 16
"""Between the frame and the first and the last size."""


class Series(NamedTuple):
    """A line: figures by size."""

    name: str
    look: Look
    values: dict[int, float]


class Scale(NamedTuple):
    """What all charts of a section share: the sizes, and the figures on the other axis."""

    sizes: list[int]
    axis: Axis


class Words(NamedTuple):
    """How a chart is labelled.

    Attributes:
        size: Writes a size, as a number and a unit.
        below: What grows.
        tick: Writes a value beside the axis.
        above: What is measured.
        point: Says what a point is, by its size and its value.
    """

    size: Callable[[int], tuple[str, str]]
    below: str
    tick: Callable[[float], str]
    above: str
    point: Callable[[int, float], str]


def lines(id_: str, title: str, about: str, found: Sequence[Series], scale: Scale, words: Words) -> Html:
    """Draw lines."""

    def place(size: int) -> float:
        return between(size, (scale.sizes[0], scale.sizes[-1]), (LEFT + _MARGIN, RIGHT - _MARGIN))

    drawn = []
    for name, look, values in reversed(found):
        places = {size: (place(size), scale.axis.at(value)) for size, value in sorted(values.items())}
        drawn.append(marks.line(look, list(places.values())))
        drawn += [marks.point(look, *places[size], f"{name}, {words.point(size, values[size])}") for size in places]
    labels = [words.size(size) for size in scale.sizes]
    frame = [
        across(scale.axis, words.tick, words.above),
        below(labels, [place(size) for size in scale.sizes], words.below),
    ]
    return picture(id_, title, about, frame, drawn)
