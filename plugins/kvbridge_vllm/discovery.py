"""`Discovery`: tells vllm-router that this engine is there, as long as its HTTP server answers.

The router (`--vllm-discovery-address`) takes a message every few seconds from whoever wants requests, and forgets who
is silent for five. It never answers.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from kvbridge.errors import ConfigError
from kvbridge.threads import Loop

if TYPE_CHECKING:
    from kvbridge.config import DiscoveryConfig

PERIOD = 1.5
"""Seconds between two messages."""

OTHER_LOOPBACK = "127.0.0.2"
"""Where connections to routers on the loopback network come from."""

KINDS = {"prefill": "P", "decode": "D"}


def role_of(config: DiscoveryConfig, transfer: Any) -> str:
    """Return what the engine tells the router to be.

    Raises:
        ConfigError: It could be both.
    """
    if config.role:
        return config.role
    if transfer.is_kv_producer and transfer.is_kv_consumer:
        raise ConfigError(
            "kv_connector_extra_config.discovery.role: missing; with kv_role 'kv_both' say which one the router is to "
            "take this engine for, 'prefill' or 'decode'"
        )
    return "prefill" if transfer.is_kv_producer else "decode"


class Discovery:
    """Sends the messages, from a thread of its own.

    Args:
        config: Where the router listens, and where this engine does.
        role: `"prefill"` or `"decode"`.
    """

    def __init__(self, config: DiscoveryConfig, role: str) -> None:
        host, _, port = config.http.rpartition(":")
        self._http = (host.strip("[]"), int(port))
        self._http_address, self._kind = config.http, KINDS[role]
        self._message = b""
        self.set_control(config.http)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.sndhwm = 1  # a router that was away is not told of the past
        self._socket.reconnect_ivl = int(1000 * PERIOD)
        self._socket.connect(_endpoint(config.router))
        self._woken = threading.Event()
        self._loop = Loop("discovery", self._step, self._woken.set, self._ended)

    def set_control(self, address: str) -> None:
        """Set what the router writes into the ids of requests that are for this engine."""
        self._message = msgspec.msgpack.encode(
            {"type": self._kind, "http_address": self._http_address, "zmq_address": address}
        )

    def close(self) -> None:
        """Say nothing more. Idempotent, bounded."""
        self._loop.stop(2 * PERIOD)

    def _step(self) -> None:
        if self._answers():
            with contextlib.suppress(zmq.Again):  # the router is away
                self._socket.send(self._message, zmq.NOBLOCK)
        self._woken.wait(PERIOD)

    def _answers(self) -> bool:
        try:
            socket.create_connection(self._http, timeout=PERIOD).close()
        except OSError:
            return False
        return True

    def _ended(self) -> None:
        self._socket.close()
        self._context.term()


def _endpoint(router: str) -> str:
    """Return what to connect to.

    A connection to a port of one's own host, at which nobody listens yet, can come to be a connection of a socket with
    itself, if the system happens to give it that very port; then the router cannot have the port. From another address
    of the loopback network it cannot.
    """
    host, _, port = router.rpartition(":")
    if sys.platform == "linux" and (host == "localhost" or host.startswith("127.")):
        return f"tcp://{OTHER_LOOPBACK}:0;{host}:{port}"
    return f"tcp://{router}"
