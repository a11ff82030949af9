"""What the demo of reuse asks: five questions about one long text, kvbridge's own licence as it is installed."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass

from kvbridge_vllm.launch import LaunchError

QUESTIONS = (
    "In one sentence, what does this licence allow?",
    "May I sell a product that contains this software?",
    "What must I do when I change a file and pass it on?",
    "May I use the names and trademarks of the licensor?",
    "Who pays when the software does damage?",
)

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


def licence() -> Document:
    """Reads the licence.

    Raises:
        LaunchError: kvbridge was installed without it.
    """
    for path in importlib.metadata.files("kvbridge") or ():
        if path.name == "LICENSE":
            # The text begins with a centred title; what the lines are indented by is of no use to a model.
            return Document("the Apache licence", "\n".join(line.strip() for line in path.read_text().splitlines()))
    raise LaunchError("the installed package kvbridge has no LICENSE, which the questions are about: install it again")
