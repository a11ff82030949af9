"""The `cpu` backend under test: a small pool, so that it can be filled."""

from __future__ import annotations

from typing import Any

from kvbridge.conformance.rig import Rig


class CpuRig(Rig):
    """Nothing but options."""

    def options(self) -> dict[str, Any]:
        """Return the options of each instance."""
        return {"capacity": "64MiB"}
