"""The card by which a peer's memory is opened comes from that peer: it is checked, and opening never blocks."""

from __future__ import annotations

import gc
import os
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from kvbridge.abc import Key
from kvbridge.errors import HandshakeError, KVBridgeError, PeerLostError, TransportError
from kvbridge_cpu import CpuBackend, CpuOptions
from kvbridge_cpu.segment import HEADER, Card, Segment, open_peer
from tests.fake_peer import FakePeer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.nodes import Node


@pytest.fixture
def segment() -> Iterator[Segment]:
    segment = Segment(8192)
    yield segment
    segment.close()


@pytest.fixture
def backend() -> Iterator[CpuBackend]:
    backend = CpuBackend(CpuOptions(capacity="1MiB"))
    yield backend
    backend.close()


def changed(card: Card, **fields: Any) -> Card:
    return msgspec.structs.replace(card, **fields)


def within(seconds: float, call: Any) -> Any:
    """Run a call in a daemon thread, so that one that blocks for ever fails the test instead of holding it up."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "the call blocks"
    return found[0]


def test_a_segment_is_seen_by_who_opens_its_card_and_cannot_be_written(segment: Segment) -> None:
    view = open_peer(segment.card)
    segment.memory[5] = 77
    assert view[5] == 77
    assert len(view) == 8192
    with pytest.raises(ValueError, match="read-only"):
        view[5] = 1


def test_a_segment_can_neither_shrink_nor_grow(segment: Segment) -> None:
    for nbytes in (0, HEADER, HEADER + 8191, HEADER + 8193):
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(segment.card.fd, nbytes)


def test_a_mapped_segment_outlives_its_owners_close(segment: Segment) -> None:
    view = open_peer(segment.card)
    segment.memory[:] = 9
    segment.close()
    assert (view == 9).all()
    segment.close()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"nonce": b"x" * 16}, PeerLostError),
        ({"nonce": b""}, PeerLostError),
        ({"nbytes": 4096}, PeerLostError),
        ({"nbytes": 1 << 60}, PeerLostError),
        ({"nbytes": -1}, PeerLostError),
        ({"pid": 0}, PeerLostError),
        ({"pid": -1}, PeerLostError),
        ({"pid": 1 << 62}, PeerLostError),
        ({"fd": -1}, PeerLostError),
        ({"fd": 9_999_999}, PeerLostError),
        ({"host": "another boot"}, TransportError),
    ],
)
def test_a_card_that_is_wrong_is_refused(segment: Segment, fields: dict[str, Any], error: type[KVBridgeError]) -> None:
    with pytest.raises(error):
        open_peer(changed(segment.card, **fields))


def test_a_card_of_a_closed_segment_is_a_lost_peer(segment: Segment) -> None:
    segment.close()
    with pytest.raises(PeerLostError):
        open_peer(segment.card)


@pytest.mark.parametrize("kind", ["pipe", "fifo", "directory", "socket", "null", "file"])
def test_a_card_that_names_another_kind_of_file_is_refused_and_does_not_block(
    segment: Segment, backend: CpuBackend, tmp_path: Any, kind: str
) -> None:
    opened: list[int] = []
    if kind == "pipe":
        read, write = os.pipe()
        os.close(write)
        opened.append(read)
    elif kind == "fifo":
        os.mkfifo(tmp_path / "fifo")
        opened.append(os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK))
    elif kind == "directory":
        opened.append(os.open(tmp_path, os.O_RDONLY))
    elif kind == "null":
        opened.append(os.open("/dev/null", os.O_RDONLY))
    elif kind == "socket":
        opened.append(socket.socket().detach())
    else:
        (tmp_path / "file").write_bytes(b"x" * segment.card.nbytes)
        opened.append(os.open(tmp_path / "file", os.O_RDONLY))
    try:
        card = changed(segment.card, fd=opened[0])
        if kind == "directory":
            card = changed(card, nbytes=tmp_path.stat().st_size)
        assert isinstance(within(3, lambda: open_peer(card)), KVBridgeError)
        assert isinstance(within(3, lambda: backend.accepts(msgspec.msgpack.encode(card))), str)
    finally:
        if kind == "fifo":
            opened.append(os.open(tmp_path / "fifo", os.O_RDWR))  # frees a thread that blocks
        for descriptor in opened:
            os.close(descriptor)


@pytest.mark.parametrize("card", [b"", b"\xff" * 100, b"\x80", msgspec.msgpack.encode([1, 2, 3])])
def test_what_is_no_card_is_refused_with_a_reason(backend: CpuBackend, card: bytes) -> None:
    assert isinstance(backend.accepts(card), str)


def test_two_backends_accept_each_others_cards(backend: CpuBackend) -> None:
    assert backend.accepts(backend.card()) is None


def test_a_card_shows_no_address_of_memory_and_fits_its_limit(backend: CpuBackend) -> None:
    assert len(backend.card()) < 1024


def descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


def test_opening_cards_leaves_no_descriptor_behind(segment: Segment) -> None:
    gc.collect()  # what earlier tests left to it is not counted
    before = descriptors()
    for _ in range(5):
        open_peer(segment.card)
        with pytest.raises(PeerLostError):
            open_peer(changed(segment.card, nonce=b"x" * 16))
    assert len(descriptors() - before) <= 1  # the listing's own


def test_a_producer_whose_card_is_wrong_is_refused_before_a_byte_moves(pair: tuple[Node, Node]) -> None:
    _, consumer = pair
    with FakePeer(pair[0], card=b"no card") as fake:
        claim = consumer.buffer.claim(Key("k", fake.address))
        fake.read(0.2)
        with pytest.raises(HandshakeError, match="card"):
            claim.wait(2)
    out = np.zeros(3)
    pair[0].buffer.insert(Key("k"), np.ones(3)).wait(2)
    consumer.buffer.drop_select(Key("k", *pair[0].where()), out).wait(2)
    assert out.all()
