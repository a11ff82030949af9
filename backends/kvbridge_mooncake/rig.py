"""The backend under test: nothing but the library is needed."""

from __future__ import annotations

from typing import Any

from kvbridge.conformance.rig import Rig


class MooncakeRig(Rig):
    """Engines that give up soon."""

    def options(self) -> dict[str, Any]:
        """Return the options of each instance."""
        return {"patience": 5}
