"""Backend `nixl`: NVIDIA's NIXL, with UCX under it. Bytes go straight from one engine's pages into the other's."""

from kvbridge_nixl.backend import NixlBackend
from kvbridge_nixl.options import NixlOptions

__all__ = ["NixlBackend", "NixlOptions"]
