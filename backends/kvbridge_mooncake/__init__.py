"""The backend `mooncake`: Mooncake's transfer engine between the pages of two engines."""

from __future__ import annotations

from kvbridge_mooncake.backend import MooncakeBackend
from kvbridge_mooncake.options import MooncakeOptions

__all__ = ["MooncakeBackend", "MooncakeOptions"]
