"""The `nixl` backend under test: nothing but the library is needed."""

from __future__ import annotations

from typing import Any

from kvbridge.conformance.rig import Rig


class NixlRig(Rig):
    """Default options: processes of one host, by the fastest way that the machine permits."""

    def options(self) -> dict[str, Any]:
        """Return the options of each instance."""
        return {}
