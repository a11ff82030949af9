"""`Peer`: a `Node` in a process of its own. What it raises travels back, with its traceback."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from multiprocessing import spawn
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from kvbridge.errors import KVBridgeError, from_code
from tests.nodes import SLICE, Node, eventually, set_constants

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SLICES = "kvbridge_cpu.moves:SLICE_BYTES"
_spawn = multiprocessing.get_context("spawn")
_prepare = spawn.get_preparation_data


def _without_main(name: str) -> dict[str, Any]:
    """Keep a child from importing pytest, which is the main module here: a third of its start."""
    return {key: value for key, value in _prepare(name).items() if not key.startswith("init_main_from")}


class PeerFailedError(AssertionError):
    """A peer raised something that is no error of kvbridge, or did not answer. The message is its traceback."""


def _serve(pipe: Connection, constants: dict[str, Any], options: dict[str, Any]) -> None:
    node: Node | None = None
    verb: str | None = "start"
    arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    while verb is not None:
        try:
            if node is None:
                set_constants(constants)
                node = Node(**options)
                answer = node.where()
            else:
                answer = getattr(node, verb)(*arguments[0], **arguments[1])
            pipe.send(("value", answer, ""))
        except KVBridgeError as error:
            pipe.send((error.code, str(error), traceback.format_exc()))
        except Exception:
            pipe.send(("failed", "", traceback.format_exc()))
        try:
            verb, arguments = pipe.recv()
        except EOFError:
            verb = None
    if node is not None:
        node.close()


class Peer:
    """A node in a spawned process. `do(verb, ...)` calls a method of `Node` there and returns its answer.

    Args:
        constants: `module:NAME` to values that are set in that process before anything is made.
        **options: of `Node`.
    """

    def __init__(self, constants: dict[str, Any] | None = None, **options: Any) -> None:
        self._pipe, theirs = _spawn.Pipe()
        self._process = _spawn.Process(
            target=_serve, args=(theirs, {SLICES: SLICE, **(constants or {})}, options), daemon=True
        )
        with mock.patch.object(spawn, "get_preparation_data", _without_main):
            self._process.start()
        theirs.close()
        self.pid = self._process.pid or 0
        self.address, self.generation = self._answer("start", 30.0)

    def do(self, verb: str, /, *positional: Any, answer_in: float = 20.0, **named: Any) -> Any:
        self._pipe.send((verb, (positional, named)))
        return self._answer(verb, answer_in)

    def _answer(self, verb: str, timeout: float) -> Any:
        if not self._pipe.poll(timeout):
            raise PeerFailedError(f"the peer {self.pid} did not answer {verb!r} within {timeout} s")
        try:
            kind, answer, trace = self._pipe.recv()
        except EOFError:
            raise PeerFailedError(f"the peer {self.pid} died in {verb!r}") from None
        if kind == "value":
            return answer
        if kind == "failed":
            raise PeerFailedError(f"{verb!r} failed in the peer {self.pid}:\n{trace}")
        raise from_code(kind, answer) from PeerFailedError(trace)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def stop(self) -> None:
        """Send SIGSTOP, and wait until every thread has stopped."""
        self.signal(signal.SIGSTOP)
        eventually(lambda: all(state == "T" for state in self._states()), 5.0, lambda: f"{self._states()}")

    def _states(self) -> list[str]:
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return [(task / "stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] for task in tasks]

    def kill(self) -> None:
        """`kill -9`, and wait until the kernel has it."""
        self._process.kill()
        self._process.join(10)

    def end(self) -> None:
        """End it in order if it lives, by force if it does not answer."""
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGCONT)
        self._pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(5)
        self._process.close()
