"""`Transfer`: one operation in flight. Nothing in kvbridge blocks without a deadline; waiting is the caller's choice.

A transfer is *finished* only when the memory that was handed in may be reused, also after `cancel()` and after a
failure. That is the abort barrier: whoever sees `poll()` return true owns his memory again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from kvbridge.errors import CancelledError, KVBridgeError, TransferTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

T = TypeVar("T")
_PENDING = object()


class Transfer(Generic[T]):
    """A result that arrives later, or a typed failure.

    Any thread may call any method. Resolving is for the side that does the work and happens once: a second
    resolution is ignored, so a late or duplicate completion cannot reach the caller.

    Args:
        what: What this transfer does, in a few words, for error messages.
    """

    __slots__ = ("_callbacks", "_cancel", "_error", "_lock", "_value", "_wake", "what")

    def __init__(self, what: str, on_cancel: Callable[[], None] | None = None) -> None:
        self.what = what
        self._lock = threading.Lock()
        self._wake: threading.Event | None = None
        self._value: object = _PENDING
        self._error: KVBridgeError | None = None
        self._cancel = on_cancel
        self._callbacks: list[Callable[[Transfer[T]], None]] = []

    def __repr__(self) -> str:
        state = "failed" if self._error else "done" if self.poll() else "in flight"
        return f"<Transfer {self.what}: {state}>"

    def poll(self) -> bool:
        """Whether the transfer is finished, in success or failure. Never blocks."""
        return self._value is not _PENDING or self._error is not None

    @property
    def error(self) -> KVBridgeError | None:
        """The failure, or None where there is none (yet)."""
        return self._error

    def result(self) -> T:
        """Return the value of a finished transfer.

        Raises:
            KVBridgeError: The failure, if it failed.
            TransferTimeoutError: It is still in flight.
        """
        if self._error is not None:
            raise self._error
        if self._value is _PENDING:
            raise TransferTimeoutError(f"{self.what} is still in flight: call wait(timeout) or poll() first")
        return self._value  # type: ignore[return-value]

    def wait(self, timeout: float) -> T:
        """Wait until the transfer is finished and return its value.

        Args:
            timeout: Seconds. When they are over the transfer goes on; call `cancel()` to end it.

        Raises:
            TransferTimeoutError: It is still in flight after `timeout` seconds.
            KVBridgeError: The failure, if it failed.
        """
        with self._lock:
            if not self.poll() and self._wake is None:
                self._wake = threading.Event()
            wake = self._wake
        if wake is not None and not wake.wait(timeout):
            raise TransferTimeoutError(f"{self.what} did not finish within {timeout:g} s")
        return self.result()

    def cancel(self) -> None:
        """Ask for an end. The transfer finishes once its memory is safe, usually with `CancelledError`."""
        with self._lock:
            cancel, self._cancel = (None, self._cancel) if self.poll() else (self._cancel, None)
        if cancel is not None:
            with contextlib.suppress(KVBridgeError):  # whoever would end it is closed: closing ends it
                cancel()

    def on_done(self, callback: Callable[[Transfer[T]], None]) -> None:
        """Call `callback(self)` once finished, on the finishing thread; at once if it is finished already."""
        with self._lock:
            if not self.poll():
                self._callbacks.append(callback)
                return
        run_callback(lambda: callback(self))

    def resolve(self, value: T) -> None:
        """Finish with a value. For the side that does the work."""
        self._finish(value, None)

    def fail(self, error: KVBridgeError) -> None:
        """Finish with a failure. For the side that does the work."""
        self._finish(_PENDING, error)

    def hand_on(self, other: Transfer[T]) -> None:
        """Finish another transfer as this one has finished."""
        other._finish(self._value, self._error)

    def _finish(self, value: object, error: KVBridgeError | None) -> None:
        with self._lock:
            if self.poll():
                return
            self._error = error
            self._value = value
            self._cancel = None  # it often refers to this transfer: no cycle is left for a collection to find
            callbacks, self._callbacks = self._callbacks, []
            if self._wake is not None:
                self._wake.set()
        for callback in callbacks:
            run_callback(lambda: callback(self))  # noqa: B023 - run at once


def failed(what: str, error: KVBridgeError) -> Transfer[Any]:
    """Make a transfer that has failed already."""
    transfer: Transfer[Any] = Transfer(what)
    transfer.fail(error)
    return transfer


def run_callback(call: Callable[[], object]) -> None:
    """Run a callback of somebody else: what it raises is logged, and keeps nobody from his own."""
    try:
        call()
    except Exception:
        logger.exception("a callback raised: it must not")


def cancelled(what: str) -> CancelledError:
    """Make the error with which a cancelled transfer ends."""
    return CancelledError(f"{what} was cancelled")
