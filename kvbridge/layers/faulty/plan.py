"""`Faults`: a plan of what goes wrong, and when. The same plan and the same events give the same faults."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from kvbridge.config import nearest
from kvbridge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

Kind = Literal["pause", "delay", "drop", "duplicate", "reorder", "truncate", "corrupt", "fail", "kill"]
"""What goes wrong: work stops until it is let go on; comes late; is lost; comes twice; comes after its successor;
arrives without its end; arrives with one byte changed; fails with `TransportError`; ends the process, as `kill -9`."""

KINDS: tuple[Kind, ...] = get_args(Kind)

When = Literal["before", "asked", "moved"]
"""At which moment of an event: before it; once the work was asked for it, whatever came of that; once something came of
it, before anybody hears what."""

MOMENTS: tuple[When, ...] = get_args(When)

LATER_KINDS: tuple[Kind, ...] = ("pause", "fail", "kill")
"""What may happen at the later moments."""

RANDOM_DELAY = 0.01
"""Seconds of a delay that was drawn at random."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        kind: What.
        at: Index of the first event that it strikes, from 0.
        count: How many events in a row it strikes; 0 for all from there on.
        seconds: How long a delay is.
        when: At which moment of an event. A slice of a transport's work has three; everything else only the first.

    Raises:
        ConfigError: It says nothing that could happen.
    """

    kind: Kind
    at: int = 0
    count: int = 1
    seconds: float = 0.0
    when: When = "before"

    def __post_init__(self) -> None:
        _check_kind(self.kind)
        if self.at < 0 or self.count < 0 or self.seconds < 0:
            raise ConfigError(f"{self}: found a number below 0, expected indices, counts and seconds from 0 on")
        if (self.kind == "delay") != bool(self.seconds):
            raise ConfigError(f"{self}: a delay needs `seconds`, nothing else has them")
        if self.when not in MOMENTS:
            raise ConfigError(f"there is no moment {self.when!r}: {nearest(self.when, MOMENTS)}")
        if self.when != "before" and self.kind not in LATER_KINDS:
            raise ConfigError(f"{self}: only {', '.join(LATER_KINDS)} may strike later than before an event")

    def strikes(self, index: int) -> bool:
        """Whether it strikes the event of this index."""
        return self.at <= index and (not self.count or index < self.at + self.count)


class Event:
    """One event and what strikes it. Made by `Faults.take`.

    Attributes:
        index: Its number in its plan.
    """

    def __init__(self, index: int, seed: int) -> None:
        self.index = index
        self.go = threading.Event()
        self.moments: set[When] = set()
        self._kinds: set[Kind] = set()
        self._until = 0.0
        self._seed = seed

    def meet(self, faults: Collection[Fault]) -> None:
        """Let faults strike it."""
        self._kinds.update(fault.kind for fault in faults)
        self._until = max(self._until, time.monotonic() + sum(fault.seconds for fault in faults))

    def struck(self, kind: Kind) -> bool:
        """Whether a fault of this kind has struck it."""
        return kind in self._kinds

    def waits(self) -> bool:
        """Whether it is paused or delayed right now."""
        return (self.struck("pause") and not self.go.is_set()) or time.monotonic() < self._until

    def stall(self) -> None:
        """Keep the caller for as long as the event is delayed."""
        time.sleep(max(0.0, self._until - time.monotonic()))

    def position(self, length: int) -> int:
        """Choose one of `length` positions: always the same one for a plan's seed and the event's index."""
        return random.Random(f"{self._seed}/{self.index}").randrange(length)  # noqa: S311 - has to be repeatable


class Faults:
    """A plan. Any thread may use it; wrappers that share one share its count of events.

    Random faults come on top of those that are named. They depend on the seed and the index of an event alone.

    Args:
        *faults: What strikes for certain.
        seed: Seed of everything that is random: which events are struck, which byte is changed.
        rates: For each kind the share of events that it strikes, 0 to 1. Needs a seed.

    Attributes:
        log: `(index, kind)` of everything that struck, in order.
        reached: Set while work is paused, until `open`.
        on_reached: Called when work is paused, on its thread.

    Raises:
        ConfigError: A kind is unknown, or a rate is none.
    """

    def __init__(self, *faults: Fault, seed: int | None = None, rates: Mapping[Kind, float] | None = None) -> None:
        self.log: list[tuple[int, Kind]] = []
        self.reached = threading.Event()
        self.on_reached: Callable[[], None] | None = None
        self._faults = faults
        self._rates = dict(sorted((rates or {}).items()))
        for kind, rate in self._rates.items():
            _check_kind(kind)
            if not 0 <= rate <= 1:
                raise ConfigError(f"the rate of {kind!r} is {rate}, expected 0 to 1")
        if self._rates and seed is None:
            raise ConfigError("random faults without a seed could not be repeated: give one")
        self._seed = seed or 0
        self._random = random.Random(self._seed)  # noqa: S311 - has to be repeatable
        self._lock = threading.Lock()
        self._events = 0
        self._paused: list[Event] = []
        self._over: set[Fault] = set()

    @property
    def events(self) -> int:
        """Number of events so far."""
        return self._events

    @property
    def kinds(self) -> set[Kind]:
        """Every kind that may strike."""
        return {fault.kind for fault in self._faults} | set(self._rates)

    def check(self, possible: Collection[Kind], where: str, *, moments: Collection[When] = MOMENTS[:1]) -> None:
        """Refuse a plan of what cannot happen in a place: a fault that never strikes would pass every test.

        Raises:
            ConfigError: It has a kind, or a moment, that is not among the possible ones.
        """
        for fault in self._faults:
            if fault.when not in moments:
                raise ConfigError(f"{fault}: {where} has no moment {fault.when!r}, expected {', '.join(moments)}")
        for kind in sorted(self.kinds - set(possible)):
            raise ConfigError(f"{kind!r} cannot happen to {where}; expected {', '.join(sorted(possible))}")

    def take(self) -> Event:
        """Number the next event and decide what strikes it. A "kill" strikes here and does not return."""
        with self._lock:
            event = Event(self._events, self._seed)
            self._events += 1
            drawn = [
                Fault(kind, event.index, seconds=RANDOM_DELAY if kind == "delay" else 0.0)
                for kind, rate in self._rates.items()
                if self._random.random() < rate
            ]
        self.strike(event, "before", drawn)
        return event

    def strike(self, event: Event, when: When, drawn: Collection[Fault] = ()) -> None:
        """Let what strikes at this moment of an event strike it, once. A "kill" does not return."""
        with self._lock:
            if when in event.moments:
                return
            event.moments.add(when)
            named = [
                fault
                for fault in self._faults
                if fault.when == when and fault.strikes(event.index) and fault not in self._over
            ]
            faults = [*named, *drawn]
            event.meet(faults)
            self.log.extend((event.index, fault.kind) for fault in faults)
            kinds = {fault.kind for fault in faults}
            if "pause" in kinds:
                event.go.clear()
                self._paused.append(event)
        if "kill" in kinds:
            os.kill(os.getpid(), signal.SIGKILL)
        if "pause" in kinds:
            self.reached.set()
            if self.on_reached is not None:
                self.on_reached()

    def open(self) -> None:
        """Let everything go on that is paused. A pause that was let go is over, whatever its count."""
        with self._lock:
            self.reached.clear()
            paused, self._paused = self._paused, []
            for event in paused:
                event.go.set()
                self._over.update(
                    fault
                    for fault in self._faults
                    if fault.kind == "pause" and fault.when in event.moments and fault.strikes(event.index)
                )


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ConfigError(f"there is no fault {kind!r}: {nearest(kind, KINDS)}")
