"""`Durations`: how long operations took, each one, until somebody takes the figures."""

from __future__ import annotations

from collections import deque

LIMIT = 10_000
"""Durations of one kind that are remembered while nobody takes them; the oldest go first."""


class Durations:
    """Collects seconds by name. Called from one thread."""

    def __init__(self) -> None:
        self._seconds: dict[str, deque[float]] = {}

    def add(self, name: str, seconds: float) -> None:
        """Take note that an operation took so many seconds."""
        self._seconds.setdefault(name, deque(maxlen=LIMIT)).append(seconds)

    def take(self) -> dict[str, list[float]]:
        """Return what was noted since the last call, by name."""
        found = {name: list(seconds) for name, seconds in self._seconds.items()}
        self._seconds.clear()
        return found
