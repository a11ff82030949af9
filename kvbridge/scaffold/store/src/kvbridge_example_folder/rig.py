"""How the conformance suite sets this backend up."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

from kvbridge.conformance.rig import Rig


class ExampleFolderRig(Rig):
    """A folder for the time of the run. A database would be started here, on loopback and an ephemeral port."""

    def start(self) -> None:
        """Make the folder."""
        self._folder = tempfile.mkdtemp(prefix="kvbridge-")

    def stop(self) -> None:
        """Delete it."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def options(self) -> dict[str, Any]:
        """Return the options of each instance under test: all of them share the folder."""
        return {"folder": self._folder}
