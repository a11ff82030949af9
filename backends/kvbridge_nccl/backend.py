"""`NcclBackend`: what the core asks for. The work is in `sending` and `receiving`."""

from __future__ import annotations

import os
from importlib import metadata
from ipaddress import ip_address
from typing import TYPE_CHECKING, ClassVar

from kvbridge.abc import Held, Landing, Move, MoveState, Transport
from kvbridge.capabilities import Capabilities, Probe
from kvbridge.errors import BackendUnavailableError, KVBridgeError, TransportError
from kvbridge.machine import has_gpu, host_identity, is_loopback
from kvbridge_nccl import library
from kvbridge_nccl.card import MAX_CHUNK, Card, decode_card, decode_wanted
from kvbridge_nccl.chunks import largest
from kvbridge_nccl.options import NcclOptions
from kvbridge_nccl.receiving import Receiver
from kvbridge_nccl.sending import Sender

if TYPE_CHECKING:
    import msgspec

    from kvbridge.control.link import Link
    from kvbridge.memory import Payload, Spec
    from kvbridge_nccl.card import Wanted

CLOSE_TIMEOUT = 1.0
"""Seconds that `close` waits for each thread. One that makes a group ends a little later."""


class NcclBackend(Transport[NcclOptions]):
    """Both sides post: NCCL between GPUs, gloo between hosts' memory."""

    name: ClassVar[str] = "nccl"
    Options: ClassVar[type[msgspec.Struct]] = NcclOptions

    def __init__(self, options: NcclOptions) -> None:
        super().__init__(options)
        found = self.probe(options)
        if not found.ok:
            raise BackendUnavailableError(f"the backend 'nccl' cannot work here: {found.reason}")
        torch = library.load()
        self._pid = os.getpid()
        self._card = Card(_version(), options.host, host_identity()[1])
        self._capabilities = Capabilities.of_transport(
            mover="both",
            cuda=torch.cuda.is_available() and torch.distributed.is_nccl_available(),
            cross_host=not is_loopback(options.host),
        )
        self._receivers: dict[Link, Receiver] = {}
        self._senders: dict[Link, Sender] = {}
        self._old: list[Receiver | Sender] = []

    @classmethod
    def probe(cls, options: NcclOptions) -> Probe:
        """Say whether torch is there, and whether the address is one of this machine's. Does not load torch."""
        missing = library.missing()
        if missing:
            return Probe(ok=False, reason=missing)
        try:
            chunk = options.chunk_bytes()
            if not 1 <= chunk <= MAX_CHUNK:
                return Probe(ok=False, reason=f"options.chunk is {options.chunk!r}, expected 1 to {MAX_CHUNK} bytes")
            library.listen(options.host).close()
        except KVBridgeError as error:
            return Probe(ok=False, reason=str(error))
        over = "NCCL for GPU memory, gloo for host memory" if has_gpu() else "gloo, as there is no GPU"
        return Probe(ok=True, reason=f"torch {_version()} on {options.host}, {over}")

    @property
    def capabilities(self) -> Capabilities:
        """Flags and limits."""
        return self._capabilities

    def card(self) -> bytes:
        """Return the version and the address."""
        return self._card.encode()

    def accepts(self, card: bytes) -> str | None:
        """Compare the peer's version of torch and its address with ours."""
        try:
            there = decode_card(card)
        except KVBridgeError as error:
            return str(error)
        if not _is_address(there.host):
            return f"the peer says that it is at {there.host!r}, expected an IP address"
        if there.version != self._card.version:
            return f"torch is {self._card.version} here and {there.version} at the peer: both engines need the same"
        if there.network != self._card.network and (is_loopback(there.host) or is_loopback(self.options.host)):
            return (
                "the peer is on another host, or in a container with a network of its own, and options.host is "
                f"{self.options.host!r} here and {there.host!r} there: name addresses that reach each other"
            )
        return None

    def hold(self, payload: Payload) -> Held:
        """Remember a payload: it is copied chunk by chunk when it is sent."""
        self._check_process()
        return _Waiting(self, payload)

    def land(self, link: Link, spec: Spec, descriptor: bytes, out: Payload, skip: int) -> Landing:
        """Wait for a value."""
        del spec, descriptor
        self._check_process()
        receiver = self._receivers.get(link)
        landing = receiver.receive(out, skip) if receiver is not None else None
        if landing is None:
            receiver = self._receiver(link, largest(out))
            landing = receiver.receive(out, skip)
        if landing is None:
            raise TransportError("the group with the producer ended while it was made")
        return landing

    def send(self, link: Link, payload: Payload, wanted: Wanted) -> Move:
        """Send a payload to where a consumer wants it. For the endpoint's thread."""
        self._check_process()
        sender = self._senders.get(link)
        if sender is None or sender.group != wanted.group:
            # A consumer has one group for all that comes from here: the last one has ended, or ends.
            if sender is not None:
                self._retire(sender)
            sender = Sender(wanted, link.peer.name, self.options)
            new = link not in self._senders
            self._senders[link] = sender
            if new:
                link.on_down(lambda _: self._left(link))
        return sender.send(payload, wanted)

    def close(self) -> None:
        """End all groups. Idempotent. In a forked process nothing: it is all its parent's."""
        if os.getpid() != self._pid:
            return
        ending = [*self._receivers.values(), *self._senders.values(), *self._old]
        self._receivers.clear()
        self._senders.clear()
        self._old.clear()
        for one in ending:  # all are told before one is waited for
            one.close(0)
        for one in ending:
            one.close(CLOSE_TIMEOUT)

    def _receiver(self, link: Link, least: int) -> Receiver:
        new = link not in self._receivers
        if not new:
            self._retire(self._receivers[link])
        receiver = self._receivers[link] = Receiver(self.options, link.peer.name, least)
        if new:
            link.on_down(lambda _: self._left(link))
        return receiver

    def _left(self, link: Link) -> None:
        for known in (self._receivers.pop(link, None), self._senders.pop(link, None)):
            if known is not None:
                self._retire(known)

    def _retire(self, one: Receiver | Sender) -> None:
        """Let a group end when nothing is under way, and remember it until then."""
        one.leave()
        self._old = [old for old in self._old if not old.over]
        self._old.append(one)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise BackendUnavailableError("this process was forked: make the backend in the process that uses it")


class _Waiting(Held):
    """A payload that stays where it is until somebody wants it."""

    descriptor = b""

    def __init__(self, backend: NcclBackend, payload: Payload) -> None:
        self._backend = backend
        self._payload = payload

    def step(self) -> MoveState:
        """Nothing is to be prepared."""
        return MoveState.DONE

    def write(self, link: Link, accepted: bytes) -> Move:
        """Send it to a consumer."""
        return self._backend.send(link, self._payload, decode_wanted(accepted))

    def release(self) -> None:
        """Let go of the payload. Nothing reads it any more: what was being sent has ended before."""
        self._payload = None


def _version() -> str:
    try:
        return ".".join(metadata.version("torch").partition("+")[0].split(".")[:2])
    except metadata.PackageNotFoundError:
        return "unknown"


def _is_address(host: str) -> bool:
    try:
        return not ip_address(host).is_unspecified
    except ValueError:
        return False
