"""Options of the backend `mooncake`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


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
