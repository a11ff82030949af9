"""Wrappers of a transport that pass everything on: what a layer changes is what its subclasses say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from kvbridge.abc import Held, Landing, Move, MoveState, Transport
from kvbridge.capabilities import Capabilities, Probe

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from kvbridge.abc import SlotPool
    from kvbridge.control.link import Link
    from kvbridge.memory import Payload, Region, Spec


class _Described:
    """Has the descriptor of what is inside, whenever that is set."""

    inner: Held | Landing

    @property
    def descriptor(self) -> bytes:
        """What the inner one says now."""
        return self.inner.descriptor

    @descriptor.setter
    def descriptor(self, value: bytes) -> None:
        self.inner.descriptor = value


class PassingHeld(_Described, Held):
    """A held payload that passes everything on."""

    inner: Held

    def __init__(self, inner: Held) -> None:
        self.inner = inner

    def step(self) -> MoveState:
        """Do a slice of preparing."""
        return self.inner.step()

    def write(self, link: Link, accepted: bytes) -> Move:
        """Start a move."""
        return self.inner.write(link, accepted)

    def release(self) -> None:
        """Give back what the held payload uses."""
        self.inner.release()


class PassingMove(Move):
    """A move that passes everything on."""

    def __init__(self, inner: Move) -> None:
        self.inner = inner

    def step(self) -> MoveState:
        """Do a slice."""
        return self.inner.step()

    def abort(self) -> None:
        """Ask for an end."""
        self.inner.abort()


class PassingLanding(_Described, PassingMove, Landing):
    """A landing that passes everything on."""

    inner: Landing

    def release(self) -> None:
        """Give back what the landing uses."""
        self.inner.release()


class PassingTransport(Transport[Any]):
    """A transport that passes everything on. It answers to the name of the one inside.

    Args:
        inner: The transport. Reach what is special about it through `inner`.
    """

    name: ClassVar[str] = "passing"
    Options: ClassVar[type[msgspec.Struct]] = msgspec.Struct

    def __init__(self, inner: Transport[Any]) -> None:
        super().__init__(inner.options)
        self.inner = inner
        # What is a fact of a class there is one of the instance here.
        vars(self).update(name=inner.name, Options=inner.Options, probe=inner.probe)

    @classmethod
    def probe(cls, options: msgspec.Struct) -> Probe:
        """Say that the class alone can do nothing; an instance answers for the transport inside."""
        del options
        return Probe(ok=False, reason="a layer needs a transport: make an instance around one")

    @property
    def capabilities(self) -> Capabilities:
        """Flags and limits of the transport inside."""
        return self.inner.capabilities

    def card(self) -> bytes:
        """Return the card of the transport inside."""
        return self.inner.card()

    def accepts(self, card: bytes) -> str | None:
        """Ask the transport inside."""
        return self.inner.accepts(card)

    def register(self, regions: Sequence[Region]) -> None:
        """Tell the transport inside."""
        self.inner.register(regions)

    def hold(self, payload: Payload) -> Held:
        """Make a payload reachable."""
        return self.inner.hold(payload)

    def land(self, link: Link, spec: Spec, descriptor: bytes, out: Payload, skip: int) -> Landing:
        """Prepare to take a value."""
        return self.inner.land(link, spec, descriptor, out, skip)

    def open_pool(self, like: Sequence[Region], slots: int, memory: NDArray[np.uint8] | None = None) -> SlotPool:
        """Open slots of the transport inside."""
        return self.inner.open_pool(like, slots, memory)

    def close(self) -> None:
        """Close the transport inside."""
        self.inner.close()
