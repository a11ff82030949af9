"""What the conformance suite cannot know: our own wire. Everything else is tested by the suite."""

from __future__ import annotations

import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from kvbridge.abc import Key, MoveState
from kvbridge.control.endpoint import Endpoint
from kvbridge.errors import BackendUnavailableError, CancelledError, LeaseExpiredError, PeerLostError, ProtocolError
from kvbridge.layers.faulty import Fault, Faults, FaultyTransport
from kvbridge.memory import Pages, Region

from kvbridge_example_tcp import (
    ExampleTcpBackend,
    ExampleTcpOptions,
    moves,
    server,
)
from kvbridge_example_tcp.card import Card
from kvbridge_example_tcp.moves import ExampleTcpHeld, ExampleTcpLanding
from kvbridge_example_tcp.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvbridge.abc import Transport

NBYTES = 8 << 20


def some_bytes(nbytes: int = NBYTES) -> Any:
    return np.random.default_rng(1).integers(0, 256, nbytes, dtype=np.uint8)


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextmanager
def engine(backend: Transport[Any]) -> Iterator[Any]:
    """What an engine's worker makes: a backend, an endpoint, a buffer."""
    endpoint = Endpoint(backend)
    buffer = backend.open_buffer(endpoint)
    try:
        yield endpoint, buffer
    finally:
        buffer.close()
        endpoint.close()
        backend.close()


@pytest.fixture
def port() -> Iterator[Server]:
    serving = Server("127.0.0.1", 0)
    yield serving
    serving.close()


def end(landing: ExampleTcpLanding) -> None:
    """Step a landing until it has ended."""
    deadline = time.monotonic() + 10
    while landing.step() is not MoveState.DONE:
        assert time.monotonic() < deadline


def test_a_value_goes_from_one_endpoint_to_another() -> None:
    with (
        engine(ExampleTcpBackend(ExampleTcpOptions())) as (there, producer),
        engine(ExampleTcpBackend(ExampleTcpOptions())) as (_, consumer),
    ):
        value, out = some_bytes(), np.zeros(NBYTES, dtype=np.uint8)
        inserted = producer.insert(Key("k"), value)
        consumer.drop_select(Key("k", there.address), out).wait(10)
        inserted.wait(10)
        assert np.array_equal(out, value)


def test_scattered_pages_land_in_their_blocks_and_skipped_ones_stay_at_home(port: Server) -> None:
    memories = [some_bytes(64 * 100), np.zeros(64 * 100, dtype=np.uint8)]
    source, target = (Region.over(memory, 64) for memory in memories)
    ids = np.array([7, 3, 99, 4, 50])
    held = ExampleTcpHeld(Pages.of([source, source], ids), port.values)
    end(ExampleTcpLanding(port.card, held.descriptor, Pages.of([target, target], [0, 1, 2]), 2))
    assert np.array_equal(target.rows()[:3], source.rows()[ids[2:]])
    assert not target.rows()[3:].any()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_a_value_without_extent_arrives(shape: tuple[int, ...]) -> None:
    backend = ExampleTcpBackend(ExampleTcpOptions())
    value, out = np.full(shape, 7.0), np.zeros(shape)
    held = backend.hold(value)
    link: Any = type("Link", (), {"peer": type("Peer", (), {"card": backend.card()})})
    landing = backend.land(link, None, held.descriptor, out, 0)  # type: ignore[arg-type]
    end(landing)  # type: ignore[arg-type]
    backend.close()
    assert np.array_equal(value, out)


