"""The report of `kvbridge bench serve`, as typed structs. It needs no engine."""

from __future__ import annotations

import statistics
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from kvbridge.bench import report
from kvbridge.bench.figures import in_time, number
from kvbridge.bench.report import Amount, Count, Figure, Positive, Rounds, Words

WORDS = Words(
    "connector",
    "figure",
    "floor",
    "the change of the ratio of the time to first token to the floor of the same round",
    {},
)


class Load(NamedTuple):
    """So many requests at a time, each with a prompt of so many tokens."""

    tokens: int
    concurrent: int

    @property
    def words(self) -> str:
        """Say it."""
        return f"{self.tokens:,} tokens, {self.concurrent} at a time"


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """What a time to first token is compared with, under one load: seconds of each round.

    Attributes:
        tokens: Of each prompt.
        concurrent: Requests at a time.
        local: Time to first token of an engine that has the prompt's KV in its own prefix cache.
        copied: One plain copy of that KV.
        computed: Time to first token of an engine that computes the prompt.
    """

    tokens: Count
    concurrent: Count
    local: Rounds
    copied: Rounds
    computed: Rounds

    @property
    def load(self) -> Load:
        """The load."""
        return Load(self.tokens, self.concurrent)

    @property
    def rounds(self) -> list[float]:
        """The floor itself in each round: the KV is there, and was copied once."""
        return [local + copied for local, copied in zip(self.local, self.copied, strict=True)]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of one connector under one load. What the figures mean, the report itself says.

    Attributes:
        connector: Its name.
        tokens: Of each prompt.
        concurrent: Requests at a time.
        requests: Requests of all rounds.
        ttft: Seconds to the first token, median of all requests.
        ttft_p95: The same, 95th percentile.
        ttft_rounds: Median of each round.
        of_floor: Median of the rounds' ratios to the floor.
        of_floor_rounds: The ratios.
        between: Seconds between two tokens, median; None where no answer had two.
        per_s: Requests per second, median of the rounds.
        per_s_rounds: Of each round.
        cpu: Processor time of both engines for a request.
        right: Answers that were right.
        wrong: Answers that were not.
    """

    connector: str
    tokens: Count
    concurrent: Count
    requests: Count
    ttft: Positive = msgspec.field(name="ttft_seconds")
    ttft_p95: Positive = msgspec.field(name="ttft_seconds_p95")
    ttft_rounds: Rounds = msgspec.field(name="ttft_seconds_rounds")
    of_floor: Positive
    of_floor_rounds: Rounds
    between: Positive | None = msgspec.field(name="between_tokens_seconds", default=None)
    per_s: Positive = msgspec.field(name="requests_per_s")
    per_s_rounds: Rounds = msgspec.field(name="requests_per_s_rounds")
    cpu: Amount = msgspec.field(name="cpu_seconds_per_request")
    right: Annotated[int, Meta(ge=0)]
    wrong: Annotated[int, Meta(ge=0)]

    @property
    def load(self) -> Load:
        """The load."""
        return Load(self.tokens, self.concurrent)


class Report(report.Report, frozen=True, kw_only=True):
    """A run of the benchmark. `failed`: which connector failed under which load, and why; it has no row for it."""

    dtype: str
    kv_bytes_per_token: Count
    floors: Annotated[list[Floor], Meta(min_length=1)]
    rows: Annotated[list[Row], Meta(min_length=1)]
    failed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse two rows about the same, and one without a floor."""
        if len({(row.connector, row.load) for row in self.rows}) < len(self.rows):
            raise ValueError("two rows are about the same connector and load")
        floors = {floor.load for floor in self.floors}
        if len(floors) < len(self.floors) or not {row.load for row in self.rows} <= floors:
            raise ValueError("each load of a row needs one floor")
        if any(not len(one.local) == len(one.copied) == len(one.computed) for one in self.floors):
            raise ValueError("a floor has different numbers of rounds")

    @property
    def connectors(self) -> list[str]:
        """The connectors, in the order in which they were measured."""
        return list(dict.fromkeys(row.connector for row in self.rows))

    @property
    def wrong(self) -> int:
        """Answers that were wrong, of all."""
        return sum(row.wrong for row in self.rows)

    def floor(self, load: Load) -> Floor:
        """Return the floor of a load."""
        return next(floor for floor in self.floors if floor.load == load)

    def figures(self) -> list[Figure]:
        """Return time to first token and rate of each connector under each load."""
        found = []
        for row in self.rows:
            words = row.load.words
            found.append(
                Figure(
                    row.connector,
                    f"{words}: first token",
                    row.ttft_rounds,
                    row.of_floor_rounds,
                    row.of_floor,
                    form=in_time,
                )
            )
            found.append(Figure(row.connector, f"{words}: rate", row.per_s_rounds, [], 0.0, rises=True, form=_rate))
        return found


def middle(values: list[float]) -> float:
    """Return the median of rounds."""
    return statistics.median(values)


def _rate(value: float) -> str:
    return f"{number(value)}/s"
