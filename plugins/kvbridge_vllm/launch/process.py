"""Starts a server as a child process tree, waits for its health and ends the whole tree."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING

from kvbridge_vllm.launch import client
from kvbridge_vllm.launch.errors import StartError
from kvbridge_vllm.launch.guard import descendants

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Self

_GUARD_START_S = 20.0  # the guard reports within 0.1 s on an idle machine
_KILL_WAIT_S = 10.0  # the guard's own deadlines for a forced end add up to less
_HEALTH_TIMEOUT_S = 2.0
_POLL_S = 0.2
_TAIL_LINES = 30
_OK = 200
# The first error in a log is the cause: vLLM's parents report that a child failed after the child said why. It stands
# behind vLLM's prefix, "(Worker pid=7) ERROR 01-31 12:00:00 [file.py:7] ", or alone on its line.
_REASON = re.compile(
    r"^(?:\(.*?\) ERROR \S+ \S+ \[.*?\] )?((?:[\w.]*(?:Error|Exception)|\S+: error): .+)$", re.MULTILINE
)
_PROXY_VARIABLES = frozenset({"http_proxy", "https_proxy", "all_proxy", "ftp_proxy"})


def free_port() -> int:
    """Picks a loopback TCP port that nobody listens on and that the system does not hand out for a minute.

    A port that was merely bound and closed can be given to anybody before the server binds it, which takes
    vLLM some seconds. Here a connection is made and closed on it first: the system keeps it in TIME_WAIT and
    out of its choice, while a server that sets SO_REUSEADDR (as vLLM and vllm-router do) may bind it.
    """
    with socket.socket() as listener, socket.socket() as caller:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        caller.connect(listener.getsockname())
        accepted, _ = listener.accept()
        accepted.close()  # this side closes first, so TIME_WAIT stays on the port that was picked
        port = listener.getsockname()[1]
        return int(port)


def cache_folder() -> Path:
    """Returns the folder for what is made once and kept: ``$XDG_CACHE_HOME/kvbridge``, else ``~/.cache/kvbridge``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvbridge"


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Returns this process's environment for a child that talks to loopback only, with `extra` on top.

    Proxy settings are left out, since clients in the child would send loopback requests to the proxy.
    """
    kept = {name: value for name, value in os.environ.items() if name.lower() not in _PROXY_VARIABLES}
    return {**kept, "NO_COLOR": "1", "PYTHONUNBUFFERED": "1", "DO_NOT_TRACK": "1", **extra}


class ServerProcess:
    """A server on a loopback port, started at once as a process tree of its own.

    The tree ends when `stop` or `kill` is called, when the server itself ends, and when the process that
    created this object ends in whatever way (see `guard.py`). Methods may be called from any thread.

    The tree has a folder of its own for temporary files, which is removed with it: vLLM leaves sockets and files there.

    Attributes:
        name: for messages and the log file.
        url: the server's address, without a trailing slash.
        port: its port.
        pid: the server's process id.
        log_path: the file that takes everything the tree prints.
    """

    start_error: type[StartError] = StartError

    def __init__(self, name: str, command: Sequence[str], *, port: int, env: Mapping[str, str], log_dir: Path) -> None:
        """Starts the server and does not wait for it.

        Args:
            name: for messages and the log file.
            command: the absolute path of a program, and its arguments.
            port: the loopback port that the command was told to listen on.
            env: the whole environment of the child.
            log_dir: made when missing; the log is ``NAME.log``, or ``NAME-2.log`` and so on if that exists.

        Raises:
            StartError: the program could not be started.
        """
        self.name = name
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.log_path = _new_log(log_dir, name)
        self._started = time.monotonic()
        self._scratch = tempfile.mkdtemp(prefix="kvbridge-")
        self._guard, self.pid = self._spawn(command, {**env, "TMPDIR": self._scratch})
        self._server_fd = _open_pidfd(self.pid)

    def _spawn(self, command: Sequence[str], env: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int]:
        read_end, write_end = os.pipe()
        guard_command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py"))]
        try:
            with self.log_path.open("wb") as log:
                guard = subprocess.Popen(  # noqa: S603  # no shell, and the program is the caller's choice
                    [*guard_command, str(os.getpid()), str(write_end), self._scratch, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=dict(env),
                    pass_fds=[write_end],
                    # Not a new session: Linux schedules sessions as groups, and an engine whose workers spin then
                    # keeps every thread of the other engines from running for seconds.
                    process_group=0,
                )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        try:
            reported = _readable(read_end, _GUARD_START_S) and os.read(read_end, 32)
        finally:
            os.close(read_end)
        if not reported:
            guard.kill()
            guard.wait()
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise self._failure("could not be started")
        return guard, int(reported)

    def alive(self) -> bool:
        """Tells whether the server process itself still runs; its children are not looked at."""
        fd = self._server_fd
        return fd is not None and not _readable(fd, 0)

    def healthy(self) -> bool:
        """Tells whether ``GET /health`` answers 200 within 2 s."""
        try:
            return client.request("GET", f"{self.url}/health", timeout=_HEALTH_TIMEOUT_S)[0] == _OK
        except (OSError, HTTPException):
            return False

    def wait_ready(self, timeout: float = 300, progress: Callable[[str], None] | None = None) -> None:
        """Waits until the server is healthy.

        Args:
            timeout: seconds.
            progress: called in this thread with a few words on what the server does, each time they change.

        Raises:
            StartError: the server ended (raised at once), or was not ready in time; a subclass per kind of
                server. The message holds the last lines of its log. The server is left as it is: call `stop`.
        """
        deadline = time.monotonic() + timeout
        shown = ""
        while not self.healthy():
            if not self.alive():
                status = self.exit_status()
                raise self._failure(f"ended while starting (exit status {status})")
            if time.monotonic() > deadline:
                raise self._failure(f"was not ready {time.monotonic() - self._started:.0f} s after its start")
            if progress and (phase := self.phase()) != shown:
                progress(shown := phase)
            time.sleep(_POLL_S)
        if progress:
            progress("ready")

    def phase(self) -> str:
        """Says in a few words what the starting server does."""
        return "starting"

    def exit_status(self) -> int | None:
        """Returns the server's exit status, 128 + signal number after a signal; None while it runs."""
        try:
            return self._guard.wait(0 if self.alive() else _KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            return None

    def processes(self) -> dict[int, str]:
        """Lists the living processes of the tree, the server first: process id to command line."""
        return descendants(self._guard.pid)

    def log_text(self) -> str:
        """Returns what the tree has printed so far."""
        return self.log_path.read_text(errors="replace")

    def stop(self, timeout: float = 20) -> None:
        """Ends the tree: politely first, by force after `timeout` seconds.

        May be called twice. Nothing of the tree is left when it returns.
        """
        self._end(signal.SIGTERM, timeout)

    def kill(self) -> None:
        """Sends SIGKILL to every process of the tree at once and waits until they are gone."""
        self._end(signal.SIGUSR1, _KILL_WAIT_S)

    def __enter__(self) -> Self:
        """Returns itself; the server was started by the constructor."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stops the server."""
        self.stop()

    def _end(self, request: signal.Signals, timeout: float) -> None:
        try:
            for number, patience in ((request, timeout), (signal.SIGUSR1, _KILL_WAIT_S)):
                self._guard.send_signal(number)  # does nothing when the guard has ended
                try:
                    self._guard.wait(patience)
                    break
                except subprocess.TimeoutExpired:
                    continue
        finally:  # also when Ctrl-C cuts the waits short
            if self._guard.poll() is None:
                for pid in (*self.processes(), self._guard.pid):
                    _kill(pid)
                shutil.rmtree(self._scratch, ignore_errors=True)
            if self._server_fd is not None:
                os.close(self._server_fd)
                self._server_fd = None

    def _failure(self, what: str) -> StartError:
        log = self.log_text()
        reason = _REASON.search(log)
        summary = f"{self.name} {what}" + (f": {reason.group(1)}" if reason else "")
        return self.start_error(summary, self.log_path, "\n".join(log.splitlines()[-_TAIL_LINES:]))


def _new_log(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path, number = folder / f"{name}.log", 1
    while path.exists():
        number += 1
        path = folder / f"{name}-{number}.log"
    path.touch()
    return path


def _readable(fd: int, seconds: float) -> bool:
    poll = select.poll()  # not select(): it takes no descriptor above 1023
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:  # it has ended already
        return None


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
