"""`Steps`: a task made of moves and tasks, one after the other, as a generator says."""

from __future__ import annotations

import time
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from kvbridge.abc.backend import MoveState
from kvbridge.abc.store import Task
from kvbridge.control.attempt import attempt
from kvbridge.errors import KVBridgeError
from kvbridge.transfer import cancelled, run_callback

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.abc.backend import Backend, Move

T = TypeVar("T")


class Begin(NamedTuple):
    """What a generator yields: how its next move begins. It gets the result of a task, or its error.

    Attributes:
        call: Begins it.
        touches: Whether it reads or writes memory of the user.
    """

    call: Callable[[], Move]
    touches: bool = False


class Pause(Task[None]):
    """A move that lets some time pass.

    Args:
        seconds: How long; an abort ends it at once.
    """

    result = None

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def step(self) -> MoveState:
        """Look at the clock."""
        return MoveState.DONE if time.monotonic() >= self._until else MoveState.WAIT

    def abort(self) -> None:
        """End at once."""
        self._until = 0.0


Script: TypeAlias = Generator[Begin, Any, T]


class Steps(Task[T]):
    """The moves that a generator yields, one after the other. Its return value is the result.

    After an abort no other is begun: the generator gets a `CancelledError` instead. One that does not want to begin
    another ends as if nothing had been asked.

    Args:
        backend: Whose moves they are.
        what: What they do together, for messages.
        script: The generator. Nothing of it is run before the first step.
    """

    def __init__(self, backend: Backend[Any], what: str, script: Script[T]) -> None:
        self._backend = backend
        self._what = what
        self._script = script
        self._current: Move | None = None
        self._touches = False
        self._aborted = False

    @property
    def touches(self) -> bool:
        """Whether memory of the user is read or written right now."""
        return self._touches

    def step(self) -> MoveState:
        """Advance the present move; when it has ended, begin the next one."""
        resume: Callable[[], Begin] = partial(next, self._script)
        while True:
            if self._current is not None:
                try:
                    state = attempt(self._backend, self._current.step)
                except KVBridgeError as error:
                    resume = partial(self._script.throw, error)
                else:
                    if state is not MoveState.DONE:
                        return state
                    result = self._current.result if isinstance(self._current, Task) else None
                    resume = partial(self._script.send, result)
            try:
                self._begin(resume)
            except StopIteration as end:
                self.result = end.value
                return MoveState.DONE

    def abort(self) -> None:
        """Abort the present move, and begin no other."""
        self._aborted = True
        if self._current is not None:
            run_callback(self._current.abort)

    def _begin(self, resume: Callable[[], Begin]) -> None:
        """Let the generator go on until a move has begun."""
        self._current, self._touches = None, False
        while self._current is None:
            begin = resume()
            try:
                if self._aborted:
                    raise cancelled(self._what)
                self._current = attempt(self._backend, begin.call)
                self._touches = begin.touches
            except KVBridgeError as error:
                resume = partial(self._script.throw, error)
