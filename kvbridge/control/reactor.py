"""`Reactor`: the one thread of an endpoint. It runs calls, timers and moves, and hands frames to their owner.

Moves are advanced in bounded slices between two looks at the sockets, which keeps heartbeats going while bytes are
copied.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from kvbridge.threads import Loop

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from kvbridge.control.outbound import Dial
    from kvbridge.control.sockets import Sockets

logger = logging.getLogger(__name__)

MAX_WAIT = 0.25
"""Seconds that the thread sleeps at most: an idle endpoint wakes four times a second to sweep."""

MAX_PAUSE = 1.0
"""Seconds between two rounds of the thread that are worth a warning."""

BUSY_POLL = 0.001
"""Seconds between two looks at a move that waits for a backend's library, at most."""

EAGERNESS = 0.25
"""How long the thread sleeps at most between two such looks, as a part of the time that nothing has happened: a short
move is noticed soon, and a long one costs no more than a look in a millisecond."""

MIN_CANCELLED = 100
"""Cancelled timers that may stay until their time has come."""


class Timer:
    """A call in a while. What is not cancelled keeps all that its call refers to until its time has come."""

    __slots__ = ("_reactor", "call")

    def __init__(self, reactor: Reactor, call: Callable[[], None]) -> None:
        self._reactor = reactor
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Forget the call. Idempotent; for the endpoint's thread."""
        if self.call is not None:
            self.call = None
            self._reactor.cancelled()


class Reactor:
    """Calls, timers, moves and frames, all on one thread.

    Args:
        sockets: Where frames come from.
        received: Takes each of them.
        owner: Whose thread it is, for messages.
        counters: Where internal errors and pauses are counted.
    """

    def __init__(
        self,
        sockets: Sockets,
        received: Callable[[bytes | Dial, bytes | None], None],
        owner: str,
        counters: Counter[str],
    ) -> None:
        self._sockets = sockets
        self._received = received
        self._owner = owner
        self._counters = counters
        self._calls: deque[Callable[[], None]] = deque()
        self._moves: list[Callable[[], bool | None]] = []
        self._timers: list[tuple[float, int, Timer]] = []
        self._cancelled = 0
        self._timer_ids = itertools.count()
        self._stepped = self._happened = time.monotonic()
        self._loop: Loop | None = None

    def start(self, name: str) -> None:
        """Start the thread."""
        try:
            self._loop = Loop(name, self._step, self._sockets.wake, self._ended)
        except BaseException:
            self._ended()  # no thread, nobody else to do it
            raise

    def call_soon(self, call: Callable[[], None]) -> None:
        """Run `call()` on the thread. Any thread may ask.

        Raises:
            KVBridgeError: The thread died earlier.
        """
        if self._loop is not None:
            self._loop.check()
        self._calls.append(call)
        if self._loop is None or not self._loop.current:
            self._sockets.wake()

    def stop(self, timeout: float) -> bool:
        """End the thread, which closes the sockets. Returns whether it ended within `timeout` seconds."""
        if self._loop is None or not self._loop.stop(timeout):
            return False
        self._drop_pending()  # handed in between its last look and its end
        return True

    # -- for this thread --------------------------------------------------------------------------------------

    def after(self, delay: float, call: Callable[[], None]) -> Timer:
        """Run `call()` in `delay` seconds, unless the timer is cancelled."""
        timer = Timer(self, call)
        heappush(self._timers, (time.monotonic() + delay, next(self._timer_ids), timer))
        return timer

    def cancelled(self) -> None:
        """Take note that a timer was cancelled; drop such timers once they are most of all."""
        self._cancelled += 1
        if self._cancelled > MIN_CANCELLED and 2 * self._cancelled > len(self._timers):
            self._timers = [entry for entry in self._timers if entry[2].call is not None]
            heapify(self._timers)
            self._cancelled = 0

    def move(self, step: Callable[[], bool | None]) -> None:
        """Call `step()` again and again: True asks for another slice at once, False for one soon, None ends it."""
        self._moves.append(step)
        self._happened = time.monotonic()

    @property
    def current(self) -> bool:
        """Whether the caller runs on the thread."""
        return self._loop is not None and self._loop.current

    @property
    def moving(self) -> bool:
        """Whether anything is in motion."""
        return bool(self._moves)

    def _ended(self) -> None:
        """Drop what is pending and close the sockets: the thread's last act.

        Not that of the one who stops it: a thread that ends too late has nobody left who waits for it, and a ZeroMQ
        context that is collected with open sockets never returns.
        """
        self._drop_pending()
        self._sockets.close()

    def _drop_pending(self) -> None:
        while self._calls:  # each of them finds the endpoint closed
            self._guard(self._calls.popleft())
        # What is pending holds views of memory that is to be given back now.
        self._timers.clear()
        self._moves.clear()

    def _step(self) -> None:
        while self._calls:
            self._guard(self._calls.popleft())
        eager = self._advance_moves()
        frames = self._sockets.poll(self._wait_time(eager=eager))
        self._notice_pause()
        if eager or frames:
            self._happened = self._stepped
        for origin, frame in frames:
            self._guard(lambda o=origin, f=frame: self._received(o, f))  # type: ignore[misc]
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            timer = heappop(self._timers)[2]
            call, timer.call = timer.call, None
            if call is None:
                self._cancelled -= 1
            else:
                self._guard(call)

    def _notice_pause(self) -> None:
        """Tell when this thread was kept from running: peers may take this process for dead."""
        now = time.monotonic()
        pause = now - self._stepped
        self._stepped = now
        if pause > MAX_PAUSE:
            self._counters["pauses"] += 1
            logger.warning(
                "the control plane of %s could not run for %.1f s: this process was stopped, or something in it held "
                "the interpreter or the processor; peers that wait longer than their `peer_timeout` give up",
                self._owner,
                pause,
            )

    def _wait_time(self, *, eager: bool) -> float:
        if eager or self._calls:
            return 0.0
        now = time.monotonic()
        until_timer = self._timers[0][0] - now if self._timers else MAX_WAIT
        until_look = min(BUSY_POLL, EAGERNESS * (now - self._happened)) if self._moves else MAX_WAIT
        return max(0.0, min(MAX_WAIT, until_timer, until_look))

    def _advance_moves(self) -> bool:
        eager = False
        moves, self._moves = self._moves, []
        for step in moves:
            again = self._guard(step)
            if again is not None:
                self._moves.append(step)
                eager = eager or again
        return eager

    def _guard(self, call: Callable[[], bool | None]) -> bool | None:
        """Run a handler; a bug in one must not end the service of all peers."""
        try:
            return call()
        except Exception:
            self._counters["internal_errors"] += 1
            logger.exception("an internal error in the control plane of %s", self._owner)
            return None
