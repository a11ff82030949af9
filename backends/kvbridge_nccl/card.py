"""What peers tell each other: a card in the handshake, and where a destination wants to be sent to."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from kvbridge.cards import seal, unseal
from kvbridge.errors import ProtocolError

Word = Annotated[str, Meta(max_length=128)]
Name = Annotated[str, Meta(min_length=1, max_length=64)]
Address = Annotated[str, Meta(min_length=1, max_length=255)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Count = Annotated[int, Meta(ge=0, le=1 << 48)]

MAX_CHUNK = 1 << 30
"""Bytes of the largest chunk that a peer may ask for."""


class Card(msgspec.Struct, frozen=True):
    """An instance.

    Attributes:
        version: Version of torch, as far as it has to agree.
        host: Address at which it listens.
        network: Kernel and network namespace: processes in one share loopback.
    """

    version: Word
    host: Address
    network: Word

    def encode(self) -> bytes:
        """Return it as bytes."""
        return seal(self)


class Wanted(msgspec.Struct, frozen=True):
    """What a consumer wants to be sent, and over which group.

    Attributes:
        group: Name of the group. It is a secret: who knows it could join.
        host: Address of the group's store.
        port: Port of it.
        chunk: Bytes that are sent at one time.
        number: Of the transfer, in its group.
        skip: First blocks of every region that are not wanted.
        cuda: Whether it goes to GPU memory.
    """

    group: Name
    host: Address
    port: Port
    chunk: Annotated[int, Meta(ge=1, le=MAX_CHUNK)]
    number: Count
    skip: Count
    cuda: bool

    def encode(self) -> bytes:
        """Return it as bytes."""
        return msgspec.msgpack.encode(self)


def decode_card(card: bytes) -> Card:
    """Read a card.

    Raises:
        ProtocolError: It is none, or was changed on its way.
    """
    return unseal(card, Card, "nccl")


_decoder = msgspec.msgpack.Decoder(Wanted)


def decode_wanted(descriptor: bytes) -> Wanted:
    """Read what a consumer wants.

    Raises:
        ProtocolError: It makes no sense.
    """
    try:
        return _decoder.decode(descriptor)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(f"the consumer wants something unknown here: {error}") from error
