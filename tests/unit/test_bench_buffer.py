"""`kvbridge bench buffer`: every operation does what it is measured for, peers are peers, the report says it all."""

from __future__ import annotations

import json
from contextlib import contextmanager
from multiprocessing import spawn
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from kvbridge.abc import Key
from kvbridge.bench.buffer import crowd, engine, parts, peers, run
from kvbridge.bench.buffer.crowd import Crowd
from kvbridge.bench.buffer.engine import VALUE, Engine, Spent, name_of
from kvbridge.bench.buffer.run import PROFILES, Profile
from kvbridge.bench.buffer.tally import Floor, Tally
from kvbridge.bench.compare import changes
from kvbridge.bench.page import write_page
from kvbridge.bench.remote import Remote, Served
from kvbridge.bench.report import parse as parse_report
from kvbridge.cli.main import main
from kvbridge.errors import KeyConsumedError, KeyDroppedError, KVBridgeError
from tests.html_tree import parse
from tests.nodes import eventually
from tests.peers import _without_main
from tests.sample_bench_reports import STEADY, buffer_report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep processes from importing pytest, which is the main module here."""
    monkeypatch.setattr(spawn, "get_preparation_data", _without_main)


@contextmanager
def closing(*served: Served) -> Iterator[None]:
    try:
        yield
    finally:
        for one in served:
            one.close()


@contextmanager
def remote(kind: type[Served]) -> Iterator[Remote]:
    one = Remote(kind, name="one")
    try:
        one.wait_ready()
        yield one
    finally:
        one.close()


def stats(of: Engine) -> dict[str, float]:
    return dict(of._buffer.stats())


def test_operations_leave_what_is_held_as_it_was() -> None:
    home, other = Engine(), Engine()
    with closing(other, home):
        before = stats(home)
        home.insert("held", 50)
        home.insert("new", 30)
        assert stats(home)["entries"] == 80
        other.contains([home.address()], ["held"], 50, 700, 1)
        other.take([home.address()], ["new"], 30, 20, 7)
        eventually(lambda: stats(home).get("taken") == 20, 5, lambda: f"{stats(home)}")
        other.drop(home.address(), "new", 30)
        assert stats(home)["dropped"] == before["dropped"] + 10
        assert stats(home)["entries"] == 50
        (key,) = [Key(name_of("new", index), home.address()) for index in (0,)]
        with pytest.raises((KeyConsumedError, KeyDroppedError)):
            other._buffer.drop_select(key, VALUE.copy()).wait(5)


def test_keys_expire_and_their_processor_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "EXPIRES", 0.05)
    with closing(home := Engine()):
        home.insert("held", 5)
        spent = home.expire("x", 40)
        assert stats(home)["expired"] == 40
        assert stats(home)["entries"] == 5
        assert spent.cpu == spent.seconds


def test_a_question_that_is_early_is_answered_or_taken_back() -> None:
    home, other = Engine(), Engine()
    with closing(other, home):
        other.ask_early(home.address(), "late", 30)
        assert len(home._buffer._shelf._questions) == 30
        other.cancel_early(home.address(), "late", 10)
        assert len(home._buffer._shelf._questions) == 20
        with pytest.raises(KVBridgeError):
            other.contains([home.address()], ["late"], 30, 30, 0)
        home.insert("late", 30)
        other.await_early("late")
        eventually(lambda: stats(home).get("taken") == 20, 5, lambda: f"{stats(home)}")


def test_a_key_that_is_missing_is_no_figure() -> None:
    with closing(home := Engine()):
        home.insert("held", 5)
        with pytest.raises(KVBridgeError, match="not found"):
            home.contains([""], ["held"], 6, 600, 0)
        with pytest.raises(KeyConsumedError):
            home.take([""] * 2, ["held"] * 2, 5, 10, 1)


def test_a_crowd_takes_as_many_peers() -> None:
    with remote(Crowd) as many, closing(home := Engine()):
        home.insert("held", 20)
        home.insert("new", 40)
        many.call("join", home.address(), 30)
        assert len(home._endpoint._inbound.links()) == 30
        assert len({link.peer.name for link in home._endpoint.links()}) == 30
        many.call("ask", "held", 20, 1200)
        many.call("take", "new", 40, 8)
        eventually(lambda: stats(home).get("taken") == 40, 5, lambda: f"{stats(home)}")
        assert stats(home)["entries"] == 20
        with pytest.raises(KVBridgeError, match="not answered"):
            many.call("ask", "held", 21, 1200)


def test_a_crowd_gives_each_key_once_as_many_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    with remote(Crowd) as many, closing(other := Engine()):
        addresses = many.call("listen", 30)
        other.dial(addresses)
        assert len({link.peer.name for link in other._endpoint.links()}) == 30
        tags = [f"t{index}" for index in range(30)]
        many.call("hold", tags, 3)
        other.contains(addresses, tags, 3, 2000, 0)
        other.take(addresses, tags, 3, 60, 16)
        assert many.call("held") == 30
        with pytest.raises(KVBridgeError):
            other.take(addresses, tags, 3, 60, 16)


def test_peers_of_a_crowd_stay_alive_while_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    with remote(Crowd) as many, closing(home := Engine()):
        home._endpoint.hung_after = 3 * crowd.PING_INTERVAL
        many.call("join", home.address(), 5)
        spent = home.idle(6 * crowd.PING_INTERVAL)
        assert spent.cpu >= 0
        assert 1 <= spent.beats <= 7
        assert len(home._endpoint._inbound.links()) == 5


class Broken(Served):
    """Cannot do what it is asked for."""

    def fail(self) -> None:
        raise KVBridgeError("as it was told")

    def close(self) -> None:
        pass


class Unmade(Broken):
    def __init__(self) -> None:
        raise KVBridgeError("it cannot be made")


def test_what_fails_in_another_process_is_said_here() -> None:
    with remote(Broken) as one:
        for _ in range(2):
            with pytest.raises(KVBridgeError, match="one: as it was told"):
                one.call("fail")
    with pytest.raises(KVBridgeError, match="it cannot be made"), remote(Unmade):
        pass


def test_a_plain_message_takes_processor_time() -> None:
    with closing(floor := Floor()):
        assert floor.message() > 0


def test_the_figures_of_an_operation() -> None:
    tally = Tally("keys")
    tally.counts = False
    tally.add("insert", 10, 1, Spent(9.0, 9.0))
    tally.counts = True
    for message, cpu in ((0.1, 3.0), (0.2, 4.0), (0.1, 5.0)):
        tally.message = message
        tally.add("insert", 10, 10, Spent(20.0, cpu), Spent(99.0, 1.0))
        tally.add("insert", 1000, 10, Spent(40.0, 2 * cpu), Spent(99.0, 2.0))
    small, large = tally.rows()
    assert (small["part"], small["operation"], small["size"]) == ("keys", "insert", 10)
    assert (small["per_s"], large["per_s"]) == (0.5, 0.25)
    assert small["cpu_seconds_rounds"] == pytest.approx([0.4, 0.5, 0.6])
    assert small["cpu_seconds"] == pytest.approx(0.5)
    assert small["messages_rounds"] == pytest.approx([4.0, 2.5, 6.0])
    assert small["messages"] == pytest.approx(4.0)
    assert (small["of_smallest"], large["of_smallest"]) == pytest.approx((1.0, 2.0))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (parts, peers):
        monkeypatch.setattr(module, "SAMPLE", 40)
        monkeypatch.setattr(module, "ONE_BY_ONE", 5)
    monkeypatch.setattr(peers, "IDLE", 0.05)
    monkeypatch.setitem(PROFILES, "quick", Profile((10, 50), (20,), (8,), 10))


@pytest.mark.usefixtures("small")
def test_all_parts_are_measured_and_written_down(tmp_path: Path) -> None:
    out, page = tmp_path / "report.json", tmp_path / "page.html"
    done = CliRunner().invoke(main, ["bench", "buffer", "--rounds", "1", "--json", str(out), "--html", str(page)])
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    assert set(found) >= {"benchmark", "machine", "kvbridge", "definitions", "rounds", "profile", "when", "held"}
    sizes: dict[str, set[int]] = {}
    operations: dict[str, list[str]] = {}
    for row in found["rows"]:
        sizes.setdefault(row["part"], set()).add(row["size"])
        operations.setdefault(row["part"], []).append(row["operation"])
    assert sizes == {"keys": {10, 50}, "waiting": {20}, "consumers": {8}, "producers": {8}}
    takes = ["contains, of a batch", "take, one at a time", "take, 64 at a time"]
    assert {part: list(dict.fromkeys(names)) for part, names in operations.items()} == {
        "keys": ["insert", takes[0], "drop", *takes[1:], "expire"],
        "waiting": ["ask, then insert", "cancel"],
        "consumers": takes,
        "producers": takes,
    }
    assert {len(row["cpu_seconds_rounds"]) for row in found["rows"]} == {1}, "the round that warms up does not count"
    held = {(one["part"], one["size"]): one for one in found["held"]}
    assert held["producers", 8]["keys"] == 80
    assert held["consumers", 8]["files_each"] >= 1
    assert held["keys", 50]["collect_seconds"] > 0
    said = " ".join(done.output.split())
    assert said.index("moves nothing") < said.index("keys: 1 interleaved rounds")
    assert parse(page.read_text()).all("h1")[0].words == "What keys and peers cost in the control plane"


def test_what_fails_is_the_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def failing(*_: Any) -> None:
        raise KVBridgeError("a key [that] is held was not found")

    monkeypatch.setattr(run, "measure", failing)
    done = CliRunner().invoke(main, ["bench", "buffer"])
    assert done.exit_code == 1
    assert "the benchmark ended: a key [that] is held was not found" in done.output
    found = buffer_report()
    monkeypatch.setattr(run, "measure", lambda *_: {"rows": found["rows"], "held": found["held"]})
    done = CliRunner().invoke(main, ["bench", "buffer", "--json", str(tmp_path / "none" / "x.json")])
    assert done.exit_code == 1
    assert "producers: 5 interleaved rounds" in done.output
    assert "the report was not written" in done.output


def test_the_scale_that_is_documented_is_the_one_that_is_measured() -> None:
    scale = PROFILES["scale"]
    assert max(scale.peers) * scale.each == 10_000_000
    assert max(scale.peers) == 1_000
    assert max(PROFILES["nightly"].keys) == 1_000_000


def test_the_page_shows_each_operation_beside_all_sizes(tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", buffer_report())
    page = parse((tmp_path / "page.html").read_text())
    charts = page.all("svg", **{"class": "chart"})
    assert len(charts) == 2
    said = [node.words for node in charts[1].all("title")]
    assert "insert, 1 producers: 50.0 µs" in said
    assert "insert, 1,000 producers: 400 µs" in said
    cells = [cell.words for cell in page.all("td")]
    assert {"8.00", "5.00", "25.0%", "500 ms", "2 KiB"} <= set(cells)


def moved(change: Callable[[], dict[str, Any]]) -> dict[tuple[str, str], str]:
    found = changes(parse_report(buffer_report()), parse_report(change()))
    return {(one.figure.who, one.figure.case): one.verdict for one in found}


def test_two_reports_are_compared_by_processor_time_and_memory() -> None:
    assert set(moved(buffer_report).values()) == {"within noise"}
    slower = moved(lambda: buffer_report(slow=1.5))
    assert slower["insert", "100,000 keys"] == "slower"
    assert slower["memory of each", "100,000 keys"] == "within noise"
    assert moved(lambda: buffer_report(slow=2, message=2e-5))["insert", "1 producer"] == "slower, ratio steady"
    assert ("memory of each", "1 producer") not in slower, "a page of memory more or less says nothing of one peer"
    larger = buffer_report()
    larger["held"][1]["bytes_each"] *= 1.5
    assert moved(lambda: larger)["memory of each", "100,000 keys"] == "slower"


def test_two_rows_about_the_same_are_refused() -> None:
    found = buffer_report()
    with pytest.raises(KVBridgeError, match="two rows are about the same operation"):
        parse_report({**found, "rows": found["rows"] * 2})
    assert len(found["rows"][0]["cpu_seconds_rounds"]) == len(STEADY)
