"""`Moving`: a backend's move, advanced on the endpoint's thread until it has ended, and the transfer that it is for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvbridge.abc.backend import MoveState
from kvbridge.control.attempt import attempt
from kvbridge.errors import KVBridgeError, TransferTimeoutError
from kvbridge.transfer import Transfer, cancelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.abc.backend import Backend, Move
    from kvbridge.control.endpoint import Endpoint


class Moving:
    """One move. `start` and `stop` belong to the endpoint's thread; the transfer finishes when the memory is safe.

    Args:
        backend: Whose move it is.
        endpoint: Whose thread advances it.
        what: What it does, for messages.
        ended: Called once when the move has ended, with its error or None, before the transfer finishes.
    """

    def __init__(
        self, backend: Backend[Any], endpoint: Endpoint, what: str, ended: Callable[[KVBridgeError | None], None]
    ) -> None:
        self.transfer: Transfer[None] = Transfer(what, lambda: endpoint.call_soon(lambda: self.stop(cancelled(what))))
        self._backend = backend
        self._endpoint = endpoint
        self._ended = ended
        self._move: Move | None = None
        self._why: KVBridgeError | None = None
        self._over = False

    def start(self, begin: Callable[[], Move], timeout: float = 0.0) -> None:
        """Begin the move and advance it; stop it after `timeout` seconds, 0 for never."""
        if self._why is not None:
            self._end(self._why)
            return
        try:
            self._move = attempt(self._backend, begin)
        except KVBridgeError as error:
            self._end(error)
            return
        if timeout:
            late = TransferTimeoutError(f"{self.transfer.what} did not finish within {timeout:g} s")
            self._endpoint.after(timeout, lambda: self.stop(late))
        if self._step() is not None:
            self._endpoint.move(self._step)

    def stop(self, why: KVBridgeError) -> None:
        """Ask for an end. It comes when the backend has stopped, or is done all the same."""
        if self._over or self._why is not None:
            return
        self._why = why
        if self._move is not None:
            self._move.abort()

    def _step(self) -> bool | None:
        if self._move is None or self._over:
            return None
        try:
            state = attempt(self._backend, self._move.step)
        except KVBridgeError as error:
            self._end(self._why or error)
            return None
        if state is MoveState.DONE:
            self._end(None)
            return None
        return state is MoveState.AGAIN

    def _end(self, error: KVBridgeError | None) -> None:
        self._over = True
        self._move = None
        self._ended(error)
        if error is None:
            self.transfer.resolve(None)
        else:
            self.transfer.fail(error)
