"""`Questions`: what consumers ask of a producer before it has an answer. Each waits for its time at most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.control.link import Link
    from kvbridge.control.messages import Select
    from kvbridge.control.reactor import Timer

MAX_WAITING = 10_000
"""Questions for keys that are not here yet, of all consumers together."""


@dataclass(eq=False)
class Question:
    """A question for a key that is not here yet.

    Attributes:
        link: Who asks.
        select: What he asks.
        deadline: Ends the wait.
    """

    link: Link
    select: Select
    deadline: Timer | None = None


class Questions:
    """All methods belong to the endpoint's thread."""

    def __init__(self) -> None:
        self._by_key: dict[str, list[Question]] = {}
        self._by_asker: dict[tuple[Link, int], Question] = {}  # the same

    def __len__(self) -> int:
        return len(self._by_asker)

    @property
    def full(self) -> bool:
        """Whether no more are taken."""
        return len(self) >= MAX_WAITING

    def has(self, link: Link, xid: int) -> bool:
        """Whether this consumer's question waits."""
        return (link, xid) in self._by_asker

    def wait(self, link: Link, select: Select, late: Callable[[Question], None]) -> None:
        """Let a question wait; `late` is called with it when its time is over."""
        question = Question(link, select)
        self._by_key.setdefault(select.key, []).append(question)
        self._by_asker[link, select.xid] = question

        def over() -> None:
            self._forget([question])
            late(question)

        question.deadline = link.endpoint.after(select.wait, over)

    def take(self, key: str) -> list[Question]:
        """Take out all questions for a key, in the order in which they came."""
        return self._forget(list(self._by_key.get(key, ())))

    def take_all(self) -> list[Question]:
        """Take out everything."""
        return self._forget(list(self._by_asker.values()))

    def cancel(self, link: Link, xid: int) -> None:
        """Forget a question that its consumer has taken back, if it waits."""
        self._forget([question for question in (self._by_asker.get((link, xid)),) if question is not None])

    def forget(self, link: Link) -> None:
        """Forget all questions of a consumer who is gone."""
        self._forget([question for (who, _), question in self._by_asker.items() if who is link])

    def _forget(self, questions: list[Question]) -> list[Question]:
        for question in questions:
            if question.deadline is not None:
                question.deadline.cancel()
            del self._by_asker[question.link, question.select.xid]
            others = self._by_key[question.select.key]
            others.remove(question)
            if not others:
                del self._by_key[question.select.key]
        return questions
