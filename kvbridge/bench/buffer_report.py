"""The report of `kvbridge bench buffer`, as typed structs."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from kvbridge.bench import report
from kvbridge.bench.figures import in_bytes, in_time
from kvbridge.bench.report import Amount, Count, Figure, Positive, Words

WORDS = Words(
    "operation",
    "processor time",
    "a message",
    "the change of the ratio to a plain message in the same round",
    {},
)

Times = Annotated[list[Amount], Meta(min_length=1)]

SOLID = 1_000
"""Keys or peers below which the memory of each says little: a process takes memory by the page, and by the arena."""

NOUNS = {
    "keys": ("key", "keys"),
    "waiting": ("waiting question", "waiting questions"),
    "consumers": ("consumer", "consumers"),
    "producers": ("producer", "producers"),
}
"""What grows in each part."""


def _size(part: str, size: int) -> str:
    one, many = NOUNS.get(part, (part, part))
    return f"{size:,} {one if size == 1 else many}"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """An operation at a size."""

    part: str
    operation: str
    size: Count
    per_s: Positive
    cpu_seconds: Amount
    cpu_seconds_rounds: Times
    messages: Amount
    messages_rounds: Times
    of_smallest: Amount

    @property
    def key(self) -> tuple[str, str, int]:
        """What this is about."""
        return self.part, self.operation, self.size

    @property
    def case(self) -> str:
        """Say at what size."""
        return _size(self.part, self.size)


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What each key or peer of a part takes, at a size."""

    part: str
    size: Count
    bytes_each: float
    files_each: Amount | None = None
    idle_share: Amount | None = None
    collect_seconds: Amount | None = None
    keys: Count | None = None

    @property
    def case(self) -> str:
        """Say at what size."""
        return _size(self.part, self.size)


class Report(report.Report, frozen=True, kw_only=True):
    """A run of the benchmark."""

    rows: Annotated[list[Row], Meta(min_length=1)]
    held: list[Held] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        """Refuse two rows about the same."""
        if len({row.key for row in self.rows}) < len(self.rows):
            raise ValueError("two rows are about the same operation")

    @property
    def parts(self) -> list[str]:
        """The parts, in the order in which they were measured."""
        return list(dict.fromkeys(row.part for row in self.rows))

    def figures(self) -> list[Figure]:
        """Return the processor time of each operation, where there was any to be seen, and the memory of a key."""
        found = [
            Figure(row.operation, row.case, row.cpu_seconds_rounds, row.messages_rounds, row.messages, form=in_time)
            for row in self.rows
            if min(row.cpu_seconds_rounds) > 0 and row.messages > 0
        ]
        return found + [
            Figure("memory of each", one.case, [one.bytes_each], [], 0.0, form=lambda nbytes: in_bytes(round(nbytes)))
            for one in self.held
            if one.bytes_each > 0 and one.size >= SOLID
        ]
