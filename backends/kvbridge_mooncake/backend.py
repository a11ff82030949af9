"""`MooncakeBackend`: pages registered once, moved by Mooncake's transfer engine between two engines' memory."""

from __future__ import annotations

import sys
import time
import uuid
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from kvbridge.abc import Held, Landing, MoveState, Transport
from kvbridge.capabilities import Capabilities, Probe
from kvbridge.errors import BackendUnavailableError, KVBridgeError
from kvbridge.machine import has_gpu, has_rdma, host_identity, is_loopback
from kvbridge.threads import Pool
from kvbridge_mooncake import library
from kvbridge_mooncake.card import Card, decode_card
from kvbridge_mooncake.engine import Engine, environment
from kvbridge_mooncake.memory import Memory
from kvbridge_mooncake.movers import Movers
from kvbridge_mooncake.moves import HeldPages, ReadFrom, WrittenTo
from kvbridge_mooncake.options import MooncakeOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    import msgspec

    from kvbridge.control.link import Link
    from kvbridge.memory import Payload, Region, Spec

WORKERS = 4
"""Threads for calls that may wait: meeting peers, and ending engines."""

CLOSE_TIMEOUT = 1.8
"""Seconds that `close` waits for engines to end; each takes about one, all at the same time."""


class MooncakeBackend(Transport[MooncakeOptions]):
    """Mooncake between processes of one host and of several, over TCP or RDMA."""

    name: ClassVar[str] = "mooncake"
    Options: ClassVar[type[msgspec.Struct]] = MooncakeOptions

    def __init__(self, options: MooncakeOptions) -> None:
        super().__init__(options)
        found = self.probe(options)
        if not found.ok:
            raise BackendUnavailableError(f"the backend 'mooncake' cannot work here: {found.reason}")
        self.reads = options.direction == "read"
        self.name_of_this = uuid.uuid4().hex
        self.engine = Engine(options)
        self.memory = Memory(self.engine)
        self._greeting = np.frombuffer(bytes.fromhex(self.name_of_this), dtype=np.uint8).copy()
        self.engine.register(self._greeting.ctypes.data, self._greeting.nbytes)
        self._pool = Pool("mooncake", WORKERS)
        self.movers = Movers(options, self._pool)
        self._links: dict[Link, Card] = {}
        self._closed = False
        self._card = Card(
            self.name_of_this,
            self.engine.session,
            library.version(),
            options.protocol,
            options.direction,
            host_identity()[1],
            int(self._greeting.ctypes.data),
        )
        self._capabilities = Capabilities.of_transport(
            mover="consumer" if self.reads else "producer",
            cuda=_moves_cuda(options),
            cross_host=not is_loopback(options.host),
        )

    @classmethod
    def probe(cls, options: MooncakeOptions) -> Probe:
        """Say whether the library is there, and whether it can work with these options."""
        if not sys.platform.startswith("linux"):
            return Probe(ok=False, reason="it needs Linux")
        why = library.missing()
        if why:
            return Probe(ok=False, reason=why)
        if options.protocol == "rdma" and not has_rdma():
            return Probe(ok=False, reason="options.protocol is 'rdma' and this machine has no RDMA device: use 'tcp'")
        if any(character.isspace() or not character.isprintable() for character in options.host + options.device):
            return Probe(ok=False, reason="options.host and options.device are names without blanks")
        return Probe(ok=True, reason=f"{library.package()} {library.version()}, {options.protocol} at {options.host}")

    @property
    def capabilities(self) -> Capabilities:
        """Flags and limits."""
        return self._capabilities

    def card(self) -> bytes:
        """Return how peers reach the engine."""
        return self._card.encode()

    def accepts(self, card: bytes) -> str | None:
        """Compare the peer's library and settings with ours."""
        try:
            there = decode_card(card)
        except KVBridgeError as error:
            return str(error)
        for field in ("version", "protocol", "direction"):
            mine, theirs = getattr(self._card, field), getattr(there, field)
            if mine != theirs:
                return f"Mooncake's {field} is {mine} here and {theirs} at the peer: both engines need the same"
        host = there.session.rpartition(":")[0]
        if is_loopback(host) and there.network != self._card.network:
            return (
                f"the peer's options.host is {host!r} and it is on another host, or in a container with a network of "
                "its own: name an address there that is reached from here"
            )
        return None

    def register(self, regions: Sequence[Region]) -> None:
        """Register regions, once each. They stay known as long as the backend."""
        self._check_process()
        self.memory.keep(regions)
        self.movers.register(regions)

    def hold(self, payload: Payload) -> Held:
        """Describe a payload; nothing is copied."""
        self._check_process()
        return HeldPages(self, payload)

    def land(self, link: Link, spec: Spec, descriptor: bytes, out: Payload, skip: int) -> Landing:
        """Describe the destination, or read into it."""
        del spec
        self._check_process()
        return ReadFrom(self, link, descriptor, out, skip) if self.reads else WrittenTo(self, out, skip)

    def card_of(self, link: Link) -> Card:
        """Return the card of a link's peer."""
        found = self._links.get(link)
        if found is None:
            found = self._links[link] = decode_card(link.peer.card)
            link.on_down(lambda _: self._forget(link))
        return found

    def _forget(self, link: Link) -> None:
        card = self._links.pop(link, None)
        if card is not None and all(other.name != card.name for other in self._links.values()):
            self.movers.forget(card.name)

    def close(self) -> None:
        """End the engines. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.movers.close()
        home = self._pool.run(self.engine.close)
        deadline = time.monotonic() + CLOSE_TIMEOUT
        while time.monotonic() < deadline and not (home.step() is MoveState.DONE and self.movers.still):
            time.sleep(0.005)
        self._pool.close(max(0.1, deadline - time.monotonic()))

    def _check_process(self) -> None:
        if library.is_orphan():
            raise BackendUnavailableError("this process was forked from one that uses Mooncake: spawn it instead")


def _moves_cuda(options: MooncakeOptions) -> bool:
    module = library.load("engine", environment(options))
    return bool(module.SUPPORT_CUDA) and has_gpu()
