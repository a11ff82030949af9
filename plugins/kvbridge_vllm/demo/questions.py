"""What the demo of reuse asks: five questions about one long text."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

QUESTIONS = (
    "Which bird is the rarest guest?",
    "Which inn is the oldest?",
    "What did the mayor give to the crew of the Heron?",
    "Who is the captain of the Gannet?",
    "What is the storm cake?",
)
"""Such that a very small language model answers most of them from the text."""

WARM_UP = "Write two sentences about rivers."
"""Asked once of every engine and not shown: the first request pays for connections and lazy set-up."""


@dataclass(frozen=True)
class Document:
    """A text that questions are asked about.

    Attributes:
        title: a few words for the terminal.
        text: the text.
    """

    title: str
    text: str

    def messages(self, question: str) -> list[dict[str, str]]:
        """Returns the chat messages: the text comes first, so that all questions share it as their prefix."""
        return [{"role": "user", "content": f"{self.text}\n\n{question}"}]


def warm_up() -> list[dict[str, str]]:
    """Returns the chat messages of a question that shares nothing with the others."""
    return [{"role": "user", "content": WARM_UP}]


def guide() -> Document:
    """Reads the text, which comes with this package and was made up for it."""
    text = resources.files(__package__).joinpath("guide.txt").read_text(encoding="utf-8")
    return Document("a guide to Saltholm Bay", text.strip())
