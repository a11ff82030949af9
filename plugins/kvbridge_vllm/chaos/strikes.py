"""`Strikes`: begins faults and ends them, and keeps in sight which engines should be there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kvbridge_vllm.chaos.cluster import READY_TIMEOUT
from kvbridge_vllm.chaos.outcomes import Struck
from kvbridge_vllm.chaos.rules import Rule
from kvbridge_vllm.chaos.schedule import ENGINES, RESTART

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge_vllm.chaos.cluster import Cluster
    from kvbridge_vllm.chaos.outcomes import Record
    from kvbridge_vllm.chaos.schedule import Fault

LOOK = 2.0
"""Seconds between two looks at what processes have."""

ENOUGH = 1.0
"""Seconds by which rules outlast their fault, whose end takes them away: an engine is not to wait for the run."""


class Strikes:
    """The faults of one run, on a cluster that is ready. Belongs to one thread.

    Args:
        cluster: To whom they happen.
        record: Where they are taken down.
        clock: Seconds since the beginning.
    """

    def __init__(self, cluster: Cluster, record: Record, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._record = record
        self._clock = clock
        self._lasting: list[Struck] = []
        self._starting: dict[str, Struck] = {}
        self._dead: set[str] = set()
        self._standing: dict[str, list[tuple[Struck, Rule]]] = {name: [] for name in ENGINES}
        self._looked = 0.0

    @property
    def lasting(self) -> bool:
        """Whether a fault has not ceased yet."""
        return bool(self._lasting)

    @property
    def starting(self) -> bool:
        """Whether an engine that was killed does not serve again yet."""
        return bool(self._starting)

    @property
    def overdue(self) -> bool:
        """Whether an engine takes longer to start than the schedule takes for granted."""
        return any(self._clock() > one.began + RESTART for one in self._starting.values())

    def begin(self, fault: Fault) -> None:
        """Let a fault strike."""
        struck = Struck(fault, self._clock())
        self._record.struck.append(struck)
        self._lasting.append(struck)
        if fault.kind == "kill":
            self._cluster.look()
            self._dead.add(fault.engine)
            self._cluster.kill(fault.engine)
        elif fault.kind == "stop":
            self._cluster.stop(fault.engine)
        else:
            for name, rule in rules_of(fault, time.monotonic() + fault.seconds + ENOUGH).items():
                self._standing[name].append((struck, rule))
                self._write(name)

    def watch(self) -> None:
        """End the faults whose time is over, and look at every engine."""
        now = self._clock()
        for struck in [one for one in self._lasting if now >= one.began + one.fault.seconds]:
            self._lasting.remove(struck)
            self._end(struck)
        for name, struck in list(self._starting.items()):
            self._look_at_start(name, struck)
        for name in ENGINES:
            if name not in self._dead and not self._cluster.alive(name):
                self._give_up(name, "ended by itself")
        if self._clock() - self._looked > LOOK:
            self._looked = self._clock()
            self._cluster.look()

    def _end(self, struck: Struck) -> None:
        fault = struck.fault
        if fault.kind == "kill":
            self._cluster.start(fault.engine)
            self._dead.discard(fault.engine)
            self._starting[fault.engine] = struck
            return
        if fault.kind == "stop":
            self._cluster.go_on(fault.engine)
        for name, standing in self._standing.items():
            kept = [one for one in standing if one[0] is not struck]
            if len(kept) != len(standing):
                self._standing[name] = kept
                self._write(name)
        struck.ended = self._clock()

    def _look_at_start(self, name: str, struck: Struck) -> None:
        if self._cluster.engine(name).healthy():
            struck.ended = self._clock()
            del self._starting[name]
        elif self._clock() > struck.began + READY_TIMEOUT:
            self._give_up(name, f"was not ready {READY_TIMEOUT:g} s after it was killed and started again")

    def _give_up(self, name: str, why: str) -> None:
        self._dead.add(name)
        self._starting.pop(name, None)
        self._record.broken.append(f"{name} {why}, {self._clock():.1f} s after the beginning")

    def _write(self, name: str) -> None:
        self._cluster.rule(name, [rule for _, rule in self._standing[name]])


def rules_of(fault: Fault, until: float) -> dict[str, Rule]:
    """Return the rules of a fault for each engine that is to have some."""
    if fault.kind == "delay":
        return {fault.engine: Rule("delay", until, seconds=fault.amount)}
    if fault.kind == "loss":
        return {fault.engine: Rule("drop", until, share=fault.amount)}
    if fault.kind == "partition":
        return {name: Rule("drop", until, sender="" if name == fault.engine else fault.engine) for name in ENGINES}
    return {}
