"""`FaultyTransport`: any transport, with faults between the core and the slices of its work.

An event is a slice that did something: a slice that had nothing to do is no event, however often the core asks, so
that the count does not depend on the speed of a machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from kvbridge.abc import Held, Landing, Move, MoveState, Transport
from kvbridge.capabilities import Capabilities, Probe
from kvbridge.errors import TransportError
from kvbridge.layers.faulty.payload import spoil
from kvbridge.layers.faulty.plan import Event, Faults, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbridge.control.link import Link
    from kvbridge.memory import Payload, Region, Spec

STEP_KINDS: tuple[Kind, ...] = ("pause", "delay", "fail", "kill")
LAND_KINDS: tuple[Kind, ...] = (*STEP_KINDS, "corrupt", "truncate")


class _Passage:
    """The slices of one piece of work on their way through a plan.

    Args:
        plan: The plan.
        step: Does a slice.
        stop: Asks the work for an end.
        out: What is filled by the work, if something is.
    """

    def __init__(
        self, plan: Faults, step: Callable[[], MoveState], stop: Callable[[], None], out: Payload = None
    ) -> None:
        self._plan = plan
        self._step = step
        self._stop = stop
        self._out = out
        self._event: Event | None = None
        self._spoils: list[Event] = []
        self._failure: TransportError | None = None
        self._aborted = False

    def step(self) -> MoveState:
        """Do a slice, unless a fault keeps it from being done."""
        if self._aborted:
            return self._step()
        if self._failure is not None:
            return self._end(self._failure)
        if self._event is None:
            self._event = self._plan.take()
        if self._event.waits():
            return MoveState.WAIT
        if self._event.struck("fail"):
            self._failure = TransportError(f"fault injected at slice {self._event.index}")
            self._stop()
            return self._end(self._failure)
        state = self._step()
        if state is not MoveState.WAIT:
            self._spoils.append(self._event)
            self._event = None
        if state is MoveState.DONE and self._out is not None:
            for event in self._spoils:
                spoil(self._out, event)
        return state

    def _end(self, failure: TransportError) -> MoveState:
        """Go on until the work has ended: a failure before that would give memory away that is still in use."""
        try:
            state = self._step()
        except Exception as error:
            raise failure from error
        if state is MoveState.DONE:
            raise failure
        return state

    def abort(self) -> None:
        """Let the work see its own end from now on: no fault may keep it from that."""
        self._aborted = True
        self._stop()


class FaultyHeld(Held):
    """A held payload whose slices of preparing, and of being written, go through plans."""

    def __init__(self, inner: Held, hold: Faults | None, write: Faults | None) -> None:
        self._inner = inner
        self._write = write
        self._passage = _Passage(hold or Faults(), inner.step, lambda: None)

    @property
    def descriptor(self) -> bytes:
        """What the inner one says now."""
        return self._inner.descriptor

    @descriptor.setter
    def descriptor(self, value: bytes) -> None:
        self._inner.descriptor = value

    def step(self) -> MoveState:
        """Do a slice of preparing."""
        return self._passage.step()

    def write(self, link: Link, accepted: bytes) -> Move:
        """Start a move, whose slices go through a plan."""
        return FaultyMove(self._inner.write(link, accepted), self._write)

    def release(self) -> None:
        """Give back what the held payload uses."""
        self._inner.release()


class FaultyMove(Move):
    """A move whose slices go through a plan."""

    def __init__(self, inner: Move, plan: Faults | None) -> None:
        self._passage = _Passage(plan or Faults(), inner.step, inner.abort)

    def step(self) -> MoveState:
        """Do a slice."""
        return self._passage.step()

    def abort(self) -> None:
        """Ask for an end."""
        self._passage.abort()


class FaultyLanding(Landing):
    """A landing whose slices go through a plan."""

    def __init__(self, inner: Landing, plan: Faults | None, out: Payload) -> None:
        self._inner = inner
        self._passage = _Passage(plan or Faults(), inner.step, inner.abort, out)

    @property
    def descriptor(self) -> bytes:
        """What the inner one says now."""
        return self._inner.descriptor

    @descriptor.setter
    def descriptor(self, value: bytes) -> None:
        self._inner.descriptor = value

    def step(self) -> MoveState:
        """Do a slice."""
        return self._passage.step()

    def abort(self) -> None:
        """Ask for an end."""
        self._passage.abort()


class FaultyTransport(Transport[Any]):
    """A transport with faults. It answers to the name of the one inside, and its pipes and buffers are faulty too.

    Where the producer moves the bytes the core asks no landing for a slice: `land` strikes nothing then.

    Args:
        inner: The transport. Reach what is special about it through `inner`.
        hold: Strikes slices of `Held.step`.
        land: Strikes slices of `Landing.step`; "corrupt" and "truncate" spoil the destination once it is filled.
        write: Strikes slices of the moves that `Held.write` starts.

    Raises:
        ConfigError: A plan has a fault that cannot happen there.
    """

    name: ClassVar[str] = "faulty"
    Options: ClassVar[type[msgspec.Struct]] = msgspec.Struct

    def __init__(
        self,
        inner: Transport[Any],
        *,
        hold: Faults | None = None,
        land: Faults | None = None,
        write: Faults | None = None,
    ) -> None:
        super().__init__(inner.options)
        for plan, possible, where in (
            (hold, STEP_KINDS, "a held payload"),
            (land, LAND_KINDS, "a landing"),
            (write, STEP_KINDS, "a move of the producer"),
        ):
            if plan is not None:
                plan.check(possible, where)
        self.inner = inner
        self._plans = (hold, land, write)
        # What is a fact of a class there is one of the instance here.
        vars(self).update(name=inner.name, Options=inner.Options, probe=inner.probe)

    @classmethod
    def probe(cls, options: msgspec.Struct) -> Probe:
        """Say that the class alone can do nothing; an instance answers for the transport inside."""
        del options
        return Probe(ok=False, reason="faults need a transport: make an instance around one")

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
        """Make a payload reachable, with faults."""
        hold, _, write = self._plans
        return FaultyHeld(self.inner.hold(payload), hold, write)

    def land(self, link: Link, spec: Spec, descriptor: bytes, out: Payload, skip: int) -> Landing:
        """Prepare to take a value, with faults."""
        _, land, _ = self._plans
        return FaultyLanding(self.inner.land(link, spec, descriptor, out, skip), land, out)

    def close(self) -> None:
        """Close the transport inside."""
        self.inner.close()
