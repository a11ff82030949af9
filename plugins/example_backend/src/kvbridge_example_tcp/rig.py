"""How the conformance suite sets this backend up."""

from __future__ import annotations

from typing import Any

from kvbridge.conformance.rig import Rig


class ExampleTcpRig(Rig):
    """Loopback and ephemeral ports: nothing has to be started, and two runs at one time do not meet."""

    def options(self) -> dict[str, Any]:
        """Return the options of one instance under test."""
        return {"host": "127.0.0.1", "port": 0}
