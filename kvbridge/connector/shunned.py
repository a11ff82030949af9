"""`Shunned`: engines that did not answer, so that one that is dead costs one wait, and not one for each request."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kvbridge.connector.breaker import Breaker
from kvbridge.errors import HandshakeError, PeerLostError, TransferTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

RETRY = 2.0
"""Seconds for which an engine is left alone, the first time; see `Breaker`."""

MOST = 1024
"""Engines that are remembered; the one that failed longest ago goes first."""

NO_ANSWER = frozenset(error.code for error in (PeerLostError, TransferTimeoutError, HandshakeError))
"""Codes of failures that say something about the engine that was asked, and nothing about the value."""


class Shunned:
    """Engines by incarnation: one that was restarted is another one. Called from one thread.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._breakers: dict[Hashable, Breaker] = {}

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._breakers)

    def __contains__(self, engine: Hashable) -> bool:
        """Whether an engine is to be left alone now. After a while it is asked again."""
        breaker = self._breakers.get(engine)
        return breaker is not None and breaker.open

    def failed(self, engine: Hashable) -> None:
        """Take note that an engine did not answer."""
        breaker = self._breakers.pop(engine, None) or Breaker(1, RETRY, self._clock)
        if not breaker.open:  # of several that asked at one time the first one counts
            breaker.failed()
        self._breakers[engine] = breaker
        if len(self._breakers) > MOST:
            del self._breakers[next(iter(self._breakers))]

    def answered(self, engine: Hashable) -> None:
        """Take note that an engine answered."""
        self._breakers.pop(engine, None)
