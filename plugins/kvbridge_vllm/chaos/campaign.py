"""`Campaign`: carries a schedule out: sends requests and lets faults strike, each at its time."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from kvbridge_vllm.chaos.clients import DEADLINE, Clients
from kvbridge_vllm.chaos.cluster import READY_TIMEOUT
from kvbridge_vllm.chaos.strikes import Strikes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from kvbridge_vllm.chaos.cluster import Cluster
    from kvbridge_vllm.chaos.oracle import Known
    from kvbridge_vllm.chaos.outcomes import Outcome, Record
    from kvbridge_vllm.chaos.schedule import Schedule

CLIENTS = 6
"""Requests under way at a time, at most."""

TICK = 0.05
"""Seconds between two looks at what is due."""


class Campaign:
    """One run of a schedule on a cluster that is ready.

    Args:
        schedule: What happens.
        known: The prompt and the right answer of each request.
        cluster: To whom.
        model: Name of the model.
        record: Where everything is taken down.
        tell: Called with what is going on.
    """

    def __init__(
        self,
        schedule: Schedule,
        known: Sequence[Known],
        cluster: Cluster,
        model: str,
        record: Record,
        tell: Callable[[str], None],
    ) -> None:
        self._schedule = schedule
        self._known = known
        self._record = record
        self._tell = tell
        self._began = time.monotonic()
        self._stood = 0.0
        self.clients = Clients(cluster, model, self.clock)
        self._strikes = Strikes(cluster, record, self.clock)
        self._pool = ThreadPoolExecutor(CLIENTS, "chaos-client")
        self._sent: list[Future[Outcome]] = []

    def clock(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self._began

    def run(self) -> None:
        """Carry the schedule out, then wait until all engines that were killed serve again and all requests ended."""
        self._began = time.monotonic()
        try:
            self._follow()
            self._settle()
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)
        ended = [future.result() for future in self._sent if future.done() and not future.cancelled()]
        self._record.outcomes.extend(ended)
        if len(ended) < len(self._schedule.requests):
            missing = len(self._schedule.requests) - len(ended)
            self._record.broken.append(f"{missing} requests have not ended {self.clock():.0f} s after the beginning")
        self._record.facts["seconds"] = self.clock()
        self._record.facts["of which waiting for engines to start"] = self._stood

    def _follow(self) -> None:
        """Do everything at its time.

        The schedule stands still, for requests and new faults, while an engine takes longer to start than the schedule
        takes for granted: else a slow machine would soon have nobody left to ask. Faults last as long as they last.
        """
        coming = self._beginnings()
        while coming or self._strikes.lasting:
            now = self.clock()
            self._strikes.watch()
            while coming and self.clock() - self._stood >= coming[-1][0]:
                coming.pop()[1]()
            time.sleep(TICK)
            if self._strikes.overdue:
                self._stood += self.clock() - now
            self._say()

    def _beginnings(self) -> list[tuple[float, Callable[[], None]]]:
        """List what begins, the last first."""
        found: list[tuple[float, Callable[[], None]]] = [
            (request.at, lambda number=number: self._send(number))  # type: ignore[misc]
            for number, request in enumerate(self._schedule.requests)
        ]
        found += [(fault.at, lambda fault=fault: self._strikes.begin(fault)) for fault in self._schedule.faults]  # type: ignore[misc]
        return sorted(found, key=lambda one: one[0], reverse=True)

    def _send(self, number: int) -> None:
        request = self._schedule.requests[number]
        self._sent.append(self._pool.submit(self.clients.send, request, *self._known[number]))

    def _settle(self) -> None:
        """Wait for requests and for engines that start: the faults are over."""
        deadline = self.clock() + DEADLINE + READY_TIMEOUT
        while self.clock() < deadline and (self._strikes.starting or not all(one.done() for one in self._sent)):
            self._strikes.watch()
            time.sleep(TICK)
            self._say()

    def _say(self) -> None:
        done = sum(one.done() for one in self._sent)
        waits = ", waiting for an engine to start" if self._strikes.overdue else ""
        faults = len(self._record.struck)
        self._tell(f"{self.clock():.0f} s: {done} of {len(self._schedule.requests)} requests, {faults} faults{waits}")
