"""`Card`: what a peer needs to reach an agent, checked before the library sees a byte of it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from kvbridge.errors import ProtocolError

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
        body = msgspec.msgpack.encode(self)
        return _checksum(body) + body


_decoder = msgspec.msgpack.Decoder(Card)


def decode_card(card: bytes) -> Card:
    """Read a card.

    Raises:
        ProtocolError: It is none, or was changed on its way.
    """
    checksum, body = card[:16], card[16:]
    if _checksum(body) != checksum:
        raise ProtocolError("the card is not one of the backend 'nixl', or was changed on its way")
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(f"the card is not one of the backend 'nixl': {error}") from error


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()


def host_identity() -> tuple[str, str]:
    """Name this kernel and PID namespace, and this kernel and network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    pid, net = (Path(f"/proc/self/ns/{kind}").readlink() for kind in ("pid", "net"))
    return f"{boot}/{pid}", f"{boot}/{net}"
