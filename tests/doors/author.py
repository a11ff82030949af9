"""An author's machine: an environment of its own, in which only he has installed his backend."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "plugins/example_backend"
TEMPLATES = ROOT / "kvbridge/scaffold"

CACHES = {"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"}


Done: TypeAlias = subprocess.CompletedProcess[str]


class Author:
    """A virtual environment that has everything of this one, kvbridge too, and what is installed into it.

    Args:
        folder: Where it is made.
    """

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        venv.create(folder / "env", with_pip=False)
        self._python = folder / "env/bin/python"
        where = self._ask("import sysconfig; print(sysconfig.get_path('purelib'))")
        ours = sysconfig.get_path("purelib")
        (Path(where) / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")

    def _ask(self, code: str) -> str:
        done = subprocess.run([self._python, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.strip()

    def install(self, project: Path) -> None:
        """Install a project as its author would, from what is here: nothing is downloaded."""
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", self._python]
        command = [*pip, "install", "-q", "--no-index", "--no-deps", "--no-build-isolation", project]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def run(self, *command: str | Path, cwd: Path | None = None, timeout: float = 120) -> Done:
        """Run a module with arguments, in a folder; an empty one if none is named."""
        env = {**os.environ, "HOME": str(self.home), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200", "NO_COLOR": "1"}
        return subprocess.run(
            [self._python, "-m", *command],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            cwd=self.home if cwd is None else cwd,
            env=env,
        )

    def kvbridge(self, *arguments: str | Path, timeout: float = 120) -> Done:
        """Run the command `kvbridge`."""
        return self.run("kvbridge", *arguments, timeout=timeout)

    def pytest(self, *arguments: str, cwd: Path | None = None) -> Done:
        """Run pytest."""
        return self.run("pytest", "-p", "no:cacheprovider", *arguments, cwd=cwd)


def texts(folder: Path) -> dict[str, str]:
    """The content of every file below a folder by its path, but for the caches of tools."""
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and not CACHES.intersection(path.parts)
    }
