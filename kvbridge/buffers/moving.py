"""`Moving`: steps that the endpoint's thread advances until they have ended, and the transfer that they are for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from kvbridge.abc.backend import MoveState
from kvbridge.buffers.steps import Steps
from kvbridge.control.attempt import attempt
from kvbridge.errors import KVBridgeError, TransferTimeoutError
from kvbridge.transfer import Transfer, cancelled, run_callback

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.abc.backend import Backend
    from kvbridge.buffers.steps import Script
    from kvbridge.control.endpoint import Endpoint
    from kvbridge.control.reactor import Timer

T = TypeVar("T")

Ended: TypeAlias = "Callable[[T | None, KVBridgeError | None], None]"


class Moving(Generic[T]):
    """One operation. `start` and `stop` belong to the endpoint's thread.

    The transfer finishes with the operation. One that is stopped finishes at once if no memory of the user is in use
    and none will be, however long the backend takes to stop.

    Args:
        backend: Whose moves the operation is made of.
        endpoint: Whose thread advances it.
        what: What it does, for messages.
        script: What it does, step by step. It is run to its end, whatever becomes of the transfer.
        ended: Called once when the operation has ended, with its result or its error, before the transfer finishes
            if that has not.
    """

    def __init__(
        self,
        backend: Backend[Any],
        endpoint: Endpoint,
        what: str,
        script: Script[T],
        ended: Ended[T],
    ) -> None:
        self.transfer: Transfer[T] = Transfer(what, lambda: endpoint.call_soon(lambda: self.stop(cancelled(what))))
        self._backend = backend
        self._endpoint = endpoint
        self._ended = ended
        self._steps = Steps(backend, what, script)
        self._why: KVBridgeError | None = None
        self._over = False
        self._deadline: Timer | None = None

    def start(self, timeout: float = 0.0) -> None:
        """Begin, and go on; stop it after `timeout` seconds, 0 for never. One that was stopped only cleans up."""
        if timeout:
            late = TransferTimeoutError(f"{self.transfer.what} did not finish within {timeout:g} s")
            self._deadline = self._endpoint.after(timeout, lambda: self.stop(late))
        if self._step() is not None:
            self._endpoint.move(self._step)

    def stop(self, why: KVBridgeError) -> None:
        """Ask for an end. It comes when the backend has stopped, or is done all the same."""
        if self._over or self._why is not None:
            return
        self._why = why
        self._steps.abort()
        if not self._steps.touches:
            self.transfer.fail(why)

    def _step(self) -> bool | None:
        try:
            state = attempt(self._backend, self._steps.step)
        except KVBridgeError as error:
            why = self._why or error
            self._end(None, why)
            self.transfer.fail(why)
            return None
        if state is not MoveState.DONE:
            return state is MoveState.AGAIN
        self._end(self._steps.result, None)
        self.transfer.resolve(self._steps.result)
        return None

    def _end(self, result: T | None, error: KVBridgeError | None) -> None:
        self._over = True
        if self._deadline is not None:
            self._deadline.cancel()
        run_callback(lambda: self._ended(result, error))
