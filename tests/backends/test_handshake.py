"""Peers whose KV means different things refuse each other before a byte moves, and say in what they differ."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from kvbridge.abc import Key
from kvbridge.control import handshake, outbound
from kvbridge.control.endpoint import Endpoint
from kvbridge.errors import ConfigError, HandshakeError, PeerLostError, StaleGenerationError
from kvbridge_cpu import CpuBackend, CpuOptions
from tests.nodes import MIB, Node

if TYPE_CHECKING:
    from collections.abc import Callable

SOON = 2.0
"""Seconds, generous: a refusal is an answer, it does not run into the handshake's deadline of 4 s."""


def refused(consumer: Node, producer: Node) -> HandshakeError:
    start = time.monotonic()
    with pytest.raises(HandshakeError) as found:
        consumer.take(Key("k", *producer.where()), 1, MIB)
    assert time.monotonic() - start < SOON
    assert (consumer.used(), producer.stats().get("taken", 0)) == (0, 0)
    return found.value


def test_every_field_that_differs_is_named_with_both_values(node: Callable[..., Node]) -> None:
    producer = node(fingerprint={"dtype": "bfloat16", "block_size": "16", "model": "m", "only here": "1"})
    consumer = node(fingerprint={"dtype": "float16", "block_size": "32", "model": "m", "only there": "2"})
    producer.insert("k", 1, MIB)
    error = refused(consumer, producer)
    assert set(error.differences) == {
        ("block_size", "32", "16"),
        ("dtype", "float16", "bfloat16"),
        ("only here", "(absent)", "1"),
        ("only there", "2", "(absent)"),
    }
    for text in ("block_size: 32 here, 16 at the peer", "dtype: float16 here, bfloat16 at the peer"):
        assert text in str(error)
    assert "model" not in str(error).replace("tcp", "")
    assert producer.counters()["refused_handshakes"] == 1
    assert producer.stats()["entries"] == 1


def test_very_different_peers_still_get_the_answer(node: Callable[..., Node]) -> None:
    """More fields and longer values than a careless limit on the answer would let through."""
    producer = node(fingerprint={f"a{n}": "x" * 2000 for n in range(120)})
    consumer = node(fingerprint={f"b{n}": "y" * 2000 for n in range(120)})
    assert refused(consumer, producer).differences


def test_a_fingerprint_beyond_the_limits_is_refused_where_it_is_made(node: Callable[..., Node]) -> None:
    for fingerprint in ({f"{n}": "" for n in range(200)}, {"x" * 65: ""}, {"x": "y" * 5000}):
        with pytest.raises(ConfigError):
            node(fingerprint=fingerprint)


def test_peers_of_two_backends_refuse_each_other(node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch) -> None:
    class OtherBackend(CpuBackend):
        name: ClassVar[str] = "other"

    producer = node()
    backend = OtherBackend(CpuOptions(capacity="1MiB"))
    endpoint = Endpoint(backend)
    with pytest.raises(HandshakeError, match="backend: other here, cpu at the peer"):
        endpoint.dial(producer.endpoint.address).wait(5)
    endpoint.close()
    backend.close()


def test_peers_of_two_protocols_refuse_each_other_and_name_both(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbound, "PROTOCOL", 99)
    error = refused(pair[1], pair[0])
    assert error.differences == (("protocol", "99", f"{handshake.PROTOCOL}"),)
    assert "99" in str(error)


@pytest.mark.parametrize("side", ["producer", "consumer"])
def test_a_backend_that_cannot_reach_the_peer_says_why_on_either_side(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    refusing = pair[side == "consumer"]
    monkeypatch.setattr(refusing.backend, "accepts", lambda card: "the cable is cut")
    assert "the cable is cut" in str(refused(pair[1], pair[0]))
    monkeypatch.undo()
    pair[0].insert("k", 1, MIB)
    pair[1].take(Key("k", *pair[0].where()), 1, MIB)  # a refusal is not for ever


@pytest.mark.parametrize("side", ["producer", "consumer"])
def test_a_backend_that_fails_on_the_peers_card_ends_the_handshake_at_once(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    def fail(card: bytes) -> Any:
        raise RuntimeError("the vendor's code is 42")

    monkeypatch.setattr(pair[side == "consumer"].backend, "accepts", fail)
    assert "code is 42" in str(refused(pair[1], pair[0]))


def test_another_generation_than_the_one_asked_for_is_stale(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    address, generation = producer.where()
    with pytest.raises(StaleGenerationError, match=re.escape(address)):
        consumer.dial(address, generation + 1)
    assert consumer.dial(address, generation).peer.generation == generation
    assert consumer.dial(address).peer.generation == generation


def test_a_link_is_used_again(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    address, generation = producer.where()
    first = consumer.dial(address)
    assert consumer.dial(address) is first
    assert consumer.dial(address, generation) is first


@pytest.mark.parametrize(
    "address", ["", "x", "tcp://", "tcp://127.0.0.1", "tcp://127.0.0.1:99999", "ipc://\0", "a" * 999]
)
def test_what_is_no_address_is_a_configuration_error(pair: tuple[Node, Node], address: str) -> None:
    with pytest.raises(ConfigError):
        pair[1].dial(address)


def test_an_address_where_nobody_listens_is_a_lost_peer_at_once(pair: tuple[Node, Node]) -> None:
    start = time.monotonic()
    with pytest.raises(PeerLostError, match="nobody listens"):
        pair[1].dial("tcp://127.0.0.1:1")
    assert time.monotonic() - start < SOON


def test_a_port_that_is_taken_is_an_error_that_names_it(node: Callable[..., Node]) -> None:
    taken = int(node().endpoint.address.rpartition(":")[2])
    with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{taken}.*`port`"):
        Node(port=taken)
    with pytest.raises(ConfigError, match="`host`"):
        Node(host="203.0.113.7")


def test_an_endpoint_is_bound_to_loopback_and_advertises_where_it_is_bound(node: Callable[..., Node]) -> None:
    assert re.fullmatch(r"tcp://127\.0\.0\.1:[1-9]\d+", node().endpoint.address)
