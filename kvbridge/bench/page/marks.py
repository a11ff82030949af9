"""How a line of a chart looks: a colour, a shape of its points, and dashes, so that no colour has to be told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvbridge.markup import Child, Html, el

if TYPE_CHECKING:
    from collections.abc import Sequence

HUES = 6
"""Colours of `page.css`. A backend that gets one for the second time has a line of dashes and dots."""

SHAPES = (
    "M-1 0A1 1 0 1 1 1 0A1 1 0 1 1 -1 0Z",
    "M-.9-.9H.9V.9H-.9Z",
    "M0-1.2L1.15.85H-1.15Z",
    "M0-1.3L1.3 0L0 1.3L-1.3 0Z",
    "M0 1.2L1.15-.85H-1.15Z",
    "M-.4-1.2H.4V-.4H1.2V.4H.4V1.2H-.4V.4H-1.2V-.4H-.4Z",
    "M-1.05-1.05H1.05L-1.05 1.05H1.05Z",
)
"""Circle, square, triangle, diamond, triangle upside down, cross, hourglass: of about one size, around 0 0. Seven of
them and six colours: the 42 first backends look different."""

SWATCH, LINE = 34, 14
"""Width and height of a line in the legend."""


class Look(NamedTuple):
    """How a line looks.

    Attributes:
        css: Its classes.
        shape: Of its points, one of `SHAPES`.
        size: Of its points.
    """

    css: str
    shape: str
    size: float


MEMCPY = Look("reference memcpy", SHAPES[0], 2.2)
SOCKET = Look("reference socket", SHAPES[0], 2.2)
LOCAL = Look("reference memcpy", SHAPES[0], 0)
COMPUTED = Look("reference socket", SHAPES[0], 0)


def backend(index: int) -> Look:
    """Return how a backend looks everywhere on the page."""
    again = " again" if index >= HUES else ""
    return Look(f"hue-{index % HUES}{again}", SHAPES[index % len(SHAPES)], 4.2)


def raw(index: int) -> Look:
    """Return how the library of a backend looks: like the backend, dashed and hollow."""
    css, shape, _ = backend(index)
    return Look(f"{css} raw", shape, 3.4)


def point(look: Look, x: float, y: float, said: str) -> Html:
    """Make a point that says what it is when it is pointed at."""
    at = f"translate({x:.1f} {y:.1f}) scale({look.size})"
    return el("path", el("title", said), d=look.shape, transform=at, class_=f"point {look.css}")


def line(look: Look, places: Sequence[tuple[float, float]]) -> Html:
    """Make a line through places."""
    return el("path", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places), class_=f"line {look.css}")


def legend(entries: Sequence[tuple[str, Look]]) -> Html:
    """Make the legend of a chart."""
    return el("ul", [el("li", _swatch(look), name) for name, look in entries], class_="legend")


def _swatch(look: Look) -> Html:
    middle = LINE / 2
    drawn: Child = [
        line(look, [(1, middle), (SWATCH - 1, middle)]),
        el(
            "path",
            d=look.shape,
            transform=f"translate({SWATCH / 2} {middle}) scale({look.size})",
            class_=f"point {look.css}",
        ),
    ]
    size = {"width": str(SWATCH), "height": str(LINE), "viewBox": f"0 0 {SWATCH} {LINE}"}
    return el("svg", drawn, aria_hidden="true", **size)
