"""What was seen of each operation at each size, and the rows that are made of it."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import zmq

from kvbridge.bench.buffer.engine import Spent, name_of
from kvbridge.bench.remote import Served
from kvbridge.buffers.over_pipes import CHANNEL
from kvbridge.control.messages import Select, decode, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

MESSAGES = 1_000
"""Plain messages between two looks at the clock."""

Rows = list[dict[str, Any]]


class Case(NamedTuple):
    """An operation at a size."""

    part: str
    operation: str
    size: int


class Sample(NamedTuple):
    """What one operation took in one round, and a plain message in that round: seconds, of the clock or processor."""

    seconds: float
    cpu: float
    message: float


class Floor(Served):
    """Two plain sockets, in a process of their own: what a message costs without kvbridge's endpoints."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router, self._dealer = self._context.socket(zmq.ROUTER), self._context.socket(zmq.DEALER)
        self._router.bind("tcp://127.0.0.1:*")
        self._dealer.connect(self._router.getsockopt_string(zmq.LAST_ENDPOINT))
        self.message()

    def message(self) -> float:
        """Return the processor time of one message: encoded, sent over loopback, received and decoded."""
        started = time.process_time()
        for index in range(MESSAGES):
            self._dealer.send(encode(Select(CHANNEL, index, name_of("plain", index), b"", take=True, wait=1)))
            decode(self._router.recv_multipart()[1])
        return (time.process_time() - started) / MESSAGES

    def close(self) -> None:
        """Close both."""
        self._context.destroy(linger=0)


class Tally:
    """Samples of one part.

    Args:
        part: Its name.

    Attributes:
        message: Processor time of a plain message in the present round.
        counts: Whether what is added counts, or only warms up.
    """

    def __init__(self, part: str) -> None:
        self._part = part
        self._samples: dict[Case, list[Sample]] = {}
        self.message = 0.0
        self.counts = True

    def add(self, operation: str, size: int, count: int, *spent: Spent) -> None:
        """Take down what `count` operations took; the first is whose clock counts, processor time is that of all."""
        if not self.counts:
            return
        case = Case(self._part, operation, size)
        sample = Sample(spent[0].seconds / count, max(0.0, sum(one.cpu for one in spent)) / count, self.message)
        self._samples.setdefault(case, []).append(sample)

    def rows(self) -> Rows:
        """Summarize: the operations in the order in which they were measured, each at all sizes."""
        names = list(dict.fromkeys(case.operation for case in self._samples))
        cases = sorted(self._samples, key=lambda case: (names.index(case.operation), case.size))
        return [self._row(case, next(one for one in cases if one.operation == case.operation)) for case in cases]

    def _row(self, case: Case, smallest: Case) -> dict[str, Any]:
        samples, least = self._samples[case], self._samples[smallest]
        messages = [one.cpu / one.message for one in samples]
        return {
            **case._asdict(),
            "per_s": 1 / statistics.median(one.seconds for one in samples),
            "cpu_seconds": statistics.median(one.cpu for one in samples),
            "cpu_seconds_rounds": [one.cpu for one in samples],
            "messages": statistics.median(messages),
            "messages_rounds": messages,
            "of_smallest": _ratio([one.cpu for one in samples], [one.cpu for one in least]),
        }


def _ratio(some: Sequence[float], least: Sequence[float]) -> float:
    return statistics.median(one / max(other, 1e-9) for one, other in zip(some, least, strict=True))
