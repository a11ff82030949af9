"""The file that a benchmark writes with `--json`: what all have in common. It may be from elsewhere: all is checked."""

from __future__ import annotations

import importlib
import json
from abc import abstractmethod
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

import kvbridge
from kvbridge.bench.figures import number
from kvbridge.bench.machine import describe_machine
from kvbridge.errors import KVBridgeError
from kvbridge.plain import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

KINDS = {name: f"kvbridge.bench.{name}_report" for name in ("transfer", "serve", "buffer")}
"""The benchmarks, and the module of each that has its `Report`, and its `WORDS`."""

EXPECTED = f"a report that `kvbridge bench {', '.join(KINDS)}` wrote with --json"

Count = Annotated[int, Meta(ge=1, le=1 << 60)]
Positive = Annotated[float, Meta(gt=0, le=1e18)]
Amount = Annotated[float, Meta(ge=0, le=1e18)]
Signed = Annotated[float, Meta(ge=-1e18, le=1e18)]
Rounds = Annotated[list[Positive], Meta(min_length=1)]


class Words(NamedTuple):
    """How a comparison of two reports of a kind is worded.

    Attributes:
        who: What stands in the first column.
        figure: What is compared.
        reference: What the ratio is a ratio to.
        about: What the ratio is, in a sentence.
        more: Other columns, and what they mean.
    """

    who: str
    figure: str
    reference: str
    about: str
    more: dict[str, str]


class Figure(NamedTuple):
    """One figure that two reports may have in common.

    Attributes:
        who: Whose it is.
        case: What it is a figure of. Both together are the same in two reports where it can be compared.
        rounds: Its values, one for each round.
        ratios: Its ratios to the reference of the same round; empty where a report has none.
        ratio: Their median; 0 where there is nothing to compare with.
        rises: Whether more is better.
        form: Writes it.
        more: Values of the other columns.
    """

    who: str
    case: str
    rounds: list[float]
    ratios: list[float]
    ratio: float
    rises: bool = False
    form: Callable[[float], str] = number
    more: tuple[float, ...] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a benchmark."""

    benchmark: str
    kvbridge: str
    when: str
    machine: dict[str, Any]
    profile: str = ""
    rounds: Count
    definitions: dict[str, str]

    @abstractmethod
    def figures(self) -> list[Figure]:
        """Return what can be compared with another report of the kind."""


def describe(
    benchmark: str, rows: Sequence[Mapping[str, Any]], rounds: int, definitions: Mapping[str, str], **more: Any
) -> dict[str, Any]:
    """Make a report: figures, and what they were got with."""
    return {
        "benchmark": benchmark,
        "kvbridge": kvbridge.__version__,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        **more,
        "rounds": rounds,
        "definitions": dict(definitions),
        "rows": list(rows),
    }


def write(report: dict[str, Any], json_file: Path | None, html_file: Path | None) -> None:
    """Write a report where it is wanted.

    Raises:
        KVBridgeError: It is not complete.
        OSError: A file cannot be written.
    """
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if html_file is not None:
        from kvbridge.bench.page import write_page  # noqa: PLC0415 - rarely wanted

        write_page(html_file, report)


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
    """Check what was read, or made by `describe`.

    Args:
        found: Values of JSON.
        name: What a message calls it.

    Raises:
        KVBridgeError: It is no report of a benchmark that is known here.
    """
    benchmark = found.get("benchmark") if isinstance(found, dict) else None
    if not isinstance(benchmark, str) or benchmark not in KINDS:
        said = "does not say of which benchmark it is" if benchmark is None else f"is of the benchmark {benchmark!r}"
        raise KVBridgeError(
            plain(f"{name} {said}; expected {EXPECTED}: figures of the other benchmarks are not supported here")
        )
    kind: type[Report] = importlib.import_module(KINDS[benchmark]).Report
    try:
        return msgspec.convert(found, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise KVBridgeError(plain(f"{name} is no report of {benchmark}: {error}; expected {EXPECTED}")) from error


def words(report: Report) -> Words:
    """Return how a comparison of reports of this kind is worded."""
    found: Words = importlib.import_module(KINDS[report.benchmark]).WORDS
    return found
