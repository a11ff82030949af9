"""What a router hears of an engine, and when. With a real router: tests/plugins/test_other_backends.py."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import zmq

from kvbridge.config import DiscoveryConfig, connector_config
from kvbridge.errors import ConfigError
from kvbridge_vllm import discovery
from kvbridge_vllm.discovery import Discovery, role_of
from tests.plugins.engines import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def router() -> Iterator[tuple[str, zmq.Socket[bytes]]]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as listening:
        listening.linger = 0
        port = listening.bind_to_random_port("tcp://127.0.0.1")
        yield f"127.0.0.1:{port}", listening


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "PERIOD", 0.05)


def heard(router: zmq.Socket[bytes], within: float) -> Any:
    if not router.poll(int(within * 1000)):
        return None
    return msgspec.msgpack.decode(router.recv_multipart()[-1])


def test_an_engine_is_known_as_long_as_its_server_answers(router: tuple[str, zmq.Socket[bytes]]) -> None:
    address, listening = router
    with socket.create_server(("127.0.0.1", 0)) as server:
        http = f"127.0.0.1:{server.getsockname()[1]}"
    made = Discovery(DiscoveryConfig(router=address, http=http), "decode")
    try:
        assert heard(listening, 0.3) is None, "nobody answers there yet"
        host, port = http.split(":")
        with socket.create_server((host, int(port))):
            assert heard(listening, 5) == {"type": "D", "http_address": http, "zmq_address": http}
            made.set_control("10.0.0.1:5,10.0.0.1:6")
            assert eventually(lambda: heard(listening, 5)["zmq_address"] == "10.0.0.1:5,10.0.0.1:6")
            assert heard(listening, 5) is not None, "again and again: a router forgets who is silent"
    finally:
        made.close()
    while heard(listening, 0.3) is not None:
        pass
    assert not [thread.name for thread in threading.enumerate() if thread.name == "kvbridge-discovery"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_an_engine_cannot_come_to_be_connected_with_itself_at_the_routers_port(host: str) -> None:
    """The system may give a connection to a free port of this host that very port: from the same address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(5)
        port = listening.getsockname()[1]
        made = Discovery(DiscoveryConfig(router=f"{host}:{port}", http="127.0.0.1:1"), "decode")
        try:
            caller, (origin, _) = listening.accept()
            caller.close()
            assert origin == discovery.OTHER_LOOPBACK
        finally:
            made.close()


def test_a_router_that_is_away_costs_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        http = f"127.0.0.1:{server.getsockname()[1]}"
        made = Discovery(DiscoveryConfig(router="127.0.0.1:9", http=http), "prefill")
        made.close()
        made.close()


@pytest.mark.parametrize(
    ("produces", "consumes", "role", "expected"),
    [(True, False, "", "prefill"), (False, True, "", "decode"), (True, True, "decode", "decode")],
)
def test_the_role_is_what_kv_role_says(*, produces: bool, consumes: bool, role: Any, expected: str) -> None:
    transfer = SimpleNamespace(is_kv_producer=produces, is_kv_consumer=consumes)
    assert role_of(DiscoveryConfig(router="r:1", http="h:1", role=role), transfer) == expected


def test_an_engine_that_could_be_both_has_to_say_which() -> None:
    with pytest.raises(ConfigError, match="'prefill' or 'decode'"):
        role_of(DiscoveryConfig(router="r:1", http="h:1"), SimpleNamespace(is_kv_producer=True, is_kv_consumer=True))


@pytest.mark.parametrize("router", ["", "host", "http://host:1", "host:port", 7])
def test_an_address_that_is_none_is_refused(router: Any) -> None:
    with pytest.raises(ConfigError, match=r"discovery\.router"):
        connector_config({"backend": "cpu", "discovery": {"router": router, "http": "h:1"}})
