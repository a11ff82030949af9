"""The file that `kvbridge bench transfer --json` writes, as typed structs. It may be from elsewhere: all is checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from kvbridge.errors import KVBridgeError
from kvbridge.plain import plain

if TYPE_CHECKING:
    from pathlib import Path

EXPECTED = "a report that `kvbridge bench transfer --json` wrote"

_Count = Annotated[int, Meta(ge=1, le=1 << 60)]
_Positive = Annotated[float, Meta(gt=0, le=1e18)]
_Amount = Annotated[float, Meta(ge=0, le=1e18)]
_Signed = Annotated[float, Meta(ge=-1e18, le=1e18)]


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


class Seconds(msgspec.Struct, frozen=True):
    """How long single hand-overs took."""

    p50: _Positive
    p90: _Positive
    p99: _Positive


class CpuSeconds(msgspec.Struct, frozen=True):
    """Processor time of each side."""

    producer: _Amount
    consumer: _Amount


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one case of one backend. What they mean, the report itself says (`Report.definitions`).

    Where several values are in flight, there is neither a socket nor a raw library to compare with.
    """

    backend: str
    layout: str
    nbytes: _Count = msgspec.field(name="bytes")
    flight: _Count = msgspec.field(name="in_flight")
    count: _Count
    seconds: Seconds
    gb_per_s: _Positive
    gb_per_s_rounds: Annotated[list[_Positive], Meta(min_length=1)]
    memcpy_gb_per_s: _Positive
    of_memcpy: _Positive
    cpu: CpuSeconds = msgspec.field(name="cpu_seconds_per_gib")
    socket_seconds: _Positive | None = None
    of_socket: _Positive | None = None
    raw_seconds: _Positive | None = None
    of_raw: _Positive | None = None
    added_to_raw: _Signed | None = msgspec.field(name="added_to_raw_seconds", default=None)

    @property
    def group(self) -> Group:
        """The chart that this belongs to."""
        return Group(self.layout, self.flight)

    @property
    def key(self) -> CaseKey:
        """What this is about."""
        return CaseKey(self.backend, self.group, self.nbytes)


class Report(msgspec.Struct, frozen=True):
    """A run of the benchmark."""

    benchmark: str
    kvbridge: str
    when: str
    machine: dict[str, Any]
    profile: str
    rounds: _Count
    definitions: dict[str, str]
    rows: Annotated[list[Row], Meta(min_length=1)]

    def __post_init__(self) -> None:
        """Refuse two rows about the same."""
        if len(self.by_key()) < len(self.rows):
            raise ValueError("two rows are about the same case")

    def by_key(self) -> dict[CaseKey, Row]:
        """Return each row by what it is about."""
        return {row.key: row for row in self.rows}

    @property
    def backends(self) -> list[str]:
        """The backends, in the order in which they were measured."""
        return list(dict.fromkeys(row.backend for row in self.rows))


def read(path: Path) -> Report:
    """Read a report.

    Raises:
        KVBridgeError: The file cannot be read, or holds something else. The message names it.
    """
    try:
        found = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise KVBridgeError(f"cannot read {path}: {error.strerror or error}; expected {EXPECTED}") from error
    except (ValueError, RecursionError) as error:
        raise KVBridgeError(f"{path} is no JSON: {error}; expected {EXPECTED}") from error
    return parse(found, str(path))


def parse(found: object, name: str = "this") -> Report:
    """Check what was read, or made by `kvbridge.bench.transfer.describe`.

    Args:
        found: Values of JSON.
        name: What a message calls it.

    Raises:
        KVBridgeError: It is no report of this benchmark.
    """
    benchmark = found.get("benchmark") if isinstance(found, dict) else None
    if benchmark != "transfer":
        said = "does not say of which benchmark it is" if benchmark is None else f"is of the benchmark {benchmark!r}"
        raise KVBridgeError(
            plain(f"{name} {said}; expected {EXPECTED}: figures of the other benchmarks are not supported here")
        )
    try:
        return msgspec.convert(found, Report)
    except (msgspec.ValidationError, RecursionError) as error:
        raise KVBridgeError(plain(f"{name} is no report of transfers: {error}; expected {EXPECTED}")) from error
