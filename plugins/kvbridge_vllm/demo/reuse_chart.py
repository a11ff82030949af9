"""What the demo of reuse found, as bars in a terminal, and in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from kvbridge_vllm.demo.chat import Answer

_MIB = 2**20
_EIGHTHS = " ▏▎▍▌▋▊▉"
_FRAME = 49  # columns of the terminal that everything but the bars takes
_NARROWEST, _WIDEST = 10, 60


@dataclass(frozen=True)
class Pair:
    """A question and its two answers.

    Attributes:
        question: its text.
        without: the answer of the engine that keeps nothing.
        reused: the answer of the engine that keeps blocks.
    """

    question: str
    without: Answer
    reused: Answer

    @property
    def same(self) -> bool:
        """Whether both answers are the same text."""
        return self.without.text == self.reused.text


def chart(pairs: Sequence[Pair], width: int) -> Table:
    """Draws the time to first token of each question, without reuse and with it."""
    most = max(max(pair.without.first_token_s, pair.reused.first_token_s) for pair in pairs)
    room = max(_NARROWEST, min(_WIDEST, width - _FRAME))
    table = Table(
        "",
        "",
        "time to first token",
        "",
        "not computed",
        box=None,
        title="Five questions about one document, vLLM's own prefix cache emptied before each",
        title_justify="left",
        padding=(0, 1),
    )
    for number, pair in enumerate(pairs, 1):
        for name, answer, style in (("without", pair.without, "dim"), ("reuse", pair.reused, "green")):
            table.add_row(
                str(number) if name == "without" else "",
                name,
                Text(bar(answer.first_token_s / most, room), style),
                Text(f"{answer.first_token_s * 1000:,.0f} ms", f"{style} bold" if name == "reuse" else style, end=""),
                Text(f"{answer.cached_tokens:,} of {answer.prompt_tokens:,} tokens", style),
                end_section=name == "reuse",
            )
    for column in (3, 4):
        table.columns[column].justify = "right"
    return table


def bar(part: float, width: int) -> str:
    """Draws a part of a width, 0 to 1, to an eighth of a column."""
    whole, eighths = divmod(round(part * width * len(_EIGHTHS)), len(_EIGHTHS))
    return f"{'█' * whole}{_EIGHTHS[eighths]}"[:width].ljust(width)


def verdict(console: Console, pairs: Sequence[Pair], kept_bytes: int) -> int:
    """Says what was seen and what was done.

    Args:
        console: where.
        pairs: the questions.
        kept_bytes: how much KV was copied back.

    Returns:
        The exit status: 0 if all answers were the same and all but the first question reused the document.
    """
    for pair in pairs:
        if not pair.same:
            console.print(f"[red]{pair.question} without:[/] {escape(repr(pair.without.text))}", soft_wrap=True)
            console.print(f"[red]{pair.question} reuse:[/] {escape(repr(pair.reused.text))}", soft_wrap=True)
    same, later = sum(pair.same for pair in pairs), pairs[1:]
    reused = sum(pair.reused.cached_tokens > 0 for pair in later)
    good = same == len(pairs) and reused == len(later)
    console.print(
        "The document was computed once, for the first question, and kvbridge kept its KV in host memory; for the "
        f"other {len(later)} it was copied back from there, {kept_bytes / _MIB:.0f} MiB in all, instead of being "
        "computed again. vLLM's own prefix cache was emptied before each question, as other requests would empty it, "
        "so without reuse the whole document was computed every time."
    )
    console.print(f"document reused: {reused} of {len(later)}")
    console.print(f"[bold {'green' if good else 'red'}]same text: {same} of {len(pairs)}")
    return 0 if good else 1
