"""Cards come from peers: whatever is in them ends as an error of kvbridge, before the library sees it."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvbridge.errors import KVBridgeError, ProtocolError
from kvbridge.machine import host_identity
from kvbridge_nixl import NixlBackend, NixlOptions
from kvbridge_nixl.card import Card, decode_card

CARD = Card("a" * 32, "1.5", "UCX", "write", "boot/pid", "boot/net", b"nixlSerDes|whatever")
WORDS = st.text(max_size=200)
ODD = WORDS | st.binary(max_size=50) | st.integers(0, (1 << 64) - 1)


def test_a_card_comes_as_it_was() -> None:
    assert decode_card(CARD.encode()) == CARD


@given(st.binary(max_size=300))
@example(b"")
@example(b"\x00" * 16)
def test_noise_is_no_card(noise: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_card(noise)


@given(st.data())
def test_a_card_that_was_changed_or_cut_is_refused(data: st.DataObject) -> None:
    card = bytearray(CARD.encode())
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(card) - 1))
        card[at] ^= data.draw(st.integers(1, 255))
    else:
        del card[data.draw(st.integers(0, len(card) - 1)) :]
    with pytest.raises(ProtocolError):
        decode_card(bytes(card))


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(Card.__struct_fields__, ODD)))
def test_fields_of_a_card_are_checked(fields: dict[str, Any]) -> None:
    body = msgspec.msgpack.encode(msgspec.to_builtins(CARD, builtin_types=(bytes,)) | fields)
    checksum = hashlib.blake2b(body, digest_size=16).digest()
    try:
        found = decode_card(checksum + body)
    except KVBridgeError:
        return
    assert isinstance(found.metadata, bytes)
    assert 0 < len(found.name) <= 64
    assert all(len(word) <= 128 for word in (found.version, found.plugin, found.direction, found.host, found.network))


@pytest.fixture(scope="module")
def backend() -> Any:
    made = NixlBackend(NixlOptions())
    yield made
    made.close()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"version": "1.4"}, ["version", "1.4", "1.5"]),
        ({"plugin": "Mooncake"}, ["plugin", "Mooncake", "UCX"]),
        ({"direction": "read"}, ["direction", "read", "write"]),
        ({"network": "elsewhere"}, ["another host", "net_devices", "'lo'"]),
    ],
)
def test_a_peer_that_cannot_be_worked_with_is_told_why(
    backend: NixlBackend, change: dict[str, str], expected: list[str]
) -> None:
    mine = decode_card(backend.card())
    assert backend.accepts(mine.encode()) is None
    said = backend.accepts(msgspec.structs.replace(mine, **change).encode())
    assert said is not None
    assert [word for word in expected if word not in said] == []


def test_a_reader_on_another_host_is_refused(backend: NixlBackend) -> None:
    reading = NixlBackend(NixlOptions(direction="read"))
    mine = decode_card(reading.card())
    said = reading.accepts(msgspec.structs.replace(mine, host="elsewhere").encode())
    reading.close()
    assert said is not None
    assert "'read'" in said
    assert "'write'" in said
    assert (mine.host, mine.network) == host_identity()


@given(st.binary(max_size=200))
def test_nonsense_for_a_card_is_refused_in_words(backend: NixlBackend, noise: bytes) -> None:
    assert "'nixl'" in str(backend.accepts(noise))