@pytest.mark.parametrize("request_bytes", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(36), b"\xff" * 100_000], ids=len)
def test_bytes_of_a_stranger_are_dropped_and_everybody_else_is_served(
    port: Server, request_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PATIENCE", 0.2)
    with socket.create_connection(("127.0.0.1", port.card.port), timeout=10) as stranger:
        try:
            stranger.sendall(request_bytes)
            assert stranger.recv(1) == b""
        except ConnectionError:  # closed while we were still talking
            pass
        value, out = some_bytes(), np.zeros(NBYTES, dtype=np.uint8)
        held = ExampleTcpHeld(value, port.values)
        end(ExampleTcpLanding(port.card, held.descriptor, out, 0))
        assert np.array_equal(out, value)
    eventually(lambda: not port._peers)


def test_too_many_strangers_are_turned_away(port: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_PEERS", 2)
    made = [socket.create_connection(("127.0.0.1", port.card.port), timeout=2) for _ in range(3)]
    assert made[2].recv(1) == b""
    assert len(port._peers) == 2
    for sock in made:
        sock.close()
    eventually(lambda: not port._peers)


def test_who_has_another_token_gets_nothing(port: Server) -> None:
    held = ExampleTcpHeld(some_bytes(), port.values)
    stranger = Card(port.card.host, port.card.port, bytes(16))
    with pytest.raises(PeerLostError):
        end(ExampleTcpLanding(stranger, held.descriptor, np.zeros(NBYTES, dtype=np.uint8), 0))


def test_a_value_that_is_not_held_any_more_is_said_to_be_gone(port: Server) -> None:
    held = ExampleTcpHeld(some_bytes(), port.values)
    held.release()
    with pytest.raises(LeaseExpiredError):
        end(ExampleTcpLanding(port.card, held.descriptor, np.zeros(NBYTES, dtype=np.uint8), 0))


def test_a_descriptor_of_another_length_is_refused(port: Server) -> None:
    with pytest.raises(ProtocolError, match="has 3 bytes, expected 16"):
        ExampleTcpLanding(port.card, b"abc", np.zeros(1, dtype=np.uint8), 0)


def test_nothing_of_a_source_is_read_once_it_was_released(port: Server) -> None:
    value = np.ones(64 << 20, dtype=np.uint8)  # more than sockets can hold
    held, out = ExampleTcpHeld(value, port.values), np.zeros(64 << 20, dtype=np.uint8)
    landing = ExampleTcpLanding(port.card, held.descriptor, out, 0)
    while not out.any():
        landing.step()
    held.release()
    value[:] = 2
    with pytest.raises(LeaseExpiredError, match="too slow"):
        end(landing)
    assert not (out == 2).any()


def test_nothing_is_written_once_an_abort_has_ended(port: Server) -> None:
    out = np.zeros(64 << 20, dtype=np.uint8)
    held = ExampleTcpHeld(np.ones_like(out), port.values)
    landing = ExampleTcpLanding(port.card, held.descriptor, out, 0)
    while not out.any():
        landing.step()
    landing.abort()
    with pytest.raises(CancelledError):
        landing.step()
    out[:] = 3
    eventually(lambda: not port._peers)
    assert (out == 3).all()


def test_a_reader_that_stalls_is_let_go_after_its_value(port: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PATIENCE", 0.2)
    held = ExampleTcpHeld(np.ones(64 << 20, dtype=np.uint8), port.values)
    landing = ExampleTcpLanding(port.card, held.descriptor, np.zeros(64 << 20, dtype=np.uint8), 0)
    landing.step()
    eventually(lambda: bool(port._peers))
    time.sleep(1.0)
    assert port._peers, "its value is held: it may take its time"
    held.release()
    eventually(lambda: not port._peers)
    landing.abort()


@pytest.mark.parametrize("ends", ["closes", "was never there"])
def test_a_producer_that_is_gone_is_noticed(ends: str) -> None:
    serving = Server("127.0.0.1", 0)
    held = ExampleTcpHeld(np.ones(64 << 20, dtype=np.uint8), serving.values)
    if ends == "was never there":
        serving.close()
    landing = ExampleTcpLanding(serving.card, held.descriptor, np.zeros(64 << 20, dtype=np.uint8), 0)
    if ends == "closes":
        while landing.step() is MoveState.WAIT:
            time.sleep(0.001)
        serving.close()
    with pytest.raises(PeerLostError):
        end(landing)
    serving.close()


@pytest.mark.parametrize(
    "card",
    [
        b"",
        b"nonsense",
        bytes(100),
        msgspec.msgpack.encode(Card("localhost", 80, bytes(16))),
        msgspec.msgpack.encode(Card("0.0.0.0", 80, bytes(16))),  # noqa: S104
        msgspec.msgpack.encode(Card("224.0.0.1", 80, bytes(16))),
        msgspec.msgpack.encode(Card("10.0.0.1", 80, bytes(16))),
        msgspec.msgpack.encode(Card("127.0.0.1", 0, bytes(16))),
        msgspec.msgpack.encode(Card("127.0.0.1", 80, b"short")),
        msgspec.msgpack.encode(Card("1" * 100, 80, bytes(16))),
    ],
)
def test_a_card_that_leads_nowhere_is_refused_with_a_reason(card: bytes) -> None:
    backend = ExampleTcpBackend(ExampleTcpOptions())
    assert backend.accepts(backend.card()) is None
    assert backend.accepts(card)
    backend.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "localhost", "192.0.2.1", "", "127.0.0.1.1"])  # noqa: S104
def test_an_address_that_peers_cannot_use_is_refused_with_a_reason(host: str) -> None:
    options = ExampleTcpOptions(host=host)
    assert f"options.host is {host!r}" in ExampleTcpBackend.probe(options).reason
    with pytest.raises(BackendUnavailableError, match=r"options\.host"):
        ExampleTcpBackend(options)


def test_a_port_that_is_taken_is_said_to_be(port: Server) -> None:
    with pytest.raises(BackendUnavailableError, match=r"choose a free options\.port"):
        ExampleTcpBackend(ExampleTcpOptions(port=port.card.port))


def test_a_consumer_that_stops_in_mid_transfer_frees_its_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "SLICE_BYTES", 1 << 16)
    plan = Faults(Fault("pause", at=5))
    serving, stopping = (ExampleTcpBackend(ExampleTcpOptions()) for _ in range(2))
    with (
        engine(serving) as (there, producer),
        engine(FaultyTransport(stopping, land=plan)) as (here, consumer),
    ):
        inserted = producer.insert(Key("k"), np.ones(64 << 20, dtype=np.uint8))
        consumer.drop_select(Key("k", there.address), np.zeros(64 << 20, dtype=np.uint8))
        assert plan.reached.wait(10)
        assert serving._server._peers
        here.close()
        inserted.wait(10)
        eventually(lambda: not serving._server._peers)
