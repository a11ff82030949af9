"""Cards with a checksum: changed bytes can crash a library that is given them."""

from __future__ import annotations

import hashlib
from typing import TypeVar

import msgspec

from kvbridge.errors import ProtocolError

C = TypeVar("C", bound=msgspec.Struct)

CHECKSUM = 16
"""Bytes of a checksum."""


def seal(card: msgspec.Struct) -> bytes:
    """Return a card as bytes, its checksum before it."""
    body = msgspec.msgpack.encode(card)
    return _checksum(body) + body


def unseal(sealed: bytes, kind: type[C], backend: str) -> C:
    """Read a card.

    Args:
        sealed: What a peer sent.
        kind: Of the card.
        backend: Whose cards these are, for the message.

    Raises:
        ProtocolError: It is none, or was changed on its way.
    """
    checksum, body = sealed[:CHECKSUM], sealed[CHECKSUM:]
    if _checksum(body) != checksum:
        raise ProtocolError(f"the card is not one of the backend {backend!r}, or was changed on its way")
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(f"the card is not one of the backend {backend!r}: {error}") from error


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=CHECKSUM).digest()
