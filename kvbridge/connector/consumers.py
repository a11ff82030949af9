"""Which decode engine a prefill request is for: routers with discovery write both engines into the request's id.

`___prefill_addr_{P}___decode_addr_{D}_{32 hex digits}`: P and D are what the engines registered as their `zmq_address`.
Those of kvbridge register the control addresses of their ranks, with commas between them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMED = re.compile(r"___decode_addr_([^_]{1,4096})_[0-9a-f]{32}")
_ADDRESS = re.compile(r"[A-Za-z0-9.\-\[\]:]{1,255}:[0-9]{1,5}")
PREFIX = "tcp://"


def consumers(request_id: str, ranks: int) -> tuple[str, ...]:
    """Return the control address of each rank of the decode engine; none where the id does not name so many."""
    named = _NAMED.search(request_id)
    found = named[1].split(",") if named is not None else []
    if len(found) != ranks or not all(_ADDRESS.fullmatch(one) for one in found):
        return ()
    return tuple(PREFIX + one for one in found)


def name(addresses: Sequence[str]) -> str:
    """Write an engine's control addresses as what it registers."""
    return ",".join(address.removeprefix(PREFIX) for address in addresses)
