"""The backend under test: small chunks, so that a value is many, and peers that are given up soon."""

from __future__ import annotations

from typing import Any

from kvbridge.conformance.rig import Rig


class NcclRig(Rig):
    """Nothing but torch is needed."""

    def options(self) -> dict[str, Any]:
        """Return the options of each instance."""
        return {"chunk": "256KiB"}
