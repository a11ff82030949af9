"""`NcclOptions`: what a user may set."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from kvbridge.config import parse_bytes


class NcclOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the backend `nccl`.

    Attributes:
        host: Address of this machine at which peers reach the groups' stores, and on which gloo listens. Whoever
            reaches it may disturb transfers: a private network, or the default, loopback.
        chunk: Bytes that are sent at one time, such as `"1MiB"`; the receiver's counts. Each side has two or three
            buffers of that size for each peer that it exchanges values with.
        connect_timeout: Seconds that two sides may take to make a group.
        stall_timeout: Seconds without a byte after which a peer is given up, and its group ended.
        idle: Seconds without a transfer after which a group is ended; the next transfer makes another one.
    """

    host: Annotated[str, Meta(min_length=1, max_length=255)] = "127.0.0.1"
    chunk: str | int = "4MiB"
    connect_timeout: Annotated[float, Meta(ge=0.1, le=600)] = 5.0
    stall_timeout: Annotated[float, Meta(ge=0.1, le=600)] = 5.0
    idle: Annotated[float, Meta(ge=0.1, le=86400)] = 300.0

    def chunk_bytes(self) -> int:
        """Return `chunk` as a number.

        Raises:
            ConfigError: It is none.
        """
        return parse_bytes(self.chunk, "options.chunk")
