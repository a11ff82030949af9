"""The backends `mooncake`, Mooncake's transfer engine between two engines' pages, and `mooncake-store`, its store."""

from __future__ import annotations

from kvbridge_mooncake.backend import MooncakeBackend
from kvbridge_mooncake.options import MooncakeOptions, MooncakeStoreOptions
from kvbridge_mooncake.store import MooncakeStore

__all__ = ["MooncakeBackend", "MooncakeOptions", "MooncakeStore", "MooncakeStoreOptions"]
