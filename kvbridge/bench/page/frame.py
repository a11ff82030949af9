"""The frame of a chart: lines across with their values, labels below, and the picture with what it is of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kvbridge.bench.page.axis import apart
from kvbridge.markup import Child, Html, el

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WIDTH, HEIGHT = 440, 316
LEFT, RIGHT, TOP, BOTTOM = 66, 432, 28, 252
"""The frame in the picture. Left of it and below it stand the labels."""

_LABEL = 34
"""Width of the label of a place below."""


class Ticked(Protocol):
    """An axis."""

    ticks: list[float]

    def at(self, value: float) -> float:
        """Say where a value stands."""


def across(axis: Ticked, words: Callable[[float], str], name: str) -> Html:
    """Draw the lines across the frame, with their values, and what is measured above them."""
    lines: list[Child] = [el("text", name, x=str(LEFT - 8), y=str(TOP - 14), class_="name end")]
    for tick in axis.ticks:
        y = axis.at(tick)
        lines.append(el("path", d=f"M{LEFT} {y:.1f}H{RIGHT}", class_="grid"))
        lines.append(el("text", words(tick), x=str(LEFT - 8), y=f"{y + 4:.1f}", class_="end"))
    return el("g", lines)


def below(labels: Sequence[tuple[str, str]], places: Sequence[float], name: str, room: float = _LABEL) -> Html:
    """Draw labels under the frame, a number over its unit, as many as there is room for, and what they are of."""
    drawn: list[Child] = []
    for index in apart(places, room):
        x = f"{places[index]:.1f}"
        value, unit = labels[index]
        drawn.append(el("path", d=f"M{x} {BOTTOM}v5", class_="tick"))
        drawn.append(el("text", value, x=x, y=str(BOTTOM + 20)))
        if unit:
            drawn.append(el("text", unit, x=x, y=str(BOTTOM + 35)))
    middle = (LEFT + RIGHT) / 2
    drawn.append(el("text", name, x=f"{middle:.1f}", y=str(HEIGHT - 8), class_="name"))
    return el("g", drawn)


def picture(id_: str, title: str, about: str, frame: Child, drawn: Child) -> Html:
    """Make the picture of a chart."""
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
