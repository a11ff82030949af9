"""`kvbridge bench reuse`: what it costs to keep blocks and to have them back, part by part, in one run.

Each part says what its figures mean before it measures them. All are medians over interleaved rounds, with the lowest
and the highest of the rounds beside them: what a busy machine does to one side of a ratio it does to the other.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from kvbridge.bench.machine import describe_machine
from kvbridge.errors import KVBridgeError
from kvbridge.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.table import Table

WIDTH = 120
"""Columns of the tables where no terminal says how many there are."""

Rows = list[dict[str, Any]]


class Part(ABC):
    """One thing that is measured."""

    name: str
    """In the file of figures."""

    definitions: str
    """What the figures mean."""

    @abstractmethod
    def measure(self, tell: Callable[[str], None]) -> Rows:
        """Measure.

        Args:
            tell: Called with what is going on.

        Returns:
            Figures that JSON can hold.

        Raises:
            KVBridgeError: It could not be measured, or what was copied is wrong.
        """

    @abstractmethod
    def table(self, rows: Rows) -> Table:
        """Show the figures."""

    def right(self, rows: Rows) -> bool:
        """Say whether all that was seen beside the figures is as it has to be."""
        del rows
        return True


def run(parts: Sequence[Part], json_file: str | None) -> int:
    """Measure and print, one part after the other.

    Args:
        parts: What is measured.
        json_file: Where to write the figures.

    Returns:
        The exit code: 0, or 1 where a part failed or saw something wrong.
    """
    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    found: dict[str, Any] = {"kvbridge": __version__, "machine": describe_machine()}
    right = True
    try:
        for part in parts:
            console.print(part.definitions, markup=False)
            with console.status("") as status:
                rows = part.measure(status.update)
            console.print(part.table(rows))
            console.print()
            found[part.name] = rows
            right = right and part.right(rows)
        if json_file is not None:
            Path(json_file).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    except (KVBridgeError, OSError) as error:
        console.print(f"the benchmark ended: {error}", markup=False, soft_wrap=True)
        return 1
    return 0 if right else 1


def spread(values: Sequence[float], form: str) -> str:
    """Write the lowest and the highest of a figure's rounds, each by this format."""
    return f"{min(values):{form}} … {max(values):{form}}"
