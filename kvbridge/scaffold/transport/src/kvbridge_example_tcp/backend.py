"""What the core asks a backend for. The work is in `server` (the producer's) and `moves` (both sides)."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
from kvbridge.abc import Held, Landing, Transport
from kvbridge.capabilities import Capabilities, Probe
from kvbridge.errors import BackendUnavailableError, ProtocolError, UnsupportedError
from kvbridge.memory import Pages, Payload, Spec
from kvbridge.memory.tensors import tensor_bytes
from msgspec import Meta

from kvbridge_example_tcp.card import decode, family
from kvbridge_example_tcp.moves import ExampleTcpHeld, ExampleTcpLanding
from kvbridge_example_tcp.server import Server

if TYPE_CHECKING:
    from kvbridge.control.link import Link


class ExampleTcpOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of the backend. The core refuses unknown keys and wrong types before we see them.

    Attributes:
        host: IP address of this machine on which peers fetch values. Loopback by default: exposing KV is a decision.
        port: 0 for an ephemeral port.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 0


class ExampleTcpBackend(Transport[ExampleTcpOptions]):
    """Values stay where they are at their producer; the consumer fetches them over TCP."""

    name: ClassVar[str] = "example_tcp"
    Options: ClassVar[type[msgspec.Struct]] = ExampleTcpOptions

    def __init__(self, options: ExampleTcpOptions) -> None:
        super().__init__(options)
        found = self.probe(options)
        if not found.ok:
            raise BackendUnavailableError(f"{self.name!r} cannot work here: {found.reason}")
        self._server = Server(options.host, options.port)

    @classmethod
    def probe(cls, options: ExampleTcpOptions) -> Probe:
        """Say whether the address is one of this machine's. Allocates nothing that stays, never raises."""
        try:
            with socket.create_server((options.host, 0), family=family(options.host)):
                pass
        except (ValueError, OSError) as error:
            why = f"options.host is {options.host!r}, expected an IP address of this machine: {error}"
            return Probe(ok=False, reason=why)
        if ip_address(options.host).is_unspecified:
            why = f"options.host is {options.host!r}: name the one address that peers can reach"
            return Probe(ok=False, reason=why)
        return Probe(ok=True, reason=f"TCP on {options.host}")

    @property
    def capabilities(self) -> Capabilities:
        """Claim what is true and no more: the conformance suite tests each flag."""
        return Capabilities.of_transport(mover="consumer", cross_host=not ip_address(self.options.host).is_loopback)

    def card(self) -> bytes:
        """Return what a peer needs to reach us. The core carries it in the handshake."""
        return msgspec.msgpack.encode(self._server.card)

    def accepts(self, card: bytes) -> str | None:
        """Check a peer's card. It is a stranger's: anything may be in it, and nothing may be raised."""
        try:
            host = ip_address(decode(card).host)
        except (ProtocolError, ValueError) as error:
            return str(error)
        if host.is_unspecified or host.is_multicast:
            return f"the peer's address {host} is none that can be connected to"
        here = ip_address(self.options.host)
        if host.is_loopback != here.is_loopback:
            return f"one side listens on {host}, the other on {here}: set options.host on the loopback side"
        return None

    def hold(self, payload: Payload) -> Held:
        """Make a payload reachable: no copy, a reference and an id."""
        self._server.check()
        return ExampleTcpHeld(_host_memory(payload), self._server.values)

    def land(self, link: Link, spec: Spec, descriptor: bytes, out: Payload, skip: int) -> Landing:
        """Start to fetch a value. The core has checked `out` against `spec`; card and descriptor are ours to check."""
        del spec
        return ExampleTcpLanding(decode(link.peer.card), descriptor, _host_memory(out), skip)

    def close(self) -> None:
        """Stop the thread and close every socket. Idempotent."""
        self._server.close()


def _host_memory(payload: Payload) -> Payload:
    """Refuse what we cannot move, here, where the caller hears of it. A tensor becomes its plain bytes."""
    if not isinstance(payload, Pages):
        return tensor_bytes(payload)  # raises for a tensor that is on a device or not contiguous
    if any(region.host is None for region in payload.regions):
        raise UnsupportedError("the pages are on a device: this backend moves host memory only", flag="cuda")
    return payload
