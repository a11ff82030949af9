"""Options of the backends `mooncake` and `mooncake-store`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from kvbridge.config import parse_bytes


class MooncakeOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the transfer engine is used.

    Attributes:
        host: Address of this machine at which peers reach the engine. The library listens on every address whatever
            this says, and asks nobody who he is.
        protocol: `"tcp"` or `"rdma"`.
        device: RDMA devices with commas between them; empty for the library's own choice.
        direction: Who moves: `"read"`, the consumer reads the producer's memory, or `"write"`, the producer writes.
        patience: Seconds without progress after which a transfer has failed.
    """

    host: Annotated[str, Meta(min_length=1, max_length=255)] = "127.0.0.1"
    protocol: Literal["tcp", "rdma"] = "tcp"
    device: Annotated[str, Meta(max_length=1024)] = ""
    direction: Literal["read", "write"] = "read"
    patience: Annotated[int, Meta(ge=2, le=600)] = 10


class MooncakeStoreOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the distributed store is used.

    Attributes:
        master: Address of the master, `host:port`.
        metadata: The engines' metadata server; `"P2PHANDSHAKE"` for none.
        host: Address of this machine at which others reach the engine.
        protocol: `"tcp"` or `"rdma"`.
        device: RDMA devices with commas between them; empty for the library's own choice.
        segment: Memory that this process contributes to the store, as `"4GiB"`. What is in it is lost with the process.
        buffer: Memory of the client for small values.
        namespace: What comes before all keys: instances with the same one share their values.
    """

    master: Annotated[str, Meta(pattern=r"^[^\s]{1,255}:[0-9]{1,5}$")] = "127.0.0.1:50051"
    metadata: Annotated[str, Meta(pattern=r"^(P2PHANDSHAKE|https?://\S+|etcd://\S+)$")] = "P2PHANDSHAKE"
    host: Annotated[str, Meta(min_length=1, max_length=255)] = "127.0.0.1"
    protocol: Literal["tcp", "rdma"] = "tcp"
    device: Annotated[str, Meta(max_length=1024)] = ""
    segment: str | int = 0
    buffer: str | int = "16MiB"
    namespace: Annotated[str, Meta(pattern=r"^[!-~]{1,64}$")] = "kvbridge"

    def segment_bytes(self) -> int:
        """Return `segment` as a number."""
        return parse_bytes(self.segment, "options.segment")

    def buffer_bytes(self) -> int:
        """Return `buffer` as a number."""
        return parse_bytes(self.buffer, "options.buffer")
