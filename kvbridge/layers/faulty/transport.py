"""`FaultyTransport`: any transport, with faults between the core and the slices of its work.

An event is a slice that did something: a slice that had nothing to do is no event, however often the core asks, so
that the count does not depend on the speed of a machine. A backend whose own thread moves the bytes has one event, its
end; a fault at the moment "asked" strikes while that thread works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvbridge.abc import Move, MoveState
from kvbridge.errors import TransportError
from kvbridge.layers.faulty.payload import spoil
from kvbridge.layers.faulty.plan import MOMENTS, Event, Faults, Kind
from kvbridge.layers.passing import PassingHeld, PassingLanding, PassingTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.abc import Held, Landing, Transport
    from kvbridge.control.link import Link
    from kvbridge.memory import Payload, Spec

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
        self._outcome: MoveState | None = None  # of a slice, that nobody has heard of yet
        self._spoils: list[Event] = []
        self._failure: TransportError | None = None
        self._aborted = False

    def step(self) -> MoveState:
        """Do a slice, unless a fault keeps it from being done, or its outcome from being told."""
        if self._aborted:
            state, self._outcome = self._outcome, None
            return state if state is MoveState.DONE else self._step()
        if self._failure is not None:
            return self._end(self._failure)
        event = self._event = self._event or self._plan.take()
        if self._faulted(event):
            return self._strike(event)
        state, self._outcome = self._outcome, None
        if state is None:
            state = self._step()
            self._plan.strike(event, "asked")
            if state is not MoveState.WAIT:
                self._plan.strike(event, "moved")
            if self._faulted(event):
                self._outcome = state
                return self._strike(event)
        return self._told(event, state)

    def _faulted(self, event: Event) -> bool:
        return not self._aborted and (event.waits() or event.struck("fail"))

    def _strike(self, event: Event) -> MoveState:
        if event.waits() or not event.struck("fail"):  # a delay may have ended since it was asked
            return MoveState.WAIT
        self._failure = TransportError(f"fault injected at slice {event.index}")
        if self._outcome is MoveState.DONE:
            raise self._failure
        self._stop()
        return self._end(self._failure)

    def _told(self, event: Event, state: MoveState) -> MoveState:
        if state is not MoveState.WAIT:
            self._spoils.append(event)
            self._event = None
        if state is MoveState.DONE and self._out is not None:
            for spoiling in self._spoils:
                spoil(self._out, spoiling)
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


class FaultyHeld(PassingHeld):
    """A held payload whose slices of preparing, and of being written, go through plans."""

    def __init__(self, inner: Held, hold: Faults | None, write: Faults | None) -> None:
        super().__init__(inner)
        self._write = write
        self._passage = _Passage(hold or Faults(), inner.step, lambda: None)

    def step(self) -> MoveState:
        """Do a slice of preparing."""
        return self._passage.step()

    def write(self, link: Link, accepted: bytes) -> Move:
        """Start a move, whose slices go through a plan."""
        return FaultyMove(self.inner.write(link, accepted), self._write)


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


class FaultyLanding(PassingLanding):
    """A landing whose slices go through a plan."""

    def __init__(self, inner: Landing, plan: Faults | None, out: Payload) -> None:
        super().__init__(inner)
        self._passage = _Passage(plan or Faults(), inner.step, inner.abort, out)

    def step(self) -> MoveState:
        """Do a slice."""
        return self._passage.step()

    def abort(self) -> None:
        """Ask for an end."""
        self._passage.abort()


class FaultyTransport(PassingTransport):
    """A transport with faults. It answers to the name of the one inside, and its pipes and buffers are faulty too.

    Where the producer moves the bytes a landing has no slice that does something: `land` strikes little then.

    Args:
        inner: The transport. Reach what is special about it through `inner`.
        hold: Strikes slices of `Held.step`.
        land: Strikes slices of `Landing.step`; "corrupt" and "truncate" spoil the destination once it is filled.
        write: Strikes slices of the moves that `Held.write` starts.

    Raises:
        ConfigError: A plan has a fault that cannot happen there.
    """

    def __init__(
        self,
        inner: Transport[Any],
        *,
        hold: Faults | None = None,
        land: Faults | None = None,
        write: Faults | None = None,
    ) -> None:
        super().__init__(inner)
        for plan, possible, where in (
            (hold, STEP_KINDS, "a held payload"),
            (land, LAND_KINDS, "a landing"),
            (write, STEP_KINDS, "a move of the producer"),
        ):
            if plan is not None:
                plan.check(possible, where, moments=MOMENTS)
        self._plans = (hold, land, write)

    def hold(self, payload: Payload) -> Held:
        """Make a payload reachable, with faults."""
        hold, _, write = self._plans
        return FaultyHeld(self.inner.hold(payload), hold, write)

    def land(self, link: Link, spec: Spec, descriptor: bytes, out: Payload, skip: int) -> Landing:
        """Prepare to take a value, with faults."""
        _, land, _ = self._plans
        return FaultyLanding(self.inner.land(link, spec, descriptor, out, skip), land, out)
