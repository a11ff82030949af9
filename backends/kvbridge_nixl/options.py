"""`NixlOptions`: what a user may set."""

from __future__ import annotations

from typing import Literal

import msgspec

LOOPBACK = "lo"


class NixlOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the backend `nixl`. Both engines need the same `plugin` and `direction`.

    Attributes:
        direction: `"write"`: the producer writes into the consumer's pages. `"read"`: the consumer reads out of the
            producer's; only between processes of one host, or over RDMA: over TCP the library can take the process
            down that is read from when its reader is killed.
        plugin: NIXL's plugin, such as `"UCX"`.
        parameters: Parameters of the plugin, as NIXL names them.
        transports: UCX_TLS for this process, such as `"tcp"` or `"cma,tcp,self"`; empty for UCX's own choice, or what
            the environment says.
        net_devices: UCX_NET_DEVICES for this process, such as `"mlx5_0:1"` or `"eth0"`; `"all"` for UCX's own choice.
            By default loopback only: UCX listens on every device that it uses, and asks nobody who he is.
    """

    direction: Literal["write", "read"] = "write"
    plugin: str = "UCX"
    parameters: dict[str, str] = {}
    transports: str = ""
    net_devices: str = LOOPBACK
