"""Installed distributions that are not: folders with metadata and a module, on a path entry of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

BACKEND = '''
"""A backend that opens nothing."""
import msgspec
from kvbridge.abc import Backend
from kvbridge.capabilities import Capabilities, Probe


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: int = 1


class MineBackend(Backend[Options]):
    name = "{name}"
    Options = Options

    @classmethod
    def probe(cls, options):
        {probe}
        return Probe(ok=True, reason="fine")

    @property
    def capabilities(self):
        return Capabilities(pipe=True, max_value_bytes=self.options.size)

    def open_buffer(self, endpoint, *, lease=60.0, timeout=30.0, patient=False):
        raise NotImplementedError

    def close(self):
        pass
'''


class Site:
    """A folder on `sys.path` with distributions in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(
        self,
        distribution: str,
        name: str,
        target: str,
        *,
        version: str = "1.0",
        metadata: str | None = None,
        group: str = "kvbridge.backends",
    ) -> None:
        """Write a distribution's metadata with one entry point."""
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n" if metadata is None else metadata
        if text:
            (info / "METADATA").write_text(text)
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {target}\n")

    def write(self, module: str, text: str) -> None:
        (self.folder / f"{module}.py").write_text(text)

    def backend(self, name: str, *, distribution: str = "", probe: str = "pass", before: str = "") -> None:
        """Install a working backend, with lines that run at its import or in its probe."""
        module = f"mod_{name}"
        self.write(module, before + BACKEND.format(name=name, probe=probe))
        self.install(distribution or f"dist-{name}", name, f"{module}:MineBackend")

    def run(self, code: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run code in a new interpreter that has the folder on its path."""
        env = {**os.environ, "PYTHONPATH": f"{self.folder}"}
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout, check=False, env=env
        )
