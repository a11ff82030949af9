"""Events of a hand-over: as log lines, as a file of Chrome's format, and as what `kvbridge trace` makes of it."""

from __future__ import annotations

import json
import logging
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from kvbridge import tracing
from kvbridge.abc import Key
from kvbridge.cli.main import main
from kvbridge.errors import ConfigError, KeyConsumedError
from kvbridge_cpu import CpuBackend, CpuOptions
from tests.direct import fresh
from tests.nodes import eventually, pattern
from tests.sides import two_sides

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def heard(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Let log lines reach the test, whatever another one did to the logger."""
    monkeypatch.setattr(logging.getLogger("kvbridge"), "propagate", True)
    caplog.set_level(logging.WARNING, "kvbridge.tracing")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that is written to."""
    tracing.start(tmp_path / "deep" / "trace", "the engine")
    yield tmp_path / "deep" / "trace"
    tracing.stop()


def lines(folder: Path) -> list[dict[str, Any]]:
    (path,) = folder.glob("*.trace.json")
    text = path.read_text()
    assert text.startswith("[\n")
    return [json.loads(line.rstrip(",")) for line in text.splitlines()[1:]]


def steps(folder: Path, name: str) -> list[str]:
    return [f"{event['name']} {event['ph']}" for event in lines(folder) if event.get("id") == name]


def hand_over(keys: list[str]) -> None:
    with two_sides(*(CpuBackend(CpuOptions(capacity="16MiB")) for _ in range(2))) as (producer, consumer):
        for name in keys:
            key = Key(name, producer.endpoint.address)
            inserted = producer.buffer.insert(Key(name), pattern(1, 1000))
            consumer.buffer.drop_select(key, fresh(1000), timeout=5).wait(5)
            inserted.wait(5)
            with pytest.raises(KeyConsumedError):
                consumer.buffer.claim(key, timeout=5).wait(5)
            eventually(lambda: not producer.buffer.stats()["entries"], 5, str)


def test_a_life_is_told_from_its_beginning_to_its_end(folder: Path) -> None:
    hand_over(["k"])
    told = steps(folder, "k")
    for what in ("held", "claim", "offer", "fill"):
        assert told.count(f"{what} b") == told.count(f"{what} e") >= 1, told
    assert told.index("held b") < told.index("offer b") < told.index("fill b") < told.index("offer e")
    assert "missed n" in told
    ends = [event["args"] for event in lines(folder) if event["ph"] == "e" and event["name"] == "claim"]
    assert ends[0] == {"outcome": "done"}
    assert ends[1]["error"].startswith("KeyConsumedError: ")
    held = next(event for event in lines(folder) if event["name"] == "held" and event["ph"] == "e")
    assert "was taken" in held["args"]["why"]


def test_at_debug_level_the_log_tells_it_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "kvbridge.trace"):
        hand_over(["k"])
    assert any(record.getMessage().startswith("k: offer begins to=") for record in caplog.records)


def test_nothing_is_told_where_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    assert not tracing.enabled()
    hand_over(["k"])
    assert not [record for record in caplog.records if record.name == "kvbridge.trace"]


def test_a_file_ends_when_it_is_large(folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(tracing, "MAX_FILE", 1000)
    for number in range(100):
        tracing.mark("something", f"k{number}")
    assert len(lines(folder)) < 20
    assert "ends here: it has more than" in caplog.text
    assert len([record for record in caplog.records if "ends here" in record.getMessage()]) == 1


def test_a_fork_does_not_write_into_its_parents_file(folder: Path) -> None:
    child = os.fork()
    if child == 0:
        tracing.mark("from the fork", "k")
        os._exit(0)
    os.waitpid(child, 0)
    tracing.mark("from the parent", "k")
    assert [event["name"] for event in lines(folder)[1:]] == ["from the parent"]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"the trace cannot be written to .*/file/deep: "):
        tracing.start(tmp_path / "file" / "deep", "x")
    tracing.stop()


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["trace", *arguments], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def test_the_command_lists_lives_and_shows_one(folder: Path, tmp_path: Path) -> None:
    tracing.begin("decode", "request-7", tokens=9)
    tracing.mark("claiming", "request-7", key="k1")
    hand_over(["k1", "k2"])
    tracing.end("decode", "request-7", outcome="loaded")
    code, said = run(str(folder))
    assert code == 0
    (first,) = [line for line in said.splitlines() if line.startswith("k1")]
    assert "request-7" in first
    assert first.rstrip().endswith("loaded")
    assert any(line.startswith("k2") for line in said.splitlines())
    code, life = run(str(folder), "request-7")
    assert code == 0
    assert "the engine" in life
    assert [line for line in life.splitlines() if " held " in line and "begins" in line]
    assert run(str(folder), "k1") == (0, life)
    code, said = run(str(folder), "nobody")
    assert code == 1
    assert "nothing is called 'nobody'" in said
    code, said = run(str(folder), "--json", str(tmp_path / "all.json"))
    assert code == 0
    written = json.loads((tmp_path / "all.json").read_text())
    assert {event["ph"] for event in written} == {"M", "b", "e", "n"}


def test_the_command_says_where_the_time_of_loads_goes(folder: Path) -> None:
    for name in ("r1", "r2"):
        tracing.begin("decode", name)
        tracing.mark("claiming", name, key=f"k-{name}")
        tracing.begin("claim", f"k-{name}")
        tracing.end("claim", f"k-{name}", outcome="done")
        tracing.mark("loading", name, key=f"k-{name}")
        tracing.begin("fill", f"k-{name}")
        time.sleep(0.02)
        tracing.end("fill", f"k-{name}", outcome="done")
        tracing.end("decode", name, outcome="loaded")
    tracing.begin("decode", "r3")
    tracing.end("decode", "r3", outcome="recomputed")
    code, said = run(str(folder))
    assert code == 0
    assert "stage of 2 loads" in said
    (moving,) = [line for line in said.splitlines() if line.startswith("the bytes move")]
    assert float(moving.split()[-2]) >= 20
    assert sum("the engine's" in line for line in said.splitlines()) == 4


def test_the_command_says_what_is_wrong_with_a_folder(tmp_path: Path) -> None:
    code, said = run(str(tmp_path))
    assert code == 2
    assert "no events in" in said
    code, said = run(str(tmp_path / "missing"))
    assert code == 2
    assert "cannot be read" in said


def test_the_end_of_a_file_may_be_torn(folder: Path) -> None:
    tracing.mark("one", "k")
    tracing.stop()
    (path,) = folder.glob("*.trace.json")
    with path.open("a") as file:
        file.write('{"ph": "n", "cat": "kvbr')
    code, said = run(str(folder))
    assert code == 0
    assert "last seen: one" in said
