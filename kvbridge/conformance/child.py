"""`Child`: one process that runs requirements, and what it writes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from kvbridge.conformance.recorder import Entry

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvbridge.conformance.configuration import SuiteConfig
    from kvbridge.conformance.requirement import Requirement

OUTPUT = 20_000
"""Characters of what it printed that are kept: the stacks of a crash are long."""


class Child:
    """One process that runs requirements, and what it writes.

    Args:
        config: What to do.
        requirements: Which ones.
        folder: Where its files may lie.
        stacks_after: Seconds in one test after which it prints its stacks, even if its interpreter is held.

    Attributes:
        hung: Whether it was found to do nothing; set by who watches it.
    """

    def __init__(
        self, config: SuiteConfig, requirements: Sequence[Requirement], folder: Path, *, stacks_after: float
    ) -> None:
        self.hung = False
        self._journal = folder / "journal"
        self._journal.write_bytes(b"")
        self._log = folder / "output"
        self._offset = 0
        settings = folder / "pytest.ini"
        settings.write_text(f"[pytest]\nfaulthandler_timeout = {stacks_after}\n", encoding="ascii")
        temporary = folder / "tmp"
        temporary.mkdir()
        where = ["-c", str(settings), "--rootdir", str(folder)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [*_PYTEST, *where, *_options(config, requirements, self._journal)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **_environment(temporary)},
                process_group=0,
            )

    @property
    def code(self) -> int:
        """Its exit code, once it has ended; -9 if it was killed."""
        return self._process.returncode

    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def read(self) -> list[Entry]:
        """Return what was written since the last look."""
        with self._journal.open("rb") as file:
            file.seek(self._offset)
            found = file.read()
        whole = found[: found.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [msgspec.json.decode(line, type=Entry) for line in whole.splitlines()]

    def output(self) -> str:
        """Return the end of what it printed."""
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - OUTPUT))
            return file.read().decode(errors="replace")

    def kill(self) -> None:
        """End it, its peers and whatever its rig started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        finally:
            self._process.wait()


_PYTEST = [
    *(sys.executable, "-m", "pytest"),
    *("-p", "kvbridge.pytest_plugin", "-p", "no:cacheprovider", "--noconftest"),  # no plugin but ours, wherever it runs
    *("-q", "--no-header", "--tb=short", "--capture=no"),  # not captured: a crash must not take its last words along
]


def _environment(temporary: Path) -> dict[str, str]:
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTEST_PLUGINS": ""}
    tidy = {"TMPDIR": str(temporary), "HYPOTHESIS_STORAGE_DIRECTORY": str(temporary)}  # after a crash too
    return {**alone, **tidy}


def _options(config: SuiteConfig, requirements: Sequence[Requirement], journal: Path) -> list[str]:
    pairs: list[tuple[str, Any]] = [
        ("backend", config.backend),
        ("options", msgspec.json.encode(dict(config.options)).decode()),
        ("peers", config.peers),
        ("timeout", config.timeout),
        ("journal", journal),
        *([("waivers", config.waivers.absolute())] if config.waivers is not None else []),
        *[("select", requirement.id) for requirement in requirements],
    ]
    return [
        *(f"--kvbridge-{name}={value}" for name, value in pairs),
        *(["--kvbridge-strict"] if config.strict else []),
        *([f"--maxfail={config.maxfail}"] if config.maxfail else []),
    ]
