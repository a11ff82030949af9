"""`Card`: what a peer needs to reach an agent, checked before the library sees a byte of it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from kvbridge.cards import seal, unseal

Word = Annotated[str, Meta(max_length=128)]


class Card(msgspec.Struct, frozen=True):
    """An agent.

    Attributes:
        name: Its name, one for each incarnation.
        version: Version of the library, as far as it has to agree.
        plugin: Its plugin.
        direction: Who moves.
        host: Kernel and PID namespace: processes in one can read each other's memory.
        network: Kernel and network namespace: processes in one share the loopback device.
        metadata: How to connect to it, in the library's own form.
    """

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    version: Word
    plugin: Word
    direction: Word
    host: Word
    network: Word
    metadata: Annotated[bytes, Meta(max_length=32 << 10)]

    def encode(self) -> bytes:
        """Return it as bytes with a checksum: changed bytes can crash the library that loads them."""
        return seal(self)


def decode_card(card: bytes) -> Card:
    """Read a card.

    Raises:
        ProtocolError: It is none, or was changed on its way.
    """
    return unseal(card, Card, "nixl")
