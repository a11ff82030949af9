"""Measure the control plane of the LookupBuffer, print it, and write the report."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kvbridge.bench import report
from kvbridge.bench.buffer.parts import Keys, Part, Waiting
from kvbridge.bench.buffer.peers import Consumers, Producers
from kvbridge.bench.buffer.tally import Floor
from kvbridge.bench.buffer_report import Held, Report, Row
from kvbridge.bench.figures import in_bytes, in_time, number
from kvbridge.bench.remote import Remote
from kvbridge.errors import KVBridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

WIDTH = 120
"""Columns of the tables where no terminal says how many there are."""

WARM_UP = 1
"""Rounds that are not counted."""


class Profile(NamedTuple):
    """How large everything is.

    Attributes:
        keys: Held by one producer.
        waiting: Questions for keys that are not there.
        peers: Of one engine.
        each: Keys that each producer holds.
    """

    keys: tuple[int, ...]
    waiting: tuple[int, ...]
    peers: tuple[int, ...]
    each: int


PROFILES = {
    "quick": Profile((1_000, 100_000), (1, 1_000), (1, 1_000), 100),
    "nightly": Profile((1_000, 100_000, 1_000_000), (1, 1_000, 8_000), (1, 10, 100, 1_000), 100),
    "scale": Profile((10_000,), (), (1, 1_000), 10_000),
}

DEFINITIONS = {
    "what runs": "engines are real endpoints with a LookupBuffer, each in a process of its own, over a transport that "
    "moves nothing: the control plane alone. Crowds of peers speak its protocol from one more process, with a "
    "connection, a handshake and heartbeats for each peer; what they spend does not count.",
    "CPU": "processor time of an operation, all threads: of both engines, or of the one that has a crowd. While "
    "they are measured the crowd sends no heartbeats, and the engine's own are taken off. "
    "Median of the rounds.",
    "per s": "operations per second of the clock, whatever waits for whom.",
    "messages": "CPU over that of one plain message in the same round, between two ZeroMQ sockets of one process: "
    "encoded, sent over loopback, received, decoded. Median of the rounds' ratios.",
    "of least": "CPU over that of the smallest size, in the same round: 1 where the cost does not grow. Median.",
    "take": "drop_select: a question, an offer, and the word that it was taken. Keys are chosen at random.",
    "ask, then insert": "drop_select of a key that is not there yet, and its insert, which answers it; beside so many "
    "questions for keys that never come. cancel: such a question is taken back.",
    "contains, drop": "of 500 keys in a message; figures are of one key. All others are of one operation.",
    "expire": "keys whose lease ends while nobody asks for them.",
    "memory": "growth of the private memory (RssAnon) of the engine's process, garbage collected, over keys or peers.",
    "full collection": "time of one full collection of Python's garbage, in which nothing else of the process runs.",
    "idle": "share of one core that an engine spends on heartbeats when nobody asks for anything. Median.",
}
"""What the figures mean. They are printed before the figures."""


def run(profile: str, rounds: int, *, json_file: Path | None = None, html_file: Path | None = None) -> int:
    """Measure and print, and write the report where it is wanted.

    Returns:
        The exit code: 0, or 1 where an operation failed or a file could not be written.
    """
    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    for name, text in DEFINITIONS.items():
        console.print(f"[bold]{name}[/]: {text}")
    try:
        with Progress(console=console, transient=True, auto_refresh=False) as progress:
            task = progress.add_task("starting", total=None)

            def tell(done: int, total: int, what: str) -> None:
                progress.update(task, completed=done, total=total, description=what, refresh=True)

            found = measure(PROFILES[profile], rounds, tell)
    except KVBridgeError as error:
        console.print(f"the benchmark ended: {error}", markup=False, soft_wrap=True)
        return 1
    described = describe(found, profile, rounds)
    show(described, console)
    try:
        report.write(described, json_file, html_file)
    except (KVBridgeError, OSError) as error:
        console.print(f"the report was not written: {error}", markup=False, soft_wrap=True)
        return 1
    return 0


def describe(found: dict[str, Any], profile: str, rounds: int) -> dict[str, Any]:
    """Make the report of what `measure` found."""
    return report.describe("buffer", found["rows"], rounds, DEFINITIONS, profile=profile, held=found["held"])


def measure(profile: Profile, rounds: int, tell: Callable[[int, int, str], None]) -> dict[str, Any]:
    """Measure all parts, one after the other, each of its sizes in every round.

    Args:
        profile: How large everything is.
        rounds: How often; one more comes before that is not counted.
        tell: Hears how much is done, of how much, and what is next.

    Raises:
        KVBridgeError: An operation failed.
    """
    found: dict[str, Any] = {"rows": [], "held": []}
    sizes = (profile.keys, profile.waiting, profile.peers, profile.peers)
    total = sum(map(len, sizes)) * (rounds + WARM_UP)
    done = 0

    def say(what: str) -> None:
        tell(done, total, what)

    with ExitStack() as outer:
        floor = Remote(Floor, name="plain sockets")
        outer.callback(floor.close)
        floor.wait_ready()
        kinds: list[Callable[[ExitStack], Part]] = [
            lambda stack: Keys(profile.keys, stack, say),
            lambda stack: Waiting(profile.waiting, stack, say),
            lambda stack: Consumers(profile.peers, stack, say, profile.each),
            lambda stack: Producers(profile.peers, stack, say, profile.each),
        ]
        for kind in kinds:
            with ExitStack() as stack:
                part = kind(stack)
                part.prepare()
                for number in range(rounds + WARM_UP):
                    for size in part.sizes:
                        part.tally.message = floor.call("message")
                        part.tally.counts = number >= WARM_UP
                        part.measure(size, number)
                        done += 1
                rows, held = part.found()
                found["rows"] += rows
                found["held"] += held
    return found


def show(described: dict[str, Any], console: Console) -> None:
    """Print the tables."""
    found = report.parse(described)
    if not isinstance(found, Report):
        raise TypeError(type(found))
    for part in found.parts:
        console.print(_operations([row for row in found.rows if row.part == part], found.rounds))
    console.print(_held(found.held))


def _operations(rows: Sequence[Row], rounds: int) -> Table:
    table = Table("operation", "beside", title=f"{rows[0].part}: {rounds} interleaved rounds", title_justify="left")
    for name in ("per s", "CPU", "messages", "of least"):
        table.add_column(name, justify="right", no_wrap=True)
    for index, row in enumerate(rows):
        last = index + 1 == len(rows) or rows[index + 1].operation != row.operation
        table.add_row(
            row.operation,
            row.case,
            f"{row.per_s:,.0f}",
            f"[bold]{in_time(row.cpu_seconds)}[/]",
            number(row.messages),
            f"{row.of_smallest:.2f}",
            end_section=last,
        )
    return table


def _held(rows: Sequence[Held]) -> Table:
    table = Table("held", title="what each takes", title_justify="left")
    for name in ("memory of each", "open files", "idle, of a core", "full collection"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.case,
            in_bytes(round(max(0.0, row.bytes_each))),
            "" if row.files_each is None else f"{row.files_each:.1f}",
            "" if row.idle_share is None else f"{row.idle_share:.1%}",
            "" if row.collect_seconds is None else in_time(row.collect_seconds),
        )
    return table
