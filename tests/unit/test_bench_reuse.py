"""`kvbridge bench reuse` without an engine: what is measured, what is printed of it, and what is found to be wrong."""

from __future__ import annotations

import importlib.util
import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from kvbridge.bench import reuse, reuse_copies, reuse_lookups
from kvbridge.bench.reuse_copies import Copies
from kvbridge.bench.reuse_lookups import Lookups
from kvbridge.cli.main import main
from kvbridge.errors import ConfigError, TransportError
from kvbridge_vllm.bench.first_tokens import Answer, FirstTokens, Length
from kvbridge_vllm.bench.model import MODEL, kv_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from kvbridge.memory import Pages


def text(table: Table) -> str:
    out = io.StringIO()
    Console(file=out, width=160).print(table)
    return out.getvalue()


def ignore(_: str) -> None:
    pass


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse_copies, "VALUE", 1 << 20)
    monkeypatch.setattr(reuse_copies, "PAGES", (16 << 10, 64 << 10))
    monkeypatch.setattr(reuse_lookups, "SAMPLE", 200)


@pytest.mark.usefixtures("small")
def test_copies_are_measured_in_every_layout_beside_a_plain_one() -> None:
    part = Copies(rounds=2)
    rows = part.measure(ignore)
    assert [(row["page_bytes"], row["layout"]) for row in rows] == [
        (page, layout) for page in (16 << 10, 64 << 10) for layout in reuse_copies.LAYOUTS
    ]
    assert all(len(row[f"{way}_ratios"]) == 2 and row[f"{way}_ratio"] > 0 for row in rows for way in ("save", "load"))
    assert "both scattered" in text(part.table(rows))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("saves", [True, False])
def test_a_copy_that_is_wrong_is_no_figure(monkeypatch: pytest.MonkeyPatch, *, saves: bool) -> None:
    right = reuse_copies.move

    def wrong(pool: Any, source: Pages, target: Pages) -> float:
        seconds = right(pool, source, target)
        if (target.regions[0] in pool.regions) is saves:
            target.regions[-1].rows()[target.block_ids[-1][-1], 0] += 1
        return seconds

    monkeypatch.setattr(reuse_copies, "move", wrong)
    with pytest.raises(TransportError, match="in the slots" if saves else "loaded"):
        Copies(rounds=1).measure(ignore)


def test_memory_is_aligned_as_an_engines_is() -> None:
    for nbytes in (1, 1000, 1 << 20, 64 << 20):
        found = reuse_copies.aligned(nbytes)
        assert (found.nbytes, found.dtype, found.ctypes.data % reuse_copies.ALIGNMENT) == (nbytes, np.uint8, 0)


@pytest.mark.usefixtures("small")
def test_lookups_are_measured_for_each_policy_at_each_size() -> None:
    part = Lookups(rounds=2, held=(50, 500), policies=["lru", "s3fifo", reuse_lookups.SHARED])
    rows = part.measure(ignore)
    assert [(row["policy"], row["held"]) for row in rows[1:]] == [
        (what, held)
        for policy in ("lru", "s3fifo", "shared")
        for held in (50, 500)
        for what in (reuse_lookups.FOUND, policy)
    ]
    by_size = {row["held"]: row for row in rows}
    assert set(by_size[50]["seconds_per_key"]) == {"1"}, "no request asks for more keys than there are"
    assert set(by_size[500]["seconds_per_key"]) == {"1", "100"}
    assert all(100 < row["bytes_per_key"] < 2000 for row in rows[1:])
    assert "s3fifo" in text(part.table(rows))


def test_nothing_stays_pinned_by_a_lookup() -> None:
    catalog, nbytes = reuse_lookups._full("lru", 100, 0)
    assert nbytes > 100 * reuse_lookups.KEY_BYTES
    assert (len(catalog), catalog.used, catalog.filling) == (100, 100, 0)
    assert reuse_lookups._look_up(catalog, reuse_lookups._names(0, 100, reuse_lookups.KEY_BYTES), 7, 1, pins=True) >= 0
    assert catalog.pinned == 0


class Fixed(reuse.Part):
    name = "fixed"
    definitions = "a figure that is always 1"

    def __init__(self, *, right: bool = True, error: Exception | None = None) -> None:
        self._right, self._error = right, error

    def measure(self, tell: Any) -> reuse.Rows:
        tell("measuring")
        if self._error is not None:
            raise self._error
        return [{"figure": 1}]

    def table(self, rows: reuse.Rows) -> Table:
        return Lookups(1).table([]) if not rows else Copies(1).table([])

    def right(self, rows: reuse.Rows) -> bool:
        return self._right


def test_a_figure_is_defined_before_it_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reuse.run([Fixed()], str(tmp_path / "figures.json")) == 0
    said = capsys.readouterr().out
    assert said.index("always 1") < said.index("of memcpy")
    found = json.loads((tmp_path / "figures.json").read_text())
    assert found["fixed"] == [{"figure": 1}]
    assert {"kvbridge", "machine"} <= set(found)


def test_what_is_wrong_or_fails_is_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert reuse.run([Fixed(right=False)], None) == 1
    assert reuse.run([Fixed(error=ConfigError("no [room] at all"))], None) == 1
    assert "the benchmark ended: no [room] at all" in capsys.readouterr().out
    assert reuse.run([Fixed()], "/no/such/folder/figures.json") == 1


def test_an_answer_counts_only_if_it_came_from_where_it_had_to() -> None:
    length = Length(100)
    assert len(length.prompt(0)) == 101
    assert length.prompt(0) == length.prompt(0) != length.prompt(1)
    assert max(length.prompt(0)) < MODEL["vocab_size"]
    length.expected = "t1 t2"
    length.look("reused", Answer(0.1, "t1 t2", 96))
    length.look("local", Answer(0.1, "t1 t2", 96))
    length.look("computed", Answer(1.0, "t7", 0))
    assert not length.wrong
    length.look("reused", Answer(0.1, "t1 t3", 96))
    length.look("reused", Answer(0.1, "t1 t2", 0))
    length.look("computed", Answer(1.0, "t7", 32))
    assert [one.split(":")[0] for one in length.wrong] == ["reused", "reused", "computed"]


def test_what_an_engine_answered_is_shown_with_what_was_wrong() -> None:
    part = FirstTokens([512, 2048], rounds=2)
    rows = []
    for length in part._lengths:
        length.seconds = {"computed": [1.0, 3.0], "reused": [0.1, 0.1], "local": [0.05, 0.05]}
        length.plain = [0.01, 0.01]
        rows.append(length.row())
    assert part.right(rows)
    assert rows[0]["kv_bytes"] == 512 * kv_bytes("bfloat16") == 16 << 20
    assert "20.0 x" in text(part.table(rows))
    assert text(part.table(rows)).count("4 of 4") == 2
    rows[1]["wrong"] = ["reused: the answer is another"]
    assert not part.right(rows)
    assert "another" in text(part.table(rows))


@pytest.mark.parametrize("value", ["", "many", "0", "512,-1"])
def test_lengths_that_are_none_are_usage_errors(value: str) -> None:
    result = CliRunner().invoke(main, ["bench", "reuse", "--tokens", value])
    assert result.exit_code == 2
    assert "--tokens" in result.output


def test_without_vllm_the_engine_has_to_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    result = CliRunner().invoke(main, ["bench", "reuse"])
    assert result.exit_code == 2
    assert "--no-engine" in result.output
