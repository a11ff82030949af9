"""`Card`: what a peer needs to reach an engine."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from kvbridge.cards import seal, unseal

Word = Annotated[str, Meta(max_length=320)]


class Card(msgspec.Struct, frozen=True):
    """An engine.

    Attributes:
        name: Of its incarnation, 32 hexadecimal digits.
        session: Where it is reached. Another incarnation may have it later.
        version: Version of the library, as far as it has to agree.
        protocol: How bytes travel.
        direction: Who moves.
        network: Kernel and network namespace: processes in one share the loopback device.
        greeting: Address of memory that holds the name: who reads it there has reached this incarnation.
    """

    name: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    session: Annotated[str, Meta(pattern=r"^[^\s]{1,255}:[0-9]{1,5}$")]
    version: Word
    protocol: Word
    direction: Word
    network: Word
    greeting: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]

    def encode(self) -> bytes:
        """Return it as bytes with a checksum."""
        return seal(self)


def decode_card(card: bytes) -> Card:
    """Read a card.

    Raises:
        ProtocolError: It is none, or was changed on its way.
    """
    return unseal(card, Card, "mooncake")
