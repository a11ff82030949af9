"""The sockets of dialled peers: none is left behind, and where there is no room for one that is said."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from kvbridge.abc import Key
from kvbridge.control import sockets
from kvbridge.errors import CapacityError, ConfigError, KVBridgeError
from tests.nodes import MIB, Node, eventually

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_peer_that_is_gone_leaves_no_socket(node: Callable[..., Node]) -> None:
    consumer, producer = node(), node()
    producer.insert("k", 1, MIB)
    gc.disable()  # which would close them, some time
    try:
        consumer.take(Key("k", *producer.where()), 1, MIB)
        outbound = set(consumer.endpoint._sockets._outbound.values())
        assert len(outbound) == 1
        producer.close()
        eventually(lambda: not consumer.endpoint.links(), 5, lambda: "the link is still up")
        for one in outbound:
            eventually(lambda: one.monitor.closed, 5, lambda: "the monitor's socket is open")  # noqa: B023 - at once
    finally:
        gc.enable()


@pytest.mark.parametrize("room", [1, 2, 3])
def test_without_room_for_its_sockets_a_peer_cannot_be_asked(
    node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """An endpoint has one socket itself; a peer takes three."""
    producer = node()
    producer.insert("k", 1, MIB)
    monkeypatch.setattr(sockets, "MAX_SOCKETS", room)
    consumer = node()
    with pytest.raises(CapacityError, match="limit of open files"):
        consumer.take(Key("k", *producer.where()), 1, MIB)
    assert not consumer.endpoint._sockets._outbound
    assert "internal_errors" not in consumer.counters()


def test_an_address_that_is_none_leaves_no_socket(node: Callable[..., Node]) -> None:
    consumer = node()
    for address in ("tcp://nobody.invalid:1", "tcp://:::1", "tcp://127.0.0.1:99999"):
        with pytest.raises(KVBridgeError):
            consumer.take(Key("k", address, 1), 1, MIB)
    assert not consumer.endpoint._sockets._outbound


def test_a_name_is_not_looked_up(pair: tuple[Node, Node]) -> None:
    """ZeroMQ would do that on the thread that all links share."""
    for address in ("tcp://localhost:5000", "tcp://prefill.example:5000", "tcp://[::1%:5000"):
        with pytest.raises(ConfigError, match="expected an IP address"):
            pair[0].endpoint.dial(address).wait(5)
