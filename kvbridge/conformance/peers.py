"""Peers of a test: nodes in this process, or in spawned ones whose tracebacks travel back.

A spawned interpreter is kept for the next test when its node was closed in order: starting one costs half a second.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbridge.conformance.checks import RequirementError, eventually
from kvbridge.conformance.node import Node
from kvbridge.conformance.resources import resources
from kvbridge.errors import KVBridgeError, UnsupportedError, from_code

if TYPE_CHECKING:
    from collections.abc import Mapping

ANSWER = 30.0
"""Seconds that a verb may take in a peer's process."""

START = 60.0
"""Seconds that a peer's process may take to start: a vendor's library is imported there."""


class Host:
    """A spawned interpreter that holds one node at a time.

    Args:
        folder: Where its output goes; its temporary files go to `tmp` in it.
    """

    def __init__(self, folder: str) -> None:
        mine, theirs = socket.socketpair()
        self._errors = tempfile.NamedTemporaryFile(dir=folder, prefix="peer-", suffix=".log")  # noqa: SIM115 - kept
        temporary = Path(folder, "tmp")
        temporary.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "kvbridge.conformance.peers", str(theirs.fileno())]
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        theirs.close()
        self._pipe: Connection[Any, Any] = Connection(mine.detach())
        self.pid = self._process.pid
        self.broken = False

    def call(self, verb: str, arguments: tuple[Any, ...], named: Mapping[str, Any], timeout: float) -> Any:
        """Run a verb of the node there."""
        try:
            self._pipe.send((verb, arguments, dict(named)))
            if not self._pipe.poll(timeout):
                self.broken = True
                raise RequirementError(f"the peer's process {self.pid} did not answer {verb!r} within {timeout:g} s")
            kind, answer, flag, trace = self._pipe.recv()
        except (EOFError, OSError):
            self.broken = True
            raise RequirementError(f"the peer's process {self.pid} died in {verb!r} ({self._last_words()})") from None
        if kind == "value":
            return answer
        if kind == "fault":
            raise RequirementError(f"in the peer's process, {verb!r}: {answer}") from RemoteTraceback(trace)
        error = UnsupportedError(answer, flag) if kind == UnsupportedError.code else from_code(kind, answer)
        raise error from RemoteTraceback(trace)

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        said = Path(self._errors.name).read_text(errors="replace").strip().splitlines()
        return f"exit code {self._process.returncode}; " + (" | ".join(said[-3:]) or "it said nothing")

    def kill(self) -> None:
        """`kill -9`, and wait until the kernel has it."""
        self.broken = True
        self._process.kill()
        self._process.wait(ANSWER)

    def await_death(self) -> None:
        """Wait until it has died by itself."""
        self.broken = True
        try:
            self._process.wait(ANSWER)
        except subprocess.TimeoutExpired:
            raise RequirementError(f"the process did not die within {ANSWER} s, as it was to") from None

    def stop(self) -> None:
        """Stop it, and wait until every thread has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        tasks = Path(f"/proc/{self.pid}/task")

        def states() -> list[str]:
            return [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks.iterdir()]

        eventually(lambda: set(states()) == {"T"}, ANSWER, lambda: f"the process did not stop: {states()}")

    def go_on(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def end(self) -> None:
        """End it, by force if it does not go by itself."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        self._pipe.close()
        try:
            self._process.wait(5 if not self.broken else 0.1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(ANSWER)
        self._errors.close()


class RemoteTraceback(Exception):  # noqa: N818 - it is shown as the cause of an error, and is none itself
    """The traceback of an error in a peer's process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class RemoteNode:
    """A node in a process of its own: it has `Node`'s verbs."""

    def __init__(self, host: Host, backend: str, options: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        self.host = host
        host.call("make", (backend, dict(options)), settings, START)

    def __getattr__(self, verb: str) -> Any:
        def call(*arguments: Any, answer_in: float = ANSWER, **named: Any) -> Any:
            return self.host.call(verb, arguments, named, answer_in)

        return call

    def kill(self) -> None:
        """`kill -9`."""
        self.host.kill()


class Hosts:
    """Interpreters that are ready for a node."""

    def __init__(self) -> None:
        self._idle: list[Host] = []
        self._lent: list[Host] = []
        self._folder = tempfile.TemporaryDirectory(prefix="kvbridge-peers-", ignore_cleanup_errors=True)

    def get(self) -> Host:
        """Return one."""
        host = self._idle.pop() if self._idle else Host(self._folder.name)
        self._lent.append(host)
        return host

    def give_back(self, host: Host) -> None:
        """Keep one whose node was closed in order; end one that is broken."""
        self._lent.remove(host)
        if host.broken:
            host.end()
        else:
            self._idle.append(host)

    def close(self) -> None:
        """End all, by force those that a test left behind when it hung."""
        for host in self._lent:
            host.broken = True
        for host in (*self._idle, *self._lent):
            host.end()
        self._idle.clear()
        self._lent.clear()
        self._folder.cleanup()


def serve(pipe: Connection[Any, Any]) -> None:
    """Run verbs until the other side is gone."""
    node: Node | None = None
    while True:
        try:
            verb, arguments, named = pipe.recv()
        except (EOFError, OSError):
            break
        try:
            if verb == "make":
                node = Node(*arguments, **named)
                answer: Any = None
            elif verb == "resources":
                answer = resources()
            elif verb == "close":
                answer = node.close() if node is not None else 0.0
            else:
                answer = getattr(node, verb)(*arguments, **named)
            pipe.send(("value", answer, "", ""))
        except KVBridgeError as error:
            pipe.send((error.code, str(error), getattr(error, "flag", ""), traceback.format_exc()))
        except RequirementError as error:
            pipe.send(("fault", str(error), "", traceback.format_exc()))
        except Exception as error:
            pipe.send(("fault", f"{type(error).__name__}: {error}", "", traceback.format_exc()))
    if node is not None:
        node.close()


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
