"""`NixlBackend`: pages registered once, moved by NIXL from one engine's memory straight into the other's."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from importlib import metadata
from typing import TYPE_CHECKING, Any, ClassVar

from kvbridge.abc import Held, Landing, Transport
from kvbridge.capabilities import Capabilities, Probe
from kvbridge.errors import BackendUnavailableError, KVBridgeError
from kvbridge.machine import has_gpu, has_rdma, host_identity
from kvbridge.threads import Loop
from kvbridge_nixl import library
from kvbridge_nixl.agent import Agent, Movers
from kvbridge_nixl.card import Card, decode_card
from kvbridge_nixl.moves import HeldPages, ReadFrom, WrittenTo
from kvbridge_nixl.options import LOOPBACK, NixlOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    import msgspec

    from kvbridge.control.link import Link
    from kvbridge.memory import Payload, Region, Spec

ACTIVE = ("tcp", "rc", "ud", "dc", "srd", "ib", "all")
"""UCX transports that can carry active messages, of which the library needs one."""

READING = ("cma", "sm", "shm", "all", "rc", "ud", "dc", "srd", "ib")
"""UCX transports by which memory can be read without its process's help."""

SERVING_PERIOD, IDLE_PERIOD = 0.01, 0.25
"""Seconds between two calls into the library of an agent that is read from, because it has to answer new readers: while
there is something to read, and while there is nothing."""


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
        api = library.load(options)
        self.main = Agent(api, options)
        self.movers = Movers(api, options)
        self._links: dict[Link, Card] = {}
        self._card = _card(self.main, options)
        self._capabilities = Capabilities.of_transport(
            mover="consumer" if self.reads else "producer",
            cuda=_moves_cuda(self.main.lib, options.plugin),
            cross_host=options.net_devices != LOOPBACK and (not self.reads or has_rdma()),
        )
        self._shown = 0
        self._wake = threading.Event()
        self._loop = Loop(f"nixl-{self.main.name[:8]}", self._serve, self._wake.set) if self.reads else None

    @classmethod
    def probe(cls, options: NixlOptions) -> Probe:
        """Say whether the library is there, and whether it can work with these options."""
        if not sys.platform.startswith("linux"):
            return Probe(ok=False, reason="it needs Linux")
        package = library.package()
        if package is None:
            return Probe(ok=False, reason="the library is not installed: pip install 'kvbridge[nixl]'")
        if library.is_orphan():
            return Probe(ok=False, reason="this process was forked from one that uses NIXL: spawn it instead")
        wrong = _wrong_options(options)
        if wrong:
            return Probe(ok=False, reason=wrong)
        ways = ["CMA" if library.has_cma() else "no CMA", "RDMA" if has_rdma() else "no RDMA device"]
        where = f"{options.plugin} on {options.net_devices}"
        return Probe(ok=True, reason=f"{package} {_version(package)}, {where}, {', '.join(ways)}")

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
        if self.options.net_devices == LOOPBACK and there.network != self._card.network:
            return (
                "the peer is on another host, or in a container with a network of its own, and options.net_devices is "
                f"{LOOPBACK!r} here: name a device that reaches it, e.g. 'eth0'"
            )
        if self.reads and there.host != self._card.host and not has_rdma():
            return "direction 'read' is for processes of one host, or RDMA: use 'write' between hosts over TCP"
        return None

    def register(self, regions: Sequence[Region]) -> None:
        """Register regions, once each. They stay known as long as the backend."""
        self._check_process()
        self.main.memory.register(regions)
        self.movers.register(regions)

    def hold(self, payload: Payload) -> Held:
        """Describe a payload; nothing is copied."""
        self._check_process()
        if not self.reads:
            self.movers.get()  # here rather than when a consumer waits: making an agent takes a while
        return HeldPages(self, payload)

    def land(self, link: Link, spec: Spec, descriptor: bytes, out: Payload, skip: int) -> Landing:
        """Describe the destination, or read into it."""
        del spec
        self._check_process()
        return ReadFrom(self, link, descriptor, out, skip) if self.reads else WrittenTo(self, out, skip)

    def showing(self, more: int) -> None:
        """Take note that peers may read one payload more, or one less."""
        self._shown += more
        if self._shown == more == 1:
            self._wake.set()

    def card_of(self, link: Link) -> Card:
        """Return the card of a link's peer."""
        found = self._links.get(link)
        if found is None:
            found = self._links[link] = decode_card(link.peer.card)
            link.on_down(lambda _: self._left(link))
        return found

    def close(self) -> None:
        """Give everything back. Idempotent. In a forked process nothing: it is all its parent's."""
        if os.getpid() != self._pid:
            return
        if self._loop is not None:
            self._loop.stop(1.0)
        self._links.clear()
        self.movers.close()
        self.main.close()

    def _serve(self) -> None:
        """Answer new peers that want to read."""
        self._wake.wait(SERVING_PERIOD if self._shown else IDLE_PERIOD)
        self._wake.clear()
        with contextlib.suppress(KVBridgeError):  # one peer's trouble: the others are answered all the same
            self.main.progress()

    def _left(self, link: Link) -> None:
        card = self._links.pop(link, None)
        if card is not None and card not in self._links.values():
            self.movers.forget_peer(card.name)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise BackendUnavailableError("this process was forked: make the backend in the process that uses it")


def _wrong_options(options: NixlOptions) -> str:
    """Say what cannot be right about options; nothing where all can."""
    if not options.plugin:
        return "options.plugin is empty; expected such as 'UCX'"
    if any("\x00" in text for text in (options.transports, options.net_devices, options.plugin)):
        return "an option has a zero byte in it"
    chosen = {part.strip().lstrip("\\").partition("_")[0] for part in options.transports.split(",")}
    named = bool(options.transports) and not options.transports.startswith("^")
    if named and not chosen & set(ACTIVE):
        return f"options.transports is {options.transports!r}: name one of {', '.join(ACTIVE)} beside it, e.g. tcp"
    if options.direction == "read" and not has_rdma():
        if named and not chosen & set(READING):
            return (
                f"options.direction is 'read' and options.transports {options.transports!r}: a reader that dies would "
                "take the process with it that it reads from; name 'cma' beside it, or use direction 'write'"
            )
        if not library.has_cma():
            return "options.direction is 'read', and processes may not read each other's memory here: use 'write'"
    return ""


def _card(agent: Agent, options: NixlOptions) -> Card:
    connection = library.call("describing the agent", agent.lib.get_agent_metadata)
    return Card(agent.name, _version(), options.plugin, options.direction, *host_identity(), connection)


def _version(package: str = "") -> str:
    """Return the library's version, as far as peers have to agree."""
    name = package or library.package() or ""
    try:
        return ".".join(metadata.version(name.replace("_", "-")).split(".")[:2])
    except metadata.PackageNotFoundError:
        return "unknown"


def _moves_cuda(agent: Any, plugin: str) -> bool:
    return has_gpu() and "VRAM_SEG" in map(str, agent.get_backend_mem_types(plugin))
