"""Sizes, times and other figures in words, with a unit and three digits that count."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_DIGITS = 3


def size(nbytes: int) -> tuple[str, str]:
    """Return a number of bytes as a number and a unit."""
    for unit, name in _SIZES:
        if nbytes >= unit:
            return short(nbytes / unit), name
    return str(nbytes), "B"


def in_bytes(nbytes: int) -> str:
    """Return a number of bytes with a unit."""
    return " ".join(size(nbytes))


def in_time(seconds: float, form: Callable[[float], str] | None = None) -> str:
    """Return a duration, which may be below 0, with a unit; `form` makes the number, `number` unless another does."""
    form = form or number
    rounded = abs(float(f"{seconds:.{_DIGITS}g}"))
    for unit, name in _TIMES:
        if rounded >= unit:
            return f"{form(seconds / unit)} {name}"
    return f"{form(seconds * 1e9)} ns"


def number(value: float) -> str:
    """Return a number with its zeros, never with an exponent."""
    if value == 0:
        return "0"
    digits = _DIGITS - 1 - math.floor(math.log10(abs(float(f"{value:.{_DIGITS}g}"))))
    return f"{value:,.{max(digits, 0)}f}".replace("-", "−")  # noqa: RUF001 - a minus


def short(value: float) -> str:
    """Return a number without zeros at its end."""
    text = number(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(change: float) -> str:
    """Return a change as a signed percentage."""
    return f"{change * 100:+.1f} %".replace("-", "−")  # noqa: RUF001 - a minus
