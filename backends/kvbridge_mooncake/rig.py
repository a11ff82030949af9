"""Both backends under test."""

from __future__ import annotations

from typing import Any

from kvbridge.conformance.rig import Rig
from kvbridge_mooncake.services import Services


class MooncakeRig(Rig):
    """Engines that give up soon; nothing but the library is needed."""

    def options(self) -> dict[str, Any]:
        """Return the options of each instance."""
        return {"patience": 5}


class MooncakeStoreRig(Rig):
    """A master and an owner of memory."""

    def __init__(self) -> None:
        self._services = Services("2GB")

    def start(self) -> None:
        """Start them, on loopback and ephemeral ports."""
        self._services.start()

    def stop(self) -> None:
        """Stop them."""
        self._services.stop()

    def options(self) -> dict[str, Any]:
        """Return the options of each instance."""
        return {"master": self._services.master}
