"""One engine and a crowd of peers: as a producer whom a thousand consumers ask, and as a consumer of a thousand."""

from __future__ import annotations

import statistics
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from kvbridge.bench.buffer.crowd import Crowd
from kvbridge.bench.buffer.engine import Engine, Spent, since
from kvbridge.bench.buffer.parts import FLIGHT, ONE_BY_ONE, SAMPLE, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import ExitStack

    from kvbridge.bench.buffer.tally import Rows
    from kvbridge.bench.remote import Remote

IDLE = 1.0
"""Seconds for which nobody asks for anything, in each round."""


class _Peers(Part):
    """One engine and a crowd of peers. What the crowd spends does not count.

    Args:
        each: Keys that each producer holds for good.
    """

    def __init__(self, sizes: Sequence[int], stack: ExitStack, tell: Callable[[str], None], each: int) -> None:
        super().__init__(sizes, stack, tell)
        self.each = each
        self._sides: dict[int, tuple[Remote, Remote]] = {}
        self._idle: dict[int, list[float]] = {size: [] for size in sizes}
        self._beat = 0.0

    def prepare(self) -> None:
        """Link each engine with its peers."""
        for size in self.sizes:
            self.tell(size, "linking")
            engine, crowd = self.start(Engine, self.name), self.start(Crowd, f"{size} peers")
            before = engine.call("standing")
            held = self.link(size, engine, crowd)
            files = engine.call("standing").files - before.files
            self.stand(size, engine, before, files_each=files / size, keys=held)
            self._sides[size] = engine, crowd
            self.fill(engine, crowd, size)

    @abstractmethod
    def link(self, size: int, engine: Remote, crowd: Remote) -> int:
        """Link them; return how many keys there will be."""

    def fill(self, engine: Remote, crowd: Remote, size: int) -> None:
        """Make the keys that are held for good."""

    def found(self) -> tuple[Rows, Rows]:
        """Return the rows of operations, and those of what each peer takes."""
        for row in self.standing:
            row["idle_share"] = statistics.median(self._idle[row["size"]])
        return super().found()

    def measure(self, size: int, number: int) -> None:
        """Let all be idle, then the peers alone be silent, and then operate."""
        engine, crowd = self._sides[size]
        self.tell(size, f"round {number}")
        spent = engine.call("idle", IDLE)
        if self.tally.counts:
            self._idle[size].append(spent.cpu / spent.seconds)
        crowd.call("hush")
        spent = engine.call("idle", IDLE)
        self._beat = spent.cpu / max(1, spent.beats)
        self.operate(size, number, engine, crowd)
        crowd.call("speak")

    @abstractmethod
    def operate(self, size: int, number: int, engine: Remote, crowd: Remote) -> None:
        """Do one round of operations."""

    def add(self, operation: str, size: int, count: int, spent: Spent) -> None:
        """Take down what operations took, less what the engine's heartbeats took meanwhile."""
        self.tally.add(operation, size, count, Spent(spent.seconds, spent.cpu - self._beat * spent.beats))


class Consumers(_Peers):
    """One producer with consumers."""

    name = "consumers"
    noun = "consumers of one producer"

    def link(self, size: int, engine: Remote, crowd: Remote) -> int:
        """Let the crowd dial the engine."""
        crowd.call("join", engine.call("address"), size)
        return self.each

    def fill(self, engine: Remote, crowd: Remote, size: int) -> None:
        """Let the engine hold keys."""
        del crowd, size
        engine.call("insert", "held", self.each)

    def operate(self, size: int, number: int, engine: Remote, crowd: Remote) -> None:
        """Let random consumers ask and take."""
        tag = f"r{number}"
        for operation, count, call in (
            ("contains, of a batch", 10 * SAMPLE, ("ask", "held", self.each, 10 * SAMPLE)),
            ("take, one at a time", ONE_BY_ONE, ("take", f"{tag}f1", ONE_BY_ONE, 1)),
            (f"take, {FLIGHT} at a time", SAMPLE, ("take", f"{tag}f{FLIGHT}", SAMPLE, FLIGHT)),
        ):
            if call[0] == "take":
                engine.call("insert", *call[1:3])
            before = engine.call("used")
            seconds = crowd.call(*call)
            self.add(operation, size, count, since(before, engine.call("used"))._replace(seconds=seconds))


class Producers(_Peers):
    """One consumer with producers."""

    name = "producers"
    noun = "producers of one consumer"

    def __init__(self, sizes: Sequence[int], stack: ExitStack, tell: Callable[[str], None], each: int) -> None:
        super().__init__(sizes, stack, tell, each)
        self._addresses: dict[int, list[str]] = {}

    def link(self, size: int, engine: Remote, crowd: Remote) -> int:
        """Let the engine dial the crowd."""
        self._addresses[size] = crowd.call("listen", size)
        engine.call("dial", self._addresses[size])
        return self.each * size

    def fill(self, engine: Remote, crowd: Remote, size: int) -> None:
        """Let each of the crowd hold keys."""
        del engine
        crowd.call("hold", self._tags("held", size), self.each)

    def operate(self, size: int, number: int, engine: Remote, crowd: Remote) -> None:
        """Ask random producers, and take from them."""
        homes = self._addresses[size]
        call: tuple[Any, ...] = (homes, self._tags("held", size), self.each, 10 * SAMPLE, number)
        self.add("contains, of a batch", size, 10 * SAMPLE, engine.call("contains", *call))
        for operation, flight, count in (
            ("take, one at a time", 1, ONE_BY_ONE),
            (f"take, {FLIGHT} at a time", FLIGHT, SAMPLE),
        ):
            tags, each = self._tags(f"r{number}f{flight}", size), -(-count // size)
            crowd.call("hold", tags, each)
            self.add(operation, size, count, engine.call("take", homes, tags, each, count, flight))

    @staticmethod
    def _tags(tag: str, size: int) -> list[str]:
        return [f"{tag}p{index}" for index in range(size)]
