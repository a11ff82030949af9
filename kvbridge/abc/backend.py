"""`Backend`: a data plane. What an author implements to bring a transport or a store to every engine.

Handshake, ordering, keys, leases, liveness, retries, metrics and configuration are written once, in the core. A
**transport** says how to describe memory and how to move it: subclass `Transport` and write `hold` and `land`. A
**store** keeps values by key itself: subclass `Store` and write `put`, `find`, `headers` and `remove`.

To write one: define a frozen `msgspec.Struct` with your options, set `name` and `Options`, implement the abstract
methods below, and name the class in your distribution's entry points:

    [project.entry-points."kvbridge.backends"]
    mine = "my_package:MyBackend"

Threads: the constructor, `card`, `register`, `open_*` and `close` are called by the owner's thread; `register` also
while the endpoint's thread is at work. `hold`, `land`, `accepts`, a store's methods and everything on `Held`,
`Landing`, `Move` and `Stored` is called by one thread, the endpoint's, and must return within a few milliseconds: that
thread also keeps the heartbeats. Do long work in slices, in `step`. `probe` and `capabilities` are asked by any thread.

Errors: raise the classes of `kvbridge.errors`. Map your library's errors once, to `TransportError` with the original
code in the message, or `PeerLostError`.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar, final

from kvbridge.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import msgspec
    import numpy as np
    from numpy.typing import NDArray

    from kvbridge.abc.buffer import LookupBuffer
    from kvbridge.abc.pipe import RecvPipe, SendPipe
    from kvbridge.abc.pool import SlotPool
    from kvbridge.capabilities import Capabilities, Probe
    from kvbridge.control.endpoint import Endpoint
    from kvbridge.control.link import Link
    from kvbridge.memory import Payload, Region, Spec

O = TypeVar("O", bound="msgspec.Struct")  # noqa: E741 - the options of one backend


class MoveState(enum.Enum):
    """What a slice of work came to."""

    AGAIN = "again"
    """There is more to do at once."""
    WAIT = "wait"
    """Nothing to do right now; ask again soon."""
    DONE = "done"
    """All bytes are where they belong, and nothing will touch the memory any more."""


class Move(ABC):
    """Bytes in motion. Advanced in slices by the endpoint's thread."""

    @abstractmethod
    def step(self) -> MoveState:
        """Do one bounded slice of work (a few milliseconds), or look whether the library has finished.

        Not called again after DONE or an error.

        Raises:
            KVBridgeError: The move failed and has ended: nothing will touch the memory any more. A landing raises
                `LeaseExpiredError`, `PeerLostError`, `ProtocolError` or `TransportError`; what a store puts,
                `CapacityError`, `DuplicateKeyError` or `TransportError`.
            CancelledError: It ended because of `abort`.
        """

    @abstractmethod
    def abort(self) -> None:
        """Ask for an end. It is not one: `step` is called on until it raises or returns DONE.

        If the library, or a thread, cannot stop at once, `step` returns WAIT until it has; never report an end while
        bytes may still land.
        """


class Held(ABC):
    """A payload on the producer's side that peers can reach. Made by `Transport.hold`."""

    descriptor: bytes
    """What a consumer's `land` needs to reach it; opaque to the core, at most 256 KiB."""

    @abstractmethod
    def step(self) -> MoveState:
        """Do a slice of preparing the payload, such as copying it into a pool. DONE once prepared.

        For a backend that claims `detaches`, DONE means that the caller's memory may be reused. `descriptor` is
        valid, and may be offered, from the start: a consumer's `Landing` waits for bytes that are not there yet.

        It has no abort. A payload that is not wanted any more is released, whether it is prepared or not.

        Raises:
            KVBridgeError: It cannot be prepared; the caller's memory is not touched any more. `release` follows.
        """

    def write(self, link: Link, accepted: bytes) -> Move:
        """Start moving the bytes to where a consumer's `Landing` accepted them.

        Called only where `Capabilities.mover` is `"producer"` or `"both"`, once for each consumer that accepts, and
        perhaps before `step` has returned DONE: the move then waits.

        Args:
            link: The consumer.
            accepted: The `descriptor` of the consumer's `Landing`.
        """
        del link, accepted
        raise UnsupportedError(f"{type(self).__name__} does not write: its mover is the consumer", flag="mover")

    @abstractmethod
    def release(self) -> None:
        """Give back what the held payload uses. Called once, when no peer can touch it any more; must not raise.

        It comes after a `step` that failed, and also between two steps: then it ends what they began. After it the
        memory is the caller's: if threads of your own read it, this is a barrier for them, and a quick one. A peer
        that asks for it afterwards is refused.
        """


class Landing(Move):
    """A value on its way into a consumer's memory. Made by `Transport.land`.

    With mover `"consumer"`, `step` reads the bytes. With `"producer"`, `step` lets a library make progress, if it
    needs that, and returns `WAIT`: the core waits for the producer's word, whatever `step` returns or raises, and does
    not call `abort`. With `"both"`, `step` is the receiving half of the move.
    """

    descriptor: bytes = b""
    """What the producer's `Held.write` needs to reach the destination; empty where the consumer moves."""

    def release(self) -> None:
        """Give back what the landing uses. Called once, when it has ended, however it ended."""


