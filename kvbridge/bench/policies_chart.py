"""The figures of `kvbridge bench policies` as bars in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

EIGHTHS = " ▏▎▍▌▋▊▉"
FRAME = 18
"""Columns of a terminal that the sizes and the frame take."""
FIGURE = 7
"""Columns of one policy that the figure and the space around it take."""
NARROWEST, WIDEST = 6, 24

CAPTION = (
    "% of the blocks asked for that were found at the head of their prompt, the KV that need not be computed. "
    "Tier: part of the distinct blocks, and blocks. Clairvoyant: the most that is possible, with knowledge of the "
    "future. A full bar: the highest figure of its trace. Green: the best policy."
)


def show_trace(console: Console, trace: dict[str, Any]) -> None:
    """Print one trace's figures, a column of bars for each policy."""
    names = list(trace["tiers"][0]["hit_rate"])
    width = max(NARROWEST, min(WIDEST, (console.width - FRAME) // len(names) - FIGURE))
    most = max(rate for tier in trace["tiers"] for rate in tier["hit_rate"].values()) or 1.0
    counts = f"{trace['requests']:,} requests, {trace['blocks']:,} blocks, {trace['distinct']:,} distinct"
    table = Table("tier", *names, title=f"{trace['trace']}: {counts}", title_justify="left")
    for tier in trace["tiers"]:
        rates = tier["hit_rate"]
        best = max(rate for name, rate in rates.items() if name != "clairvoyant")
        cells = [
            Text(
                f"{rate * 100:4.1f} {_bar(rate / most, width)}",
                "dim" if name == "clairvoyant" else "bold green" if rate == best else "",
            )
            for name, rate in rates.items()
        ]
        table.add_row(f"{tier['percent']:2} % {tier['capacity']:>6}", *cells)
    console.print(table)


def _bar(part: float, width: int) -> str:
    whole, eighths = divmod(round(part * width * len(EIGHTHS)), len(EIGHTHS))
    return f"{'█' * whole}{EIGHTHS[eighths]}"[:width].ljust(width)
