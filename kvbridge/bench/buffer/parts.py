"""What is measured: the processes of each size of one part, kept alive side by side, and a round of operations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from kvbridge.bench.buffer.engine import Engine, Spent, since
from kvbridge.bench.buffer.tally import Rows, Tally
from kvbridge.bench.remote import Remote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import ExitStack

    from kvbridge.bench.remote import Served

SAMPLE = 2_000
"""Operations between two looks at the clock."""

ONE_BY_ONE = 300
"""The same, of those that are done one at a time."""

FLIGHT = 64
"""Keys that are taken at one time, where it is more than one."""


class Part(ABC):
    """One thing that grows: how much is held, or by how many.

    Args:
        sizes: How large it is, ascending.
        stack: Where its processes are closed.
        tell: Hears what is going on.
    """

    name: str
    noun: str
    """What is counted, in the plural."""

    def __init__(self, sizes: Sequence[int], stack: ExitStack, tell: Callable[[str], None]) -> None:
        self.sizes = sizes
        self.tally = Tally(self.name)
        self.standing: Rows = []
        self._stack = stack
        self._tell = tell

    @abstractmethod
    def prepare(self) -> None:
        """Start the processes, and let them hold what they are to hold."""

    @abstractmethod
    def measure(self, size: int, number: int) -> None:
        """Do one round at one size."""

    def found(self) -> tuple[Rows, Rows]:
        """Return the rows of operations, and those of what is held."""
        return self.tally.rows(), self.standing

    def start(self, kind: type[Served], name: str) -> Remote:
        """Start a process."""
        remote = Remote(kind, name=name)
        self._stack.callback(remote.close)
        remote.wait_ready()
        return remote

    def tell(self, size: int, what: str) -> None:
        """Say what is going on."""
        self._tell(f"{size:,} {self.noun}: {what}")

    def stand(self, size: int, engine: Remote, before: Any, **more: float) -> None:
        """Take down what each key or peer takes of an engine's process."""
        after = engine.call("standing")
        self.standing.append(
            {"part": self.name, "size": size, "bytes_each": (after.nbytes - before.nbytes) / size, **more}
        )

    def both(self, operation: str, size: int, count: int, home: Remote, other: Remote, call: Sequence[Any]) -> None:
        """Let one engine do something that costs another one, too, and take down what both spend."""
        before = home.call("used")
        spent = other.call(*call)
        self.tally.add(operation, size, count, spent, since(before, home.call("used")))


class Keys(Part):
    """One producer that holds keys, and one consumer."""

    name = "keys"
    noun = "keys"

    def prepare(self) -> None:
        """Fill a producer of each size."""
        self._consumer = self.start(Engine, "consumer")
        self._homes: dict[int, tuple[Remote, str]] = {}
        for size in self.sizes:
            self.tell(size, "filling")
            home = self.start(Engine, f"producer of {size} keys")
            before = home.call("standing")
            home.call("insert", "held", size)
            self.stand(size, home, before, collect_seconds=home.call("collect"))
            self._homes[size] = home, home.call("address")

    def measure(self, size: int, number: int) -> None:
        """Insert, look up, take one by one and many at a time, drop, and let expire."""
        (home, address), tag = self._homes[size], f"r{number}"
        self.tell(size, f"round {number}")
        self.tally.add("insert", size, SAMPLE, home.call("insert", tag, SAMPLE))
        asked = 10 * SAMPLE
        call = ["contains", [address], ["held"], size, asked, number]
        self.both("contains, of a batch", size, asked, home, self._consumer, call)
        self.both("drop", size, SAMPLE, home, self._consumer, ["drop", address, tag, SAMPLE])
        for operation, flight, count in (
            ("take, one at a time", 1, ONE_BY_ONE),
            (f"take, {FLIGHT} at a time", FLIGHT, SAMPLE),
        ):
            home.call("insert", f"{tag}f{flight}", count)
            call = ["take", [address], [f"{tag}f{flight}"], count, count, flight]
            self.both(operation, size, count, home, self._consumer, call)
        self.tally.add("expire", size, SAMPLE, home.call("expire", f"{tag}x", SAMPLE))


class Waiting(Part):
    """One producer whom a consumer has asked for keys that are not there yet."""

    name = "waiting"
    noun = "waiting questions"

    def prepare(self) -> None:
        """Ask for keys that do not come."""
        self._engines: dict[int, tuple[Remote, Remote, str]] = {}
        for size in self.sizes:
            self.tell(size, "asking")
            home, consumer = self.start(Engine, "producer"), self.start(Engine, "consumer")
            address = home.call("address")
            before = home.call("standing")
            consumer.call("ask_early", address, "never", size)
            self.stand(size, home, before)
            self._engines[size] = home, consumer, address

    def measure(self, size: int, number: int) -> None:
        """Ask for keys, insert them, and have them; then ask for others, and take the questions back."""
        (home, consumer, address), tag, count = self._engines[size], f"r{number}", SAMPLE // 4
        self.tell(size, f"round {number}")
        before = home.call("used")
        asked = consumer.call("ask_early", address, tag, count)
        consumer.begin("await_early", tag)
        inserted = home.call("insert", tag, count)
        waited = consumer.end()
        whole = Spent(asked.seconds + max(inserted.seconds, waited.seconds), asked.cpu + waited.cpu)
        self.tally.add("ask, then insert", size, count, whole, since(before, home.call("used")))
        consumer.call("ask_early", address, f"{tag}c", count)
        self.both("cancel", size, count, home, consumer, ["cancel_early", address, f"{tag}c", count])
