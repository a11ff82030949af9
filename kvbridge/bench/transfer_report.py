"""The report of `kvbridge bench transfer`, as typed structs."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from kvbridge.bench import report
from kvbridge.bench.figures import in_bytes
from kvbridge.bench.report import Amount, Count, Figure, Positive, Rounds, Signed, Words

WORDS = Words(
    "backend",
    "GB/s",
    "memcpy",
    "the change of the ratio to a memory copy in the same round",
    {"p50": "the change of the median time of one hand-over. It is not judged."},
)


class Group(NamedTuple):
    """Cases that differ in their size only, and so share a chart."""

    layout: str
    flight: int

    @property
    def words(self) -> str:
        """Say what is handed over."""
        return f"{self.layout}, {'one value' if self.flight == 1 else f'{self.flight} values'} at a time"


class CaseKey(NamedTuple):
    """What a row is about: the same in two reports where the rows can be compared."""

    backend: str
    group: Group
    nbytes: int

    @property
    def words(self) -> str:
        """Say what is handed over."""
        times = f"{self.group.flight} × " if self.group.flight > 1 else ""  # noqa: RUF001 - so many times
        return f"{times}{in_bytes(self.nbytes)} {self.group.layout}"


class Seconds(msgspec.Struct, frozen=True):
    """How long single hand-overs took."""

    p50: Positive
    p90: Positive
    p99: Positive


class CpuSeconds(msgspec.Struct, frozen=True):
    """Processor time of each side."""

    producer: Amount
    consumer: Amount


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one case of one backend. What they mean, the report itself says (`Report.definitions`).

    Where several values are in flight, there is neither a socket nor a raw library to compare with.
    """

    backend: str
    layout: str
    nbytes: Count = msgspec.field(name="bytes")
    flight: Count = msgspec.field(name="in_flight")
    count: Count
    seconds: Seconds
    gb_per_s: Positive
    gb_per_s_rounds: Rounds
    memcpy_gb_per_s: Positive
    of_memcpy: Positive
    of_memcpy_rounds: list[Positive] = msgspec.field(default_factory=list)
    cpu: CpuSeconds = msgspec.field(name="cpu_seconds_per_gib")
    socket_seconds: Positive | None = None
    of_socket: Positive | None = None
    raw_seconds: Positive | None = None
    of_raw: Positive | None = None
    added_to_raw: Signed | None = msgspec.field(name="added_to_raw_seconds", default=None)

    @property
    def group(self) -> Group:
        """The chart that this belongs to."""
        return Group(self.layout, self.flight)

    @property
    def key(self) -> CaseKey:
        """What this is about."""
        return CaseKey(self.backend, self.group, self.nbytes)


class Report(report.Report, frozen=True, kw_only=True):
    """A run of the benchmark."""

    rows: Annotated[list[Row], Meta(min_length=1)]

    def __post_init__(self) -> None:
        """Refuse two rows about the same."""
        if len({row.key for row in self.rows}) < len(self.rows):
            raise ValueError("two rows are about the same case")

    @property
    def backends(self) -> list[str]:
        """The backends, in the order in which they were measured."""
        return list(dict.fromkeys(row.backend for row in self.rows))

    def figures(self) -> list[Figure]:
        """Return the bandwidth of each case."""
        return [
            Figure(
                row.backend,
                row.key.words,
                row.gb_per_s_rounds,
                row.of_memcpy_rounds,
                row.of_memcpy,
                rises=True,
                more=(row.seconds.p50,),
            )
            for row in self.rows
        ]
