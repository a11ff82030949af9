"""`Zygote`: a process that has imported everything, and forks peers. One costs hundredths of a second, not a second.

It never makes an agent, so that what it forks starts from nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from kvbridge.conformance import peers
from kvbridge.conformance.checks import RequirementError, eventually

END = 10.0

CHUNK = 1 << 20
"""Bytes of a chunk in what it forks: a transfer has several chunks although it is quick."""

VALID = 3.0
"""Seconds for which an offer stands in what it forks; what is known of one is kept for so long."""


class ForkedHost(peers.Host):
    """A forked interpreter that holds one node at a time."""

    def __init__(self, pipe: Connection[Any, Any], pid: int, log: IO[bytes]) -> None:  # that of `Host` would spawn
        self._pipe = pipe
        self._log = log
        self.pid = pid
        self.broken = False

    @property
    def alive(self) -> bool:
        """Whether it runs. The zygote does not wait for its children: the kernel forgets them at once."""
        return Path(f"/proc/{self.pid}").exists()

    def _last_words(self) -> str:
        return _last_words(self._log)

    def kill(self) -> None:
        self.broken = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.await_death()

    def await_death(self) -> None:
        self.broken = True
        eventually(lambda: not self.alive, END, lambda: f"the process {self.pid} did not die")

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        self._pipe.close()
        try:
            eventually(lambda: not self.alive, 0.1 if self.broken else END, lambda: "")
        except RequirementError:
            self.kill()

    def begin_make(self, backend: str, options: dict[str, Any], settings: dict[str, Any]) -> None:
        """Start to make a node, without waiting for it."""
        self._pipe.send(("make", (backend, options), settings))

    def made(self) -> None:
        """Wait until the node is made."""
        if not self._pipe.poll(peers.START):
            raise RequirementError(f"no node was made within {peers.START} s: {self._last_words()}")
        kind, answer, _, trace = self._pipe.recv()
        assert kind == "value", f"{answer}\n{trace}"


class Early(peers.RemoteNode):
    """A node whose process makes it while others work."""

    def __init__(self, host: ForkedHost, options: dict[str, Any], settings: dict[str, Any]) -> None:
        self.host = host
        host.begin_make("nixl", options, settings)

    def ready(self) -> Early:
        """Wait until it is made."""
        self.host.made()
        return self


class Zygote:
    """Starts the process, and asks it for children."""

    def __init__(self) -> None:
        self._asking = threading.Lock()
        self._socket, theirs = socket.socketpair()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - kept
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.nixl.zygote", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            cwd=Path(__file__).parents[2],
        )
        theirs.close()

    def fork(self) -> ForkedHost:
        """Return a new child."""
        mine, theirs = socket.socketpair()
        with self._asking:
            socket.send_fds(self._socket, [b"f"], [theirs.fileno()])
            answer = self._socket.recv(8)
        theirs.close()
        assert answer, f"the zygote has died: {_last_words(self._log)}"
        return ForkedHost(Connection(mine.detach()), struct.unpack("q", answer)[0], self._log)

    def close(self) -> None:
        """End it."""
        self._socket.close()
        self._process.wait(END)
        self._log.close()


def _last_words(log: IO[bytes]) -> str:
    said = os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace")
    return " | ".join(said.strip().splitlines()[-3:]) or "nothing was said"


def _warm() -> None:
    """Load what takes a while: the library, and its plugin with UCX, under the environment that it is to have."""
    from kvbridge.buffers import producer
    from kvbridge_nixl import transfer
    from kvbridge_nixl.library import DEFAULTS, has_rdma

    os.environ.update(DEFAULTS, **({} if has_rdma() else {"UCX_MODULES": "^ib"}))
    from nixl_cu12 import _bindings

    from tests.nixl import load

    plugins = Path(_bindings.__file__).parents[1] / ".nixl_cu12.mesonpy.libs" / "plugins"
    ctypes.CDLL(str(plugins / "libplugin_UCX.so"))
    transfer.CHUNK_BYTES = CHUNK
    producer.VALID = VALID
    peers.Node = load.LoadNode


def _main(control: socket.socket) -> None:
    _warm()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        command, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not command:
            return
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            peers.serve(Connection(descriptors[0]))
            return
        os.close(descriptors[0])
        control.send(struct.pack("q", child))


if __name__ == "__main__":
    _main(socket.socket(fileno=int(sys.argv[1])))
