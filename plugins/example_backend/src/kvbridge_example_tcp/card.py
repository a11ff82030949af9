"""`Card`: what a peer is told in the handshake, so that it can reach our server."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import Annotated

import msgspec
from kvbridge.errors import ProtocolError
from msgspec import Meta

ID_BYTES = 16


class Card(msgspec.Struct, frozen=True):
    """Where a server is, and the token that it asks for. The limits are checked when a card is decoded."""

    host: Annotated[str, Meta(max_length=64)]
    port: Annotated[int, Meta(ge=1, le=65535)]
    token: Annotated[bytes, Meta(min_length=ID_BYTES, max_length=ID_BYTES)]


def decode(card: bytes) -> Card:
    """Read a peer's card. It is a stranger's: anything may be in it.

    Raises:
        ProtocolError: It is no card of this backend.
    """
    try:
        return msgspec.msgpack.decode(card, type=Card)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"the peer's card is none of 'example_tcp': {error}") from error


def family(host: str) -> socket.AddressFamily:
    """Return the socket family of an IP address; a `ValueError` says that it is none."""
    return {4: socket.AF_INET, 6: socket.AF_INET6}[ip_address(host).version]