class Backend(ABC, Generic[O]):
    """One instance of a backend: its options, its card, its registered memory.

    Args:
        options: The options, converted to the type `Options`.

    Raises:
        BackendUnavailableError: It cannot work here; the same reason as `probe` gives.
    """

    name: ClassVar[str]
    """The entry point's name."""

    Options: ClassVar[type[msgspec.Struct]]
    """Frozen struct of the options, every field with a default. Unknown keys are refused before it is made."""

    def __init__(self, options: O) -> None:
        self.options = options

    @classmethod
    @abstractmethod
    def probe(cls, options: O) -> Probe:
        """Say whether this backend can work on this machine, and why not. Cheap, allocates nothing, never raises."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Flags and limits of this instance. Constant over its life. Any thread asks."""

    def card(self) -> bytes:
        """Return what a peer's backend needs to reach this one, at most 64 KiB; sent in the handshake.

        Asked when an endpoint is made, on the owner's thread. It stays the same over the instance's life.
        """
        return b""

    def accepts(self, card: bytes) -> str | None:
        """Say whether this backend and the peer with this card can reach each other.

        The card comes from a peer: check it. It is symmetric: each side asks its own backend.

        Returns:
            None if they can, else the reason in one sentence.
        """
        del card
        return None

    def register(self, regions: Sequence[Region]) -> None:
        """Make regions known to the transport, once each, before their pages are moved.

        Called by the owner's thread, perhaps while the endpoint's thread moves other pages.

        The memory stays the caller's and outlives the backend.
        """
        del regions

    def open_send(self, link: Link, channel: str) -> SendPipe:
        """Open the sending end of the pipe `channel` to a peer. Its receiver opens the same name."""
        del link, channel
        raise UnsupportedError(f"the backend {self.name!r} has no pipes", flag="pipe")

    def open_recv(self, link: Link, channel: str) -> RecvPipe:
        """Open the receiving end of the pipe `channel` from a peer."""
        del link, channel
        raise UnsupportedError(f"the backend {self.name!r} has no pipes", flag="pipe")

    @abstractmethod
    def open_buffer(
        self, endpoint: Endpoint, *, lease: float = 60.0, timeout: float = 30.0, patient: bool = False
    ) -> LookupBuffer:
        """Open a LookupBuffer on this backend.

        Args:
            endpoint: The control plane to use.
            lease: Seconds that an inserted value waits for its consumer.
            timeout: Seconds that one transfer may take.
            patient: Whether an insert for which there is no room waits for it, as long as its lease lasts, in place of
                being refused. Who asks for its key waits as for one that is still to come.
        """

    def open_pool(self, like: Sequence[Region], slots: int, memory: NDArray[np.uint8] | None = None) -> SlotPool:
        """Open memory that keeps blocks of a cache, for blocks that may be wanted again. With the flag `slots`.

        Args:
            like: The cache's regions. The pool has one for each of them, with pages of the same size.
            slots: Blocks that it has room for, at least 1.
            memory: Host memory for the slots, of `kvbridge.memory.slots.slots_bytes`, that other processes share; None
                for memory of the pool's own. It outlives the pool.

        Raises:
            ConfigError: The host has not so much memory, or `memory` is too small.
            UnsupportedError: It has no slots, cannot keep blocks of a cache that is where this one is, or cannot use
                memory that it is given.
        """
        del like, slots, memory
        raise UnsupportedError(f"the backend {self.name!r} has no slots for blocks of a cache", flag="slots")

    @abstractmethod
    def close(self) -> None:
        """Release everything: idempotent, bounded, no thread, port, file or child left. Close the endpoint first.

        A move that the endpoint could not end in time is still under way, and is neither stepped nor released any
        more: stop it here.
        """


class Transport(Backend[O]):
    """A backend that moves bytes between two processes. The core makes pipes and buffers of it."""

    @abstractmethod
    def hold(self, payload: Payload) -> Held:
        """Make a payload reachable for peers. Returns at once; the work is done in `Held.step`.

        Args:
            payload: The payload. It is contiguous, of a kind and on a device that the capabilities claim, and not
                larger than `max_value_bytes`: the core has checked that.

        Raises:
            CapacityError: There is no room for it.
        """

    @abstractmethod
    def land(self, link: Link, spec: Spec, descriptor: bytes, out: Payload, skip: int) -> Landing:
        """Prepare to take a value into `out`. Returns at once; the work is done in `Landing.step`.

        A step that finds that the producer gave the value up raises `LeaseExpiredError`; one that finds the producer
        or the connection to it gone, `PeerLostError`, which a pipe's user gets as `PipeBrokenError`. Either ends this
        transfer only: whether the link is down, and the pipe with it, the core finds out.

        Args:
            link: The producer; `link.peer.card` is its card.
            spec: What the value is. `out` was checked against it.
            descriptor: The producer's `Held.descriptor`. It comes from a peer: check it.
            out: Destination. Yours until the landing has ended.
            skip: Number of the value's first blocks, in every region, that are not wanted.

        Raises:
            ProtocolError: The descriptor is nonsense. `Landing.step` may raise it as well.
        """

    @final
    def open_send(self, link: Link, channel: str) -> SendPipe:
        """Open the sending end of a pipe."""
        from kvbridge.control.rendezvous import RendezvousSender  # noqa: PLC0415 - the core builds on this module

        return RendezvousSender(self, link, channel)

    @final
    def open_recv(self, link: Link, channel: str) -> RecvPipe:
        """Open the receiving end of a pipe."""
        from kvbridge.control.rendezvous import RendezvousReceiver  # noqa: PLC0415 - likewise

        return RendezvousReceiver(self, link, channel)

    @final
    def open_buffer(
        self, endpoint: Endpoint, *, lease: float = 60.0, timeout: float = 30.0, patient: bool = False
    ) -> LookupBuffer:
        """Open a LookupBuffer over pipes: values wait at their producer until they are asked for."""
        from kvbridge.buffers.over_pipes import PipeBuffer  # noqa: PLC0415 - likewise

        return PipeBuffer(self, endpoint, lease=lease, timeout=timeout, patient=patient)
