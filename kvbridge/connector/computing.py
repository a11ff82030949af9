"""What has to wait until a device has computed what the engine has queued: an engine on a GPU runs ahead of it."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from kvbridge.errors import ClosedError, KVBridgeError, TransferTimeoutError
from kvbridge.threads import Loop
from kvbridge.transfer import Transfer, cancelled, failed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

LOOK = 0.0002
"""Seconds between two looks at a mark: a layer of a short prompt takes about as long."""

MARK_TIMEOUT = 60.0
"""Seconds after which work that a device has not done ends what waits for it."""

STOP_TIMEOUT = 2.0
"""Seconds to wait for the thread's end."""


class Mark(Protocol):
    """A place in a device's queue of work."""

    def passed(self) -> bool:
        """Whether all work before it is done. Never blocks.

        Raises:
            KVBridgeError: The device has failed.
        """
        ...


@dataclass(eq=False)
class _Waiting:
    """What begins when its mark has been passed."""

    mark: Mark
    deadline: float
    begin: Callable[[], Transfer[None]]
    transfer: Transfer[None]
    begun: Transfer[None] | None = None
    unwanted: bool = False


class Computing:
    """Begins transfers when a device has done what was queued before, in the order of the queue.

    Where there is nothing to wait for, as with host memory, it begins them at once and has no thread.

    Args:
        mark: Puts a mark behind the work that is queued now; None where everything is done when it is asked for.
    """

    def __init__(self, mark: Callable[[], Mark] | None = None) -> None:
        self._mark = mark
        self._changed = threading.Condition()
        self._queue: deque[_Waiting] = deque()
        self._beginning: list[_Waiting] = []
        self._closed = False
        self._loop = Loop("computing", self._step, self._wake, self._finish) if mark is not None else None

    def mark(self) -> Mark | None:
        """Put a mark behind the work that is queued now; None where nothing has to be waited for."""
        return self._mark() if self._mark is not None else None

    def after(self, mark: Mark | None, what: str, begin: Callable[[], Transfer[None]]) -> Transfer[None]:
        """Begin a transfer when a mark has been passed.

        Args:
            mark: What `mark` returned, no earlier one than before.
            what: What the transfer does, for messages.
            begin: Begins it: called at once for None, else on this object's thread, at most once.

        Returns:
            Its transfer. Cancelled before its time it does not begin.
        """
        if mark is None:
            return begin()
        transfer: Transfer[None] = Transfer(what, lambda: self._cancel(waiting))
        waiting = _Waiting(mark, time.monotonic() + MARK_TIMEOUT, begin, transfer)
        with self._changed:
            closed = self._closed
            if not closed:
                self._queue.append(waiting)
                self._changed.notify()
        if closed:
            transfer.fail(ClosedError(f"{what}: it was closed before the device had computed it"))
        return transfer

    def give_up(self, transfers: Iterable[Transfer[None]]) -> None:
        """Cancel those of these transfers that have not begun. Those that began before this call are left alone."""
        unwanted = set(transfers)
        with self._changed:
            waiting = [one for one in (*self._beginning, *self._queue) if one.transfer in unwanted]
        for one in waiting:
            self._cancel(one)

    def close(self) -> None:
        """End what has not begun. Idempotent, bounded."""
        if self._loop is not None:
            self._loop.stop(STOP_TIMEOUT)

    # -- inside -----------------------------------------------------------------------------------------------

    def _cancel(self, waiting: _Waiting) -> None:
        with self._changed:
            waiting.unwanted = True
            begun = waiting.begun
            waits = waiting in self._queue
            if waits:
                self._queue.remove(waiting)
        if begun is not None:
            begun.cancel()
        elif waits:
            waiting.transfer.fail(cancelled(waiting.transfer.what))

    def _step(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed)
            waiting = self._queue[0] if self._queue and not self._closed else None
        if waiting is None:
            return
        what = waiting.transfer.what
        try:
            if not waiting.mark.passed():
                if time.monotonic() < waiting.deadline:
                    time.sleep(LOOK)
                    return
                raise TransferTimeoutError(f"{what}: the device had not computed it after {MARK_TIMEOUT:g} s")
        except KVBridgeError as error:
            waiting.begin = partial(failed, what, error)
        if self._take(waiting):
            self._begin(waiting)

    def _take(self, waiting: _Waiting) -> bool:
        """Take it from the queue, if it still wants to begin."""
        with self._changed:
            if waiting.unwanted:
                return False
            self._queue.popleft()
            self._beginning = [waiting]
            return True

    def _begin(self, waiting: _Waiting) -> None:
        try:
            begun = waiting.begin()
        except Exception as error:
            what = waiting.transfer.what
            begun = failed(what, error if isinstance(error, KVBridgeError) else _internal(what, error))
        with self._changed:
            waiting.begun = begun
            self._beginning = []
        begun.on_done(lambda done: done.hand_on(waiting.transfer))
        if waiting.unwanted:
            begun.cancel()

    def _wake(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _finish(self) -> None:
        with self._changed:
            self._closed = True
            left = list(self._queue)
            self._queue.clear()
        for one in left:
            one.transfer.fail(ClosedError(f"{one.transfer.what}: it was closed before the device had computed it"))


def _internal(what: str, error: Exception) -> KVBridgeError:
    wrapped = KVBridgeError(f"{what}: {error!r}; report this as a bug")
    wrapped.__cause__ = error
    return wrapped
