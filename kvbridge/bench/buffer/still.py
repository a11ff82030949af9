"""`Still`: a transport that moves nothing, so that what is measured is the control plane alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

from kvbridge.abc import Held, Landing, MoveState, Transport
from kvbridge.capabilities import Capabilities, Probe

if TYPE_CHECKING:
    from kvbridge.control.link import Link
    from kvbridge.memory import Payload, Spec


class StillOptions(msgspec.Struct, frozen=True):
    """It has none."""


class _Nothing(Held):
    """A value of which nothing is kept."""

    __slots__ = ()
    descriptor = b""

    def step(self) -> MoveState:
        return MoveState.DONE

    def release(self) -> None:
        pass


class _There(Landing):
    """A value that has arrived at once."""

    def step(self) -> MoveState:
        return MoveState.DONE

    def abort(self) -> None:
        pass


class Still(Transport[StillOptions]):
    """Keys, offers, leases and links are real; bytes are neither kept nor moved."""

    name: ClassVar[str] = "still"
    Options: ClassVar[type[msgspec.Struct]] = StillOptions

    @classmethod
    def probe(cls, options: StillOptions) -> Probe:
        """Say that it works everywhere."""
        del options
        return Probe(ok=True, reason="it moves nothing")

    @property
    def capabilities(self) -> Capabilities:
        """Flags and limits."""
        return _CAPABILITIES

    def hold(self, payload: Payload) -> Held:
        """Keep nothing."""
        del payload
        return _Nothing()

    def land(self, link: Link, spec: Spec, descriptor: bytes, out: Payload, skip: int) -> Landing:
        """Move nothing."""
        del link, spec, descriptor, out, skip
        return _There()

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


_CAPABILITIES = Capabilities.of_transport(mover="consumer", detaches=True)
