"""A master and an owner of memory on loopback, for tests and for a first try: `Services`."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kvbridge.errors import BackendUnavailableError
from kvbridge_mooncake.library import missing

if TYPE_CHECKING:
    from collections.abc import Sequence

START = 20.0
"""Seconds that a service may take to start."""


class Services:
    """A master, and a process that owns the memory in which values are kept.

    Args:
        segment: Memory of the owner, as the library writes it, such as `"256MB"`.
    """

    def __init__(self, segment: str = "256MB") -> None:
        self._segment = segment
        self._logs = tempfile.TemporaryDirectory(prefix="kvbridge-mooncake-", ignore_cleanup_errors=True)
        self._master: subprocess.Popen[bytes] | None = None
        self._owner: subprocess.Popen[bytes] | None = None
        self._port = free_port()

    @property
    def master(self) -> str:
        """Address of the master."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start both, and wait until they serve.

        Raises:
            BackendUnavailableError: They do not start; the message has what they said.
        """
        why = missing()
        if why:
            raise BackendUnavailableError(why)
        self.start_master()
        options = ["--host=127.0.0.1", f"--port={free_port()}", "--protocol=tcp", "--metadata_server=P2PHANDSHAKE"]
        options += [f"--master_server_address={self.master}", f"--global_segment_size={self._segment}"]
        self._owner = self._run("cli_client", options)
        self._await(self._owner, "cli_client", int(options[1].partition("=")[2]))

    def start_master(self) -> None:
        """Start the master, anew where it was killed, at the same address."""
        options = ["--rpc_address=127.0.0.1", f"--rpc_port={self._port}", "--metrics_host=127.0.0.1"]
        self._master = self._run("cli", [*options, f"--metrics_port={free_port()}"])
        self._await(self._master, "cli", self._port)

    def kill_master(self) -> None:
        """`kill -9` the master."""
        if self._master is not None:
            self._master.kill()
            self._master.wait(START)

    def stop(self) -> None:
        """Stop both. Idempotent."""
        for one in (self._owner, self._master):
            if one is not None:
                one.kill()  # nothing of theirs is to stay
                one.wait(START)
        self._owner = self._master = None
        self._logs.cleanup()

    def _run(self, module: str, options: Sequence[str]) -> subprocess.Popen[bytes]:
        with Path(self._logs.name, f"{module}.log").open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - our own interpreter, the library's module
                [sys.executable, "-m", f"mooncake.{module}", *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _await(self, process: subprocess.Popen[bytes], module: str, port: int) -> None:
        deadline = time.monotonic() + START
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            time.sleep(0.05)
        said = Path(self._logs.name, f"{module}.log").read_text(errors="replace").strip().splitlines()[-5:]
        self.stop()
        raise BackendUnavailableError(f"Mooncake's {module} does not start on port {port}: {' | '.join(said)}")


def free_port() -> int:
    """Return a port on loopback that nobody uses now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        found: int = one.getsockname()[1]
        return found
