"""The only place where kvbridge starts threads: named, joined with a deadline, their error handed to the next call."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from kvbridge.abc.backend import MoveState
from kvbridge.abc.store import Task
from kvbridge.errors import ClosedError, KVBridgeError
from kvbridge.transfer import cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")

EXIT_TIMEOUT = 5.0
"""Seconds that the end of the interpreter waits for loops that nobody stopped: one may be inside of a slow library."""


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
        self._pid = os.getpid()
        _loops.add(self)
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

    @property
    def runs(self) -> bool:
        """Whether it runs in this process: a fork has no threads."""
        return self._pid == os.getpid() and self._thread.is_alive()


_loops: weakref.WeakSet[Loop] = weakref.WeakSet()


@atexit.register
def _stop_loops() -> None:
    """Stop what nobody stopped, before the interpreter ends.

    A daemon thread that is inside of a library of C++ then would be unwound through it when it comes back, and the
    process would end with SIGABRT.
    """
    deadline = time.monotonic() + EXIT_TIMEOUT
    while running := [loop for loop in list(_loops) if loop.runs]:  # again: one that runs may have started another
        for until in (0.0, deadline):  # all are told before one is waited for
            for loop in running:
                with contextlib.suppress(Exception):  # its owner may be half gone
                    loop.stop(max(0.0, until - time.monotonic()))
        if time.monotonic() >= deadline:
            return


class Pool:
    """A few threads for calls that block, such as those of a library that waits for its server.

    Any thread may call any method. A call that has begun cannot be stopped: give the library a deadline of its own.

    Args:
        name: The threads' name; `kvbridge-` comes before it, a number after it.
        size: How many calls run at one time. The others wait for their turn, in order.
    """

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._changed = threading.Condition()
        self._waiting: deque[_Call[Any]] = deque()
        self._threads: list[Loop] = []
        self._idle = 0
        self._closed = False

    def run(self, call: Callable[[], T]) -> Task[T]:
        """Run a call on one of the threads, which are started when they are needed.

        Args:
            call: What to run. It must not touch endpoints, buffers, pipes or transfers; what only computes, such as
                `kvbridge.memory`, it may use. It runs whether anybody steps the task or not.

        Returns:
            A task whose `step` returns WAIT until the call has ended, then DONE, or raises what the call raised; its
            `result` is what the call returned. An `abort` drops a call that has not begun, and `step` then raises
            `CancelledError`. One that has begun goes on to its end, and ends as if nothing had been asked.

        Raises:
            ClosedError: The pool is closed.
        """
        task = _Call(call, self._drop, f"a call on {self._name!r}")
        with self._changed:
            if self._closed:
                raise ClosedError(f"the threads of {self._name!r} were stopped")
            if len(self._waiting) >= self._idle and len(self._threads) < self._size:
                self._threads.append(Loop(f"{self._name}-{len(self._threads)}", self._step, self._wake))
            self._waiting.append(task)  # last: no call is made of which its caller heard an error
            self._changed.notify()
        return task

    def close(self, timeout: float) -> bool:
        """Drop the calls that have not begun, and wait for the others, `timeout` seconds at most. Idempotent.

        Returns:
            Whether all have ended. A thread whose call goes on is left behind; it ends with its call.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            self._closed = True
            dropped, threads = list(self._waiting), list(self._threads)
        for task in dropped:
            self._drop(task)
        for thread in threads:  # all are told before one is waited for
            thread.stop(0)
        return all(thread.stop(max(0.0, deadline - time.monotonic())) for thread in threads)

    def _step(self) -> None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._waiting or self._closed)
            self._idle -= 1
            task = self._waiting.popleft() if self._waiting else None
        if task is not None:
            task.run()

    def _wake(self) -> None:
        with self._changed:
            self._closed = True  # it is being closed, or the interpreter ends
            self._changed.notify_all()

    def _drop(self, task: _Call[Any]) -> None:
        with self._changed:
            if task not in self._waiting:
                return
            self._waiting.remove(task)
        task.drop()


class _Call(Task[T]):
    """A call on a thread of a pool."""

    def __init__(self, call: Callable[[], T], drop: Callable[[_Call[Any]], None], what: str) -> None:
        self._call: Callable[[], T] | None = call
        self._drop = drop
        self._what = what
        self._error: Exception | None = None
        self._ended = threading.Event()

    def step(self) -> MoveState:
        """Look whether the call has ended."""
        if not self._ended.is_set():
            return MoveState.WAIT
        if self._error is not None:
            raise self._error
        return MoveState.DONE

    def abort(self) -> None:
        """Drop the call if it has not begun."""
        self._drop(self)

    def run(self) -> None:
        """Make the call. For the pool's thread."""
        call, self._call = self._call, None
        try:
            if call is not None:
                self.result = call()
        except Exception as error:  # it belongs to the caller
            self._error = error
        except BaseException as error:  # such as SystemExit: it would end the caller's thread
            self._error = KVBridgeError(f"{self._what} ended with {error!r}")
            self._error.__cause__ = error
        del call  # with what it holds of the caller's, before he hears of the end
        self._ended.set()

    def drop(self) -> None:
        """End without a call. For the pool."""
        self._call = None
        self._error = cancelled(self._what)
        self._ended.set()


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
