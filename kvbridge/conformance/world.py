"""`World`: what the test of a requirement is given. Peers, sizes that fit, and the end of everything it made."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kvbridge.abc import Key, Transport
from kvbridge.conformance.checks import RequirementError, require, within
from kvbridge.conformance.node import Node
from kvbridge.conformance.peers import Hosts, RemoteNode
from kvbridge.conformance.slot_node import SlotNode
from kvbridge.conformance.values import TensorValue
from kvbridge.errors import KVBridgeError, UnsupportedError
from kvbridge.registry import load_backend
from kvbridge.threads import call_all_within

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from kvbridge.abc import Backend
    from kvbridge.abc.pipe import Offered
    from kvbridge.capabilities import Capabilities
    from kvbridge.conformance.values import Geometry
    from kvbridge.layers.faulty import Kind, When

CLOSE_WITHIN = 10.0
"""Seconds after which closing a node counts as hanging."""


LATER: tuple[When, ...] = ("asked", "moved")
"""Moments with bytes in motion: a backend's own threads at work, and something moved of which nobody has heard."""


class NotRunError(Exception):
    """A requirement cannot be tried here; the message says what it lacks."""


@dataclass(frozen=True)
class Subject:
    """The backend under test.

    Attributes:
        name: Its name.
        options: Options of each instance.
        capabilities: What it claims with these options.
        processes: Whether peers are processes of their own.
        hosts: Where they live.
    """

    name: str
    options: Mapping[str, Any]
    capabilities: Capabilities
    processes: bool
    hosts: Hosts

    def load(self) -> type[Backend[Any]]:
        """Return the backend's class."""
        return load_backend(self.name)

    @property
    def is_transport(self) -> bool:
        """Whether it is a transport."""
        return issubclass(self.load(), Transport)


class World:
    """Peers of one test. Everything is closed afterwards; what does not close is a failure of that test."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.capabilities = subject.capabilities
        self._seeds = itertools.count(1)
        self._made: list[Any] = []
        self._scope = f"{uuid.uuid4().hex}."  # tests share what a store keeps

    # -- peers ------------------------------------------------------------------------------------------------

    def node(self, **settings: Any) -> Node:
        """Make a peer in this process."""
        node = Node(self.subject.name, self.subject.options, scope=self._scope, **settings)
        self._made.append(node)
        return node

    def peer(self, **settings: Any) -> Any:
        """Make a peer: in a process of its own where the run has such. It has the verbs of `Node`."""
        if not self.subject.processes:
            return self.node(**settings)
        host = self.subject.hosts.get()
        try:
            settings = {"scope": self._scope, **settings}
            peer = RemoteNode(host, self.subject.name, self.subject.options, settings)
        except BaseException:
            host.broken = True
            self.subject.hosts.give_back(host)
            raise
        self._made.append(peer)
        return peer

    def pair(
        self, *, producer: dict[str, Any] | None = None, consumer: dict[str, Any] | None = None
    ) -> tuple[Any, Any]:
        """Make a producer and a consumer."""
        return self.peer(name="producer", **(producer or {})), self.peer(name="consumer", **(consumer or {}))

    def linked(self, channel: str = "c", **settings: Any) -> tuple[Any, Any]:
        """Make a sender and a receiver with a pipe between them."""
        sender, receiver = self.pair(**settings)
        self.connect(sender, receiver, channel)
        return sender, receiver

    @staticmethod
    def connect(sender: Any, receiver: Any, channel: str = "c") -> None:
        """Open a pipe between two peers."""
        receiver.connect(sender.where()[0])
        sender.open_pipe(channel, "send")
        receiver.open_pipe(channel, "recv")

    def key(self, name: str, home: Any) -> Key:
        """Name a value at a producer."""
        address, generation = home.where()
        return Key(self._scope + name, address, generation)

    def here(self, name: str) -> Key:
        """Name a value where the key is used."""
        return Key(self._scope + name)

    # -- slots ------------------------------------------------------------------------------------------------

    def slot_node(self, geometry: Geometry, count: int, memory: NDArray[np.uint8] | None = None) -> SlotNode:
        """Make a worker that keeps blocks of a cache in host memory in so many slots.

        Raises:
            NotRunError: It keeps blocks of GPU memory only.
            UnsupportedError: It cannot use memory that it is given.
        """
        try:
            node = SlotNode(self.subject.name, self.subject.options, geometry, count, memory)
        except UnsupportedError as error:
            if memory is None and self.capabilities.cuda:
                raise NotRunError(f"a cache in host memory is what is tried here: {error}") from error
            raise
        self._made.append(node)
        return node

    # -- values -----------------------------------------------------------------------------------------------

    def value(self, nbytes: int = 1000) -> TensorValue:
        """Make a value that no other test has, at most as large as the backend takes."""
        return TensorValue(seed=next(self._seeds), shape=(min(nbytes, self.largest()),))

    def largest(self, ceiling: int = 64 << 20) -> int:
        """Bytes of the largest value that fits, at most `ceiling`."""
        claimed = self.capabilities
        limits = [limit for limit in (claimed.max_value_bytes, claimed.capacity_bytes // 4) if limit]
        return min([ceiling, *limits])

    @property
    def moving(self) -> tuple[str, str]:
        """Who moves the bytes, `"producer"` or `"consumer"`, and where a fault strikes that: `"write"` or `"land"`."""
        return ("producer", "write") if self.capabilities.mover == "producer" else ("consumer", "land")

    def stopped(self, when: When = "before", kind: Kind = "pause", slices: int = 1) -> dict[str, Any]:
        """Settings of `pair` or `linked`: transfers stop, or fail, or their mover dies, at a moment of a slice.

        Args:
            when: Before it; once it was asked for, when a backend's own threads have begun; once something came of it,
                when bytes have moved.
            kind: What happens.
            slices: How many slices it happens to, from the first one of the first transfer on; 0 for all.
        """
        who, where = self.moving
        return {who: {"faults": {where: [(kind, when, slices)]}}}

    @staticmethod
    def some(offer: Offered | None) -> Offered:
        """Return an offer, or fail because none came."""
        if offer is None:
            raise RequirementError("no offer came")
        return offer

    # -- the end ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close every peer, each within a deadline: those in processes of their own at the same time.

        Raises:
            RequirementError: One hangs, or fails.
        """
        faults: list[str] = []
        remote = [one for one in reversed(self._made) if isinstance(one, RemoteNode)]
        closing = [partial(self._close_into, faults, one) for one in remote]
        call_all_within("conformance-close", closing, 2 * CLOSE_WITHIN)
        for one in reversed(self._made):
            if not isinstance(one, RemoteNode):
                faults.extend(self._close(one))
        for one in remote:
            self.subject.hosts.give_back(one.host)
        self._made.clear()
        require(not faults, "after the test: " + "; ".join(faults))

    def _close_into(self, faults: list[str], one: Any) -> None:
        faults.extend(self._close(one))

    def _close(self, one: Any) -> list[str]:
        remote = isinstance(one, RemoteNode)
        faults = []
        if not (remote and one.host.broken):
            try:
                within(CLOSE_WITHIN, one.close, "closing a peer")
            except (RequirementError, KVBridgeError) as error:
                faults.append(str(error))
                if remote:
                    one.host.broken = True
            except Exception as error:  # the backend's: the others are closed all the same
                faults.append(f"closing a peer raised {error!r}")
        return faults
