"""The only place where kvbridge starts threads: named, joined with a deadline, their error handed to the next call."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, TypeVar

from kvbridge.errors import KVBridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")


class Loop:
    """A named daemon thread that calls `step()` until it is stopped.

    Args:
        name: The thread's name; it starts with `kvbridge-`.
        step: Called again and again. It must return within a bounded time.
        wake: Makes a `step` that waits return soon. Called from the stopping thread.
        ended: Called on the thread as its last act, however late it ends and for whatever reason: it closes what
            belongs to the thread.
    """

    def __init__(
        self, name: str, step: Callable[[], None], wake: Callable[[], None], ended: Callable[[], None] | None = None
    ) -> None:
        self._step = step
        self._wake = wake
        self._ended = ended
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"kvbridge-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._step()
        except BaseException as error:  # a bug must reach the next caller instead of ending the thread silently
            self._error = error
        finally:
            if self._ended is not None:
                self._ended()

    @property
    def current(self) -> bool:
        """Whether the caller runs on this thread."""
        return threading.current_thread() is self._thread

    def check(self) -> None:
        """Raise what ended the thread, if something did.

        Raises:
            KVBridgeError: The thread died; the original error is the cause.
        """
        if self._error is not None:
            raise KVBridgeError(
                f"the thread {self._thread.name} ended with {self._error!r}: "
                "this endpoint cannot go on, restart the engine and report this as a bug"
            ) from self._error

    def stop(self, timeout: float) -> bool:
        """Stop the thread and wait up to `timeout` seconds for its end. Idempotent.

        Returns:
            Whether it ended in time.
        """
        self._stop.set()
        self._wake()
        if not self.current:
            self._thread.join(timeout)
        return not self._thread.is_alive()


def call_within(name: str, call: Callable[[], T], seconds: float) -> tuple[bool, T | None]:
    """Run a call on a named daemon thread and wait for its end.

    Args:
        name: The thread's name; `kvbridge-` comes before it.
        call: What to run. What it raises is raised here.
        seconds: How long to wait. A call that takes longer is left behind: nothing can stop it.

    Returns:
        Whether it ended in time, and what it returned.
    """
    found: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:  # it belongs to the caller
            errors.append(error)

    thread = threading.Thread(target=run, name=f"kvbridge-{name}", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        return False, None
    if errors:
        raise errors[0]
    return True, found[0]


def call_all_within(name: str, calls: Sequence[Callable[[], None]], seconds: float) -> int:
    """Run calls at the same time, each on a named daemon thread, and wait for all.

    Args:
        name: The threads' name; `kvbridge-` comes before it, a number after it.
        calls: What to run. What the first that fails raises is raised here.
        seconds: How long to wait for all of them together.

    Returns:
        How many have not ended in time. They are left behind.
    """
    errors: list[BaseException] = []

    def guarded(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # it belongs to the caller
            errors.append(error)

    threads = [
        threading.Thread(target=guarded, args=(call,), name=f"kvbridge-{name}-{number}", daemon=True)
        for number, call in enumerate(calls)
    ]
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if errors:
        raise errors[0]
    return sum(thread.is_alive() for thread in threads)
