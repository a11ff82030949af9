"""`NixlBackend`: pages registered once, moved by NIXL from one engine's memory straight into the other's."""

from __future__ import annotations

import os
import sys
import threading
from importlib import metadata
from typing import TYPE_CHECKING, Any, ClassVar

from kvbridge.abc import Held, Landing, Transport
from kvbridge.capabilities import Capabilities, Probe
from kvbridge.errors import BackendUnavailableError, KVBridgeError
from kvbridge.threads import Loop
from kvbridge_nixl import library
from kvbridge_nixl.agent import Agent
from kvbridge_nixl.card import Card, decode_card, host_identity
from kvbridge_nixl.moves import HeldPages, ReadFrom, WrittenTo
from kvbridge_nixl.options import LOOPBACK, NixlOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    import msgspec

    from kvbridge.control.link import Link
    from kvbridge.memory import Payload, Region, Spec

ACTIVE = ("tcp", "rc", "ud", "dc", "ib", "all")
"""UCX transports that can carry active messages, of which the library needs one."""

PROGRESS_PERIOD = 0.01
"""Seconds between two calls into the library of an agent that is read from: it has to answer new peers."""


class NixlBackend(Transport[NixlOptions]):
    """NIXL between processes of one host (CMA) and of several (RDMA, TCP)."""

    name: ClassVar[str] = "nixl"
    Options: ClassVar[type[msgspec.Struct]] = NixlOptions

    def __init__(self, options: NixlOptions) -> None:
        super().__init__(options)
        found = self.probe(options)
        if not found.ok:
            raise BackendUnavailableError(f"the backend 'nixl' cannot work here: {found.reason}")
        self.reads = options.direction == "read"
        self._pid = os.getpid()
        self._api = library.load(options)
        self.main = Agent(self._api, options)
        self._mover: Agent | None = None
        self._links: dict[Link, Card] = {}
        self._regions: list[Region] = []
        connection = library.call("describing the agent", self.main.lib.get_agent_metadata)
        self._card = Card(self.main.name, _version(), options.plugin, options.direction, host_identity(), connection)
        self._capabilities = Capabilities.of_transport(
            mover="consumer" if self.reads else "producer",
            cuda=_moves_cuda(self.main.lib, options.plugin),
            cross_host=options.net_devices != LOOPBACK and (not self.reads or library.has_rdma()),
        )
        self._over = threading.Event()
        self._loop = Loop(f"nixl-{self.main.name[:8]}", self._serve, self._over.set) if self.reads else None

    @classmethod
    def probe(cls, options: NixlOptions) -> Probe:
        """Say whether the library is there, and whether it can work with these options."""
        if not sys.platform.startswith("linux"):
            return Probe(ok=False, reason="it needs Linux")
        package = library.package()
        if package is None:
            return Probe(ok=False, reason="the library is not installed: pip install 'kvbridge[nixl]'")
        if not options.plugin:
            return Probe(ok=False, reason="options.plugin is empty; expected such as 'UCX'")
        chosen = [part.strip().lstrip("\\").partition("_")[0] for part in options.transports.split(",")]
        if options.transports and not options.transports.startswith("^") and not set(chosen) & set(ACTIVE):
            reason = (
                f"options.transports is {options.transports!r}: name one of {', '.join(ACTIVE)} beside it, e.g. tcp"
            )
            return Probe(ok=False, reason=reason)
        for text in (options.transports, options.net_devices, options.plugin):
            if "\x00" in text:
                return Probe(ok=False, reason="an option has a zero byte in it")
        devices = "RDMA devices" if library.has_rdma() else "no RDMA device"
        return Probe(
            ok=True, reason=f"{package} {_version(package)}, {options.plugin} on {options.net_devices}, {devices}"
        )

    @property
    def capabilities(self) -> Capabilities:
        """Flags and limits."""
        return self._capabilities

    def card(self) -> bytes:
        """Return how peers connect to the agent."""
        return self._card.encode()

    def accepts(self, card: bytes) -> str | None:
        """Compare the peer's library and settings with ours. The library itself sees nothing of it yet."""
        try:
            there = decode_card(card)
        except KVBridgeError as error:
            return str(error)
        for field in ("version", "plugin", "direction"):
            mine, theirs = getattr(self._card, field), getattr(there, field)
            if mine != theirs:
                return f"NIXL's {field} is {mine} here and {theirs} at the peer: both engines need the same"
        if self.reads and there.host != self._card.host and not library.has_rdma():
            return "direction 'read' is for processes of one host, or RDMA: use 'write' between hosts over TCP"
        return None

    def register(self, regions: Sequence[Region]) -> None:
        """Register regions, once each. They stay known as long as the backend."""
        self._check_process()
        self._regions.extend(regions)
        self.main.memory.register(regions)
        if self._mover is not None:
            self._mover.memory.register(regions)

    def hold(self, payload: Payload) -> Held:
        """Describe a payload; nothing is copied."""
        self._check_process()
        if not self.reads:
            self.mover()  # here rather than when a consumer waits: making an agent takes a while
        return HeldPages(self, payload)

    def land(self, link: Link, spec: Spec, descriptor: bytes, out: Payload, skip: int) -> Landing:
        """Describe the destination, or read into it."""
        del spec
        return ReadFrom(self, link, descriptor, out, skip) if self.reads else WrittenTo(self, out, skip)

    def mover(self) -> Agent:
        """Return the agent that begins transfers; a new one where the last one hangs."""
        if self._mover is None or self._mover.condemned:
            self._mover = Agent(self._api, self.options)
            self._mover.memory.register(self._regions)
        return self._mover

    def card_of(self, link: Link) -> Card:
        """Return the card of a link's peer."""
        found = self._links.get(link)
        if found is None:
            found = self._links[link] = decode_card(link.peer.card)
            link.on_down(lambda _: self._left(link))
        return found

    def close(self) -> None:
        """Give everything back. Idempotent."""
        if self._loop is not None:
            self._loop.stop(1.0)
        self._links.clear()
        for agent in (self._mover, self.main):
            if agent is not None:
                agent.close()

    def _serve(self) -> None:
        """Answer new peers that want to read."""
        if not self._over.wait(PROGRESS_PERIOD):
            self.main.progress()

    def _left(self, link: Link) -> None:
        card = self._links.pop(link, None)
        if card is not None and card not in self._links.values() and self._mover is not None:
            self._mover.forget_peer(card.name)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise BackendUnavailableError("this process was forked: make the backend in the process that uses it")


def _version(package: str = "") -> str:
    """Return the library's version, as far as peers have to agree."""
    name = package or library.package() or ""
    try:
        return ".".join(metadata.version(name.replace("_", "-")).split(".")[:2])
    except metadata.PackageNotFoundError:
        return "unknown"


def _moves_cuda(agent: Any, plugin: str) -> bool:
    torch = sys.modules.get("torch")
    return (
        torch is not None and torch.cuda.is_available() and "VRAM_SEG" in map(str, agent.get_backend_mem_types(plugin))
    )
