"""The only place where kvbridge starts threads: named, joined with a deadline, their error handed to the next call."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from kvbridge.errors import KVBridgeError

if TYPE_CHECKING:
    from collections.abc import Callable


class Loop:
    """A named daemon thread that calls `step()` until it is stopped.

    Args:
        name: The thread's name; it starts with `kvbridge-`.
        step: Called again and again. It must return within a bounded time.
        wake: Makes a `step` that waits return soon. Called from the stopping thread.
    """

    def __init__(self, name: str, step: Callable[[], None], wake: Callable[[], None]) -> None:
        self._step = step
        self._wake = wake
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
