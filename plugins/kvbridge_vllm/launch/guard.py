"""Runs one command as the root of a process tree that never outlives the process that asked for it.

Started by `process.py` as ``python -I -S guard.py OWNER_PID REPORT_FD SCRATCH COMMAND...``; uses the standard library
only and imports nothing of kvbridge, so that it starts in a few hundredths of a second.

Why a process of its own, and not ``PR_SET_PDEATHSIG``: that signal fires when the *thread* that started the
child ends, it needs code between fork and exec, and it reaches the server only, not the engine core and the
tensor-parallel workers below it. The guard watches the owner through a pidfd, and being a child subreaper it
keeps every descendant in sight even when the server dies first.

Signals to the guard: SIGTERM or SIGINT stop the tree politely, SIGUSR1 kills it at once. The guard ends when
the tree has ended, with the exit status of the command (128 + signal number when a signal ended it), and removes the
folder SCRATCH before.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

TYPE_CHECKING = False  # spares the import of typing at run time
if TYPE_CHECKING:
    from collections.abc import Callable

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_POLITE_STOP_S = 30.0  # vLLM needs about 1 s; who calls stop() has a shorter deadline and then sends SIGUSR1
_LINGER_S = 2.0  # for descendants to leave by themselves after the command has ended
_TRACKER_S = 1.0  # for a multiprocessing resource tracker to unlink the shared memory of killed processes
_KILL_S = 5.0  # a killed process that is still there after this is stuck in the kernel
_STEP_S = 0.05


def descendants(root: int) -> dict[int, str]:
    """Lists the living processes below `root` or in its process group: process id to command line.

    The list is not one moment's: while processes die, the chain from one of them to `root` may be broken. The group
    is each process's own, and holds them all as long as none of them starts another.
    """
    parents: dict[int, int] = {}
    found = {root}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name stands in parentheses and may hold anything: count the fields from the last one.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] not in "ZX":
            parents[int(entry.name)] = int(fields[1])
            if int(fields[2]) == root:
                found.add(int(entry.name))
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: _command_line(pid) for pid in sorted(found - {root})}


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


class _Guard:
    """The watch over one command, from its start to the end of its last descendant."""

    def __init__(self, owner: int, command: list[str]) -> None:
        self._owner_fd = os.pidfd_open(owner)
        self._wake_fd, wake = os.pipe()
        os.set_blocking(self._wake_fd, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD):
            signal.signal(number, _do_nothing)  # a handler, unlike SIG_IGN, is not inherited by the command
        self.stopping = False
        self.killing = False
        self.status: int | None = None
        self.childless = False  # the only sure sign that nothing is left: orphans become children of a subreaper
        ignored_by_python = [signal.SIGPIPE, signal.SIGXFSZ]
        self.pid = os.posix_spawn(command[0], command, dict(os.environ), setsigdef=ignored_by_python)

    def watch(self) -> None:
        """Waits until the command has ended, the owner has gone, or a signal asks to stop."""
        while self.status is None and not self.stopping:
            self._step(None)

    def stop(self) -> None:
        """Ends the command politely, then whatever is left of the tree by force."""
        if self.status is None and not self.killing:
            _send(self.pid, signal.SIGTERM)
        self._wait(lambda: self.status is not None, _POLITE_STOP_S)
        self._wait(lambda: self.childless, _LINGER_S)
        self.killing = False  # the deadlines below are short, nothing cuts them shorter
        self._kill(spare="resource_tracker")
        self._wait(lambda: self.childless, _TRACKER_S)
        self._kill(spare="")

    def _kill(self, spare: str) -> None:
        deadline = time.monotonic() + _KILL_S
        while not self.childless and time.monotonic() < deadline:
            doomed = [pid for pid, line in descendants(os.getpid()).items() if not spare or spare not in line]
            if spare and not doomed:
                return
            for pid in doomed:
                _send(pid, signal.SIGKILL)
            self._step(_STEP_S)

    def _wait(self, done: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self.killing and time.monotonic() < deadline and not done():
            self._step(_STEP_S)

    def _step(self, seconds: float | None) -> None:
        watched = [self._wake_fd] if self.stopping else [self._wake_fd, self._owner_fd]
        ready, _, _ = select.select(watched, [], [], seconds)
        if self._owner_fd in ready:
            self.stopping = True
        if self._wake_fd in ready:
            received = os.read(self._wake_fd, 4096)
            self.killing |= signal.SIGUSR1 in received
            self.stopping |= self.killing or signal.SIGTERM in received or signal.SIGINT in received
        self._reap()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.childless = True
                return
            if pid == 0:
                return
            if pid == self.pid:
                code = os.waitstatus_to_exitcode(status)
                self.status = code if code >= 0 else 128 - code


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _do_nothing(*_: object) -> None:
    """Handles a signal that the wake-up pipe reports."""


def main(arguments: list[str]) -> int:
    """Runs the guard; see the module's docstring for the arguments."""
    owner, report_fd, scratch, command = int(arguments[0]), int(arguments[1]), arguments[2], arguments[3:]
    os.set_inheritable(report_fd, False)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        guard = _Guard(owner, command)
    except ProcessLookupError:  # the owner has gone already
        return 1
    if os.getppid() != owner:  # it went while the guard started; its number may be another process's by now
        guard.stopping = True
    try:
        os.write(report_fd, b"%d\n" % guard.pid)
        os.close(report_fd)
    except BrokenPipeError:
        guard.stopping = True
    guard.watch()
    guard.stop()
    shutil.rmtree(scratch, ignore_errors=True)
    return guard.status if guard.status is not None else 128 + signal.SIGKILL


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
