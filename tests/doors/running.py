"""Commands as a user gives them: real ones, in a child process, with a deadline."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.doors import odd_backends
from tests.plugin_site import Site

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BIN = Path(sys.executable).parent

DEADLINE = 200.0
"""Seconds for one command, on a machine that is busy."""


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return self.out + self.err

    def line(self, start: str) -> str:
        """The one line of the output that starts so."""
        found = [line for line in self.out.splitlines() if line.startswith(start)]
        assert len(found) == 1, f"{len(found)} lines start with {start!r}:\n{self.said}"
        return found[0]


class Doors:
    """The commands, with the odd backend installed, from a folder of their own."""

    def __init__(self, folder: Path, bytecode: Path) -> None:
        self.bytecode = bytecode
        self.folder = folder / "work"
        self.folder.mkdir()
        self.site = Site(folder / "site")
        self.site.folder.mkdir()
        self.site.write("odd", Path(odd_backends.__file__).read_text(encoding="utf-8"))
        self.site.install("odd-backend", "odd", "odd:OddBackend", version="2.1")
        self.site.install("odd-rig", "odd", "odd:OddRig", group="kvbridge.rigs")

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON"))}
        ours = {"PYTHONPATH": str(self.site.folder), "PYTHONPYCACHEPREFIX": str(self.bytecode), "NO_COLOR": "1"}
        return {**kept, **ours, **more}

    def start(self, command: list[str], folder: Path | None = None, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=folder or self.folder,
            env=self.environment(**environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def run(self, command: list[str], folder: Path | None = None, **environment: str) -> Done:
        process = self.start(command, folder, **environment)
        try:
            out, err = process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            out, err = process.communicate()
            raise AssertionError(f"{command} did not end within {DEADLINE} s:\n{out}{err}") from None
        return Done(process.returncode, out, err)

    @staticmethod
    def all(runs: Mapping[str, Callable[[], Done]]) -> dict[str, Done]:
        """Run several, two at a time."""
        with ThreadPoolExecutor(2) as pool:
            return dict(zip(runs, pool.map(lambda run: run(), runs.values()), strict=True))

    def kvbridge(self, *arguments: str, folder: Path | None = None, **environment: str) -> Done:
        return self.run(suite(*arguments), folder, **environment)

    def pytest(self, *arguments: str, folder: Path | None = None, **environment: str) -> Done:
        return self.run([str(BIN / "pytest"), *arguments], folder, **environment)


def suite(*arguments: str) -> list[str]:
    return [str(BIN / "kvbridge"), "conformance", *arguments]


def acts(options: Mapping[str, Any] | None = None, /, **more: Any) -> str:
    """Options of the odd backend: what it does where."""
    return json.dumps({"acts": options or {}, **more})
