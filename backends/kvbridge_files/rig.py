"""The backend `files` under test: a folder for the time of the run, and a small capacity, so that it can be filled."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

from kvbridge.conformance.rig import Rig


class FilesRig(Rig):
    """A folder, and nothing else."""

    def start(self) -> None:
        """Make the folder."""
        self._folder = tempfile.mkdtemp(prefix="kvbridge-files-")

    def stop(self) -> None:
        """Delete it."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def options(self) -> dict[str, Any]:
        """Return the options of each instance: all of them share the folder."""
        return {"folder": self._folder, "capacity": "512MiB"}
