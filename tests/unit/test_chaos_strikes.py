"""Faults begin and end when they are to, on a cluster that only takes down what is done to it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge_vllm.chaos import campaign, strikes
from kvbridge_vllm.chaos.campaign import Campaign
from kvbridge_vllm.chaos.outcomes import Outcome, Record, verdict
from kvbridge_vllm.chaos.schedule import ENGINES, RESTART, Fault, Request, Schedule
from kvbridge_vllm.chaos.strikes import Strikes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class FakeCluster:
    """Engines that are there, healthy or not, as a test says."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []
        self.rules: dict[str, list[Any]] = {}
        self.gone: set[str] = set()
        self.sick: set[str] = set()

    def look(self) -> None:
        pass

    def kill(self, name: str) -> None:
        self.done.append(("kill", name))

    def start(self, name: str) -> None:
        self.done.append(("start", name))

    def stop(self, name: str) -> None:
        self.done.append(("stop", name))

    def go_on(self, name: str) -> None:
        self.done.append(("go on", name))

    def rule(self, name: str, rules: Sequence[Any]) -> None:
        self.rules[name] = list(rules)

    def alive(self, name: str) -> bool:
        return name not in self.gone

    def engine(self, name: str) -> Any:
        class Engine:
            healthy: Callable[[], bool] = staticmethod(lambda: name not in self.sick)

        return Engine()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def world() -> tuple[FakeCluster, Record, Clock, Strikes]:
    cluster, record, clock = FakeCluster(), Record(1, "cpu", "recompute"), Clock()
    return cluster, record, clock, Strikes(cluster, record, clock)  # type: ignore[arg-type]


World = tuple[FakeCluster, Record, Clock, Strikes]


def test_a_killed_engine_is_started_again_and_its_fault_ends_when_it_is_healthy(world: World) -> None:
    cluster, record, clock, found = world
    found.begin(Fault("kill", "decode-0", 0, 2, 0))
    cluster.sick.add("decode-0")
    cluster.gone.add("decode-0")
    found.watch()
    assert cluster.done == [("kill", "decode-0")]
    clock.now = 2.1
    cluster.gone.clear()
    found.watch()
    assert cluster.done == [("kill", "decode-0"), ("start", "decode-0")]
    assert found.starting
    assert record.struck[0].ended is None
    clock.now = RESTART + 1
    assert found.overdue
    cluster.sick.clear()
    found.watch()
    assert record.struck[0].ended == RESTART + 1
    assert not found.starting
    assert not found.overdue
    assert not record.broken


def test_a_stopped_engine_goes_on(world: World) -> None:
    cluster, record, clock, found = world
    found.begin(Fault("stop", "prefill-1", 0, 3, 0))
    clock.now = 2.9
    found.watch()
    assert found.lasting
    clock.now = 3.0
    found.watch()
    assert cluster.done == [("stop", "prefill-1"), ("go on", "prefill-1")]
    assert record.struck[0].ended == 3.0
    assert not found.lasting


def test_rules_of_two_faults_stand_together_and_each_goes_with_its_fault(world: World) -> None:
    cluster, _, clock, found = world
    found.begin(Fault("partition", "prefill-0", 0, 5, 0))
    clock.now = 1.0
    found.begin(Fault("delay", "decode-0", 0, 2, 0.5))
    assert [rule.kind for rule in cluster.rules["decode-0"]] == ["drop", "delay"]
    clock.now = 3.5
    found.watch()
    assert [rule.kind for rule in cluster.rules["decode-0"]] == ["drop"]
    clock.now = 5.0
    found.watch()
    assert cluster.rules == {name: [] for name in ENGINES}


def test_an_engine_that_ends_by_itself_breaks_the_promise_once(world: World) -> None:
    cluster, record, _, found = world
    cluster.gone.add("prefill-0")
    found.watch()
    found.watch()
    assert len(verdict(record)) == 1
    assert "prefill-0 ended by itself" in verdict(record)[0]


def test_an_engine_that_does_not_come_back_breaks_the_promise_and_is_not_waited_for(world: World) -> None:
    cluster, record, clock, found = world
    found.begin(Fault("kill", "decode-1", 0, 1, 0))
    cluster.sick.add("decode-1")
    clock.now = 1.0
    found.watch()
    clock.now = strikes.READY_TIMEOUT + 1
    found.watch()
    assert not found.starting
    assert "decode-1 was not ready" in verdict(record)[0]


class FakeClients:
    """Answers at once, and takes down when each request came."""

    came: list[tuple[int, float]]

    def __init__(self, cluster: Any, model: str, clock: Callable[[], float]) -> None:
        self.clock = clock
        FakeClients.came = []

    def send(self, request: Request, prompt: list[int], expected: Sequence[int]) -> Outcome:
        FakeClients.came.append((request.number, self.clock()))
        return Outcome(request.number, request.way, self.clock(), self.clock(), "right")


def request(number: int, at: float) -> Request:
    return Request(number, at, "router", 5, 0, 0, "prefill-0", "decode-0", "decode-0", 1.0)


class FakeTime:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class FakePool:
    """Runs what it is given at once."""

    def __init__(self, *_: object) -> None:
        pass

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(call(*arguments))
        return future

    def shutdown(self, **_: object) -> None:
        pass


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    monkeypatch.setattr(campaign, "Clients", FakeClients)
    monkeypatch.setattr(campaign, "ThreadPoolExecutor", FakePool)
    passing = FakeTime()
    monkeypatch.setattr(campaign, "time", passing)
    return passing


def carried_out(cluster: FakeCluster, faults: tuple[Fault, ...]) -> Record:
    record = Record(1, "cpu", "recompute")
    schedule = Schedule(1, tuple(request(number, 20.0 * number) for number in range(5)), faults)
    known = [([1], [2])] * 5
    Campaign(schedule, known, cluster, "model", record, lambda _: None).run()  # type: ignore[arg-type]
    return record


@pytest.mark.usefixtures("fake_time")
def test_every_request_is_sent_at_its_time_and_taken_down() -> None:
    record = carried_out(FakeCluster(), (Fault("stop", "decode-0", 1.0, 3.0, 0),))
    assert [one.number for one in record.outcomes] == [0, 1, 2, 3, 4]
    assert [at for _, at in FakeClients.came] == pytest.approx([0, 20, 40, 60, 80], abs=0.2)
    assert record.struck[0].ended == pytest.approx(4.0, abs=0.2)
    assert not verdict(record)


def test_requests_wait_while_an_engine_takes_longer_to_start_than_was_taken_for_granted(
    fake_time: FakeTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster()
    ready = fake_time.now + 150

    def engine(name: str) -> Any:
        class Engine:
            healthy: Callable[[], bool] = staticmethod(lambda: fake_time.now > ready)

        return Engine()

    monkeypatch.setattr(cluster, "engine", engine)
    record = carried_out(cluster, (Fault("kill", "decode-0", 5.0, 1.0, 0),))
    times = dict(FakeClients.came)
    assert times[2] == pytest.approx(40.0, abs=0.2), "the schedule goes on at first"
    stood = 150 - 5 - RESTART
    assert times[3] == pytest.approx(60.0 + stood, abs=1.0), "and stands still while the engine is late"
    assert record.facts["of which waiting for engines to start"] == pytest.approx(stood, abs=1.0)
    assert len(record.outcomes) == 5
