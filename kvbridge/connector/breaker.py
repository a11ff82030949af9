"""`Breaker`: leaves alone for a while what failed several times in a row, then tries it again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST = 60.0
"""Seconds after which it is tried again at the latest."""


class Breaker:
    """Closed: all is well. Open: not to be asked. After a while one question is let through, and its outcome decides.

    Args:
        failures: Failures in a row after which it opens.
        retry: Seconds until it is tried again, the first time; twice as long after each failure, up to a minute.
        clock: Seconds that only grow.
    """

    def __init__(self, failures: int, retry: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.opened = 0
        self._limit = failures
        self._retry = retry
        self._clock = clock
        self._failures = 0
        self._pause = retry
        self._until = 0.0

    @property
    def open(self) -> bool:
        """Whether it is to be left alone now. No question at all, and no trial."""
        return self._clock() < self._until

    def failed(self) -> bool:
        """Take note of a failure. Returns whether it opened the breaker."""
        self._failures += 1
        if self._failures < self._limit:
            return False
        self._until = self._clock() + self._pause
        self._pause = min(LONGEST, 2 * self._pause)
        self.opened += 1
        return True

    def succeeded(self) -> None:
        """Take note of a success."""
        self._failures = 0
        self._pause = self._retry
        self._until = 0.0
