"""Plans of faults, and what they do to the moves of a transport."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest

from kvbridge.abc import Key, Landing, MoveState
from kvbridge.errors import CancelledError, ConfigError, TransferTimeoutError, TransportError
from kvbridge.layers.faulty import Fault, Faults, FaultyTransport, faulty_send
from kvbridge.layers.faulty.transport import FaultyHeld, FaultyLanding
from kvbridge.layers.metered import MeteredTransport
from kvbridge.memory import Pages, Region
from kvbridge_cpu import CpuBackend, CpuOptions
from tests.direct import DirectBackend, DirectOptions, fresh
from tests.nodes import MIB, eventually, pattern
from tests.sides import Side, two_ends, two_sides

if TYPE_CHECKING:
    from collections.abc import Callable

NBYTES = 5 * MIB  # three slices


def cpu(**plans: Faults) -> FaultyTransport:
    return FaultyTransport(CpuBackend(CpuOptions(capacity="64MiB")), **plans)


def direct(mover: Any, **plans: Faults) -> FaultyTransport:
    return FaultyTransport(DirectBackend(DirectOptions(mover)), **plans)


def start(producer: Side, consumer: Side, value: Any, out: Any) -> tuple[Any, Any]:
    inserted = producer.buffer.insert(Key("k"), value)
    return inserted, consumer.buffer.drop_select(Key("k", producer.endpoint.address), out)


def pages(nbytes: int, page_bytes: int, ids: list[int]) -> Pages:
    return Pages.of([Region.over(np.zeros(nbytes, dtype=np.uint8), page_bytes)], ids)


def test_a_layer_opens_the_slots_of_the_transport_inside() -> None:
    layer = MeteredTransport(cpu())
    cache = [Region.over(np.arange(4 * 4096, dtype=np.int64).view(np.uint8), 4096)]
    pool = layer.open_pool(cache, 2)
    assert layer.capabilities.slots
    move = pool.copy(Pages.of(cache, [3]), Pages.of(pool.regions, [1]))
    eventually(lambda: move.step() is MoveState.DONE, 5, lambda: "the copy does not end")
    assert (pool.regions[0].rows()[1] == cache[0].rows()[3]).all()
    pool.close()
    layer.close()


# -- the plan -------------------------------------------------------------------------------------------------


def test_a_fault_strikes_the_events_that_it_names() -> None:
    plan = Faults(Fault("fail", at=1), Fault("drop", at=3, count=2), Fault("corrupt", at=6, count=0))
    for _ in range(9):
        plan.take()
    assert plan.events == 9
    assert plan.log == [(1, "fail"), (3, "drop"), (4, "drop"), (6, "corrupt"), (7, "corrupt"), (8, "corrupt")]


def logged(seed: int) -> list[Any]:
    plan = Faults(seed=seed, rates={"drop": 0.2, "corrupt": 0.1, "delay": 0.1})
    positions = [plan.take().position(1000) for _ in range(200)]
    return [plan.log, positions]


def test_a_seed_gives_the_same_faults_again_and_another_one_gives_others() -> None:
    assert logged(1) == logged(1)
    assert logged(1)[0] != logged(2)[0]
    assert logged(1)[1] != logged(2)[1]
    assert 20 < sum(kind == "drop" for _, kind in logged(1)[0]) < 60


def test_a_pause_ends_for_good_and_another_one_can_be_waited_for() -> None:
    plan = Faults(Fault("pause", at=0, count=0), Fault("pause", at=2))
    first = plan.take()
    assert plan.reached.is_set()
    assert first.waits()
    plan.open()
    assert not first.waits()
    assert not plan.reached.is_set()
    assert not plan.take().waits(), "the pause is over, whatever its count"
    assert plan.take().waits()
    assert plan.reached.is_set()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fault("explode"), "no fault 'explode'"),  # type: ignore[arg-type]
        (lambda: Fault("drop", at=-1), "below 0"),
        (lambda: Fault("delay"), "needs `seconds`"),
        (lambda: Fault("drop", seconds=1), "nothing else has them"),
        (lambda: Faults(seed=1, rates={"drop": 2}), "expected 0 to 1"),
        (lambda: Faults(seed=1, rates={"dorp": 1}), "did you mean 'drop'"),  # type: ignore[dict-item]
        (lambda: Faults(rates={"drop": 1}), "seed"),
        (lambda: Fault("pause", when="afterwards"), "no moment 'afterwards'"),  # type: ignore[arg-type]
        (lambda: Fault("corrupt", when="moved"), "only pause, fail, kill may strike later"),
        (lambda: faulty_send(mock.Mock(), Faults(Fault("kill", when="asked"))), "has no moment 'asked'"),
        (lambda: direct("consumer", hold=Faults(Fault("corrupt"))), "cannot happen to a held payload"),
        (lambda: direct("consumer", land=Faults(Fault("drop"))), "cannot happen to a landing"),
        (lambda: direct("consumer", write=Faults(seed=1, rates={"reorder": 0.1})), "cannot happen to a move"),
    ],
)
def test_a_plan_that_means_nothing_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_kill_ends_the_process_as_kill_9_does() -> None:
    code = "from kvbridge.layers.faulty import Fault, Faults; Faults(Fault('kill')).take()"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == -signal.SIGKILL


# -- moves ----------------------------------------------------------------------------------------------------


def test_without_faults_nothing_changes() -> None:
    faulty = cpu()
    inner = faulty.inner
    with two_sides(cpu(), faulty) as (producer, consumer):
        assert (faulty.name, faulty.Options, faulty.options) == ("cpu", CpuOptions, inner.options)
        assert (faulty.capabilities, faulty.card()) == (inner.capabilities, inner.card())
        assert faulty.probe(inner.options) == inner.probe(inner.options)
        assert faulty.accepts(producer.backend.card()) is None
        assert faulty.accepts(b"nonsense") == inner.accepts(b"nonsense") is not None
        out = fresh(NBYTES)
        inserted, taken = start(producer, consumer, pattern(1, NBYTES), out)
        taken.wait(5)
        inserted.wait(5)
        assert np.array_equal(out, pattern(1, NBYTES))
        send, recv = two_ends(producer, consumer)
        posted = [send.post(pattern(seed, 100)) for seed in range(5)]
        for seed in range(5):
            assert np.array_equal(recv.recv_tensor(timeout=5), pattern(seed, 100))
        for transfer in posted:
            transfer.wait(5)


@pytest.mark.parametrize(("mover", "place"), [("consumer", "land"), ("producer", "write")])
def test_a_paused_move_goes_on_when_it_is_let(mover: str, place: str) -> None:
    plan = Faults(Fault("pause", at=4))
    with two_sides(direct(mover, **{place: plan}), direct(mover, **{place: plan})) as (producer, consumer):
        value, out = pattern(1, 10_000), fresh(10_000)
        inserted, taken = start(producer, consumer, value, out)
        assert plan.reached.wait(5)
        with pytest.raises(TransferTimeoutError):
            taken.wait(0.05)
        assert not inserted.poll()
        assert np.array_equal(out[:4000], value[:4000])
        assert not out[4000:].any()
        plan.open()
        taken.wait(5)
        assert np.array_equal(out, value)
        assert plan.events == 10, "a slice that does nothing is no event"


@pytest.mark.parametrize(("mover", "place"), [("consumer", "land"), ("producer", "write")])
def test_a_paused_move_heeds_its_abort(mover: str, place: str) -> None:
    plan = Faults(Fault("pause", at=4))
    with two_sides(direct(mover, **{place: plan}), direct(mover, **{place: plan})) as (producer, consumer):
        inserted, taken = start(producer, consumer, pattern(1, 10_000), fresh(10_000))
        assert plan.reached.wait(5)
        taken.cancel()
        with pytest.raises(CancelledError):
            taken.wait(5)
        inserted.wait(5)


@pytest.mark.parametrize(("mover", "place"), [("consumer", "land"), ("producer", "write")])
@pytest.mark.parametrize("stubborn", [False, True])
def test_a_move_that_fails_has_ended_before_anybody_hears_of_it(mover: str, place: str, stubborn: bool) -> None:
    plan = Faults(Fault("fail", at=2))
    with two_sides(direct(mover, **{place: plan}), direct(mover, **{place: plan})) as (producer, consumer):
        moving = (producer if place == "write" else consumer).backend.inner
        moving.stubborn = stubborn
        inserted, taken = start(producer, consumer, pattern(1, 10_000), fresh(10_000))
        with pytest.raises(TransportError, match="fault injected at slice 2"):
            taken.wait(5)
        inserted.wait(5)
        (copy,) = moving.moves if place == "write" else moving.landings
        assert copy.over
        assert copy.aborted
        assert plan.log == [(2, "fail")]


def test_preparing_can_be_paused_and_can_fail() -> None:
    plan = Faults(Fault("pause", at=1), Fault("fail", at=4))
    with two_sides(cpu(hold=plan), cpu()) as (producer, consumer):
        value, out = pattern(1, NBYTES), fresh(NBYTES)
        inserted, taken = start(producer, consumer, value, out)
        assert plan.reached.wait(5)
        assert not inserted.poll()
        assert not taken.poll()
        plan.open()
        inserted.wait(5)
        taken.wait(5)
        assert np.array_equal(out, value)
        with pytest.raises(TransportError, match="fault injected at slice 4"):
            producer.buffer.insert(Key("l"), value).wait(5)
        assert producer.backend.inner._allocator.used == 0


@pytest.mark.parametrize("place", ["hold", "land", "write"])
def test_a_delayed_slice_comes_late(place: str) -> None:
    plan = Faults(Fault("delay", seconds=0.2))
    mover = "producer" if place == "write" else "consumer"
    with two_sides(direct(mover, **{place: plan}), direct(mover, **{place: plan})) as (producer, consumer):
        began = time.monotonic()
        out = fresh(5000)
        inserted, taken = start(producer, consumer, pattern(1, 5000), out)
        taken.wait(5)
        inserted.wait(5)
        assert np.array_equal(out, pattern(1, 5000))
        assert place == "hold" or time.monotonic() - began >= 0.2
        assert plan.log == [(0, "delay")]


@pytest.mark.parametrize("place", ["hold", "land", "write"])
def test_a_kill_strikes_its_slice(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *what: killed.append(what))
    plan = Faults(Fault("kill"))
    mover = "producer" if place == "write" else "consumer"
    with two_sides(direct(mover, **{place: plan}), direct(mover, **{place: plan})) as (producer, consumer):
        start(producer, consumer, pattern(1, 5000), fresh(5000))[1].wait(5)
    assert killed == [(os.getpid(), signal.SIGKILL)]


def landed(fault: Fault, value: Any, out: Any) -> None:
    with two_sides(cpu(), cpu(land=Faults(fault, seed=5))) as (producer, consumer):
        start(producer, consumer, value, out)[1].wait(5)


def test_a_corrupt_landing_differs_in_one_byte_always_the_same() -> None:
    value = pattern(1, NBYTES)
    positions = []
    for _ in range(2):
        out = fresh(NBYTES)
        landed(Fault("corrupt"), value, out)
        positions.append(np.flatnonzero(out != value).tolist())
    assert len(positions[0]) == 1
    assert positions[0] == positions[1]
    landed(Fault("corrupt"), fresh(0), fresh(0))


def test_a_truncated_landing_lacks_its_end() -> None:
    value, out = np.ones(100, dtype=np.uint8), fresh(100)
    landed(Fault("truncate"), value, out)
    assert out[:75].all()
    assert not out[75:].any()


@pytest.mark.parametrize("kind", ["corrupt", "truncate"])
def test_pages_are_spoilt_within_their_blocks(kind: Any) -> None:
    source, out = pages(6400, 64, list(range(0, 40, 2))), pages(6400, 64, list(range(50, 30, -1)))
    source.regions[0].host[:] = 1
    landed(Fault(kind), source, out)
    found = out.regions[0].rows()[out.block_ids[0]].view(np.uint8).reshape(-1)
    assert np.count_nonzero(found != 1) == (1 if kind == "corrupt" else 320)
    assert kind == "corrupt" or not found[-320:].any()
    untouched = np.setdiff1d(np.arange(100), out.block_ids[0])
    assert not out.regions[0].rows()[untouched].any()


def test_a_slice_that_had_nothing_to_do_is_no_event() -> None:
    states = [MoveState.WAIT, MoveState.WAIT, MoveState.AGAIN, MoveState.WAIT, MoveState.DONE]
    script = iter(states)

    class Slow(Landing):
        def step(self) -> MoveState:
            return next(script)

        def abort(self) -> None:
            raise AssertionError

    plan = Faults(Fault("corrupt", at=1))
    out = fresh(10)
    landing = FaultyLanding(Slow(), plan, out)
    assert [landing.step() for _ in states] == states
    assert plan.events == 2
    assert np.count_nonzero(out) == 1


class Scripted(Landing):
    """A landing whose slices come to what a script says, and which ends when it is aborted."""

    def __init__(self, *states: MoveState) -> None:
        self.states = list(states)
        self.aborted = False

    def step(self) -> MoveState:
        if self.aborted:
            raise CancelledError("aborted")
        return self.states.pop(0)

    def abort(self) -> None:
        self.aborted = True


@pytest.mark.parametrize(
    ("when", "asked"), [("asked", [MoveState.WAIT]), ("moved", [MoveState.WAIT, MoveState.WAIT, MoveState.DONE])]
)
def test_a_pause_in_a_slice_keeps_back_what_came_of_it(when: Any, asked: list[MoveState]) -> None:
    inner = Scripted(MoveState.WAIT, MoveState.WAIT, MoveState.DONE)
    plan = Faults(Fault("pause", when=when))
    landing = FaultyLanding(inner, plan, None)
    for _ in range(6):
        assert landing.step() is MoveState.WAIT
    assert len(inner.states) == 3 - len(asked)
    assert plan.reached.is_set()
    plan.open()
    states = [landing.step()]
    while states[-1] is not MoveState.DONE:
        states.append(landing.step())
    assert not inner.states


@pytest.mark.parametrize("when", ["asked", "moved"])
@pytest.mark.parametrize("done", [False, True])
def test_a_failure_in_a_slice_is_heard_of_when_the_work_has_ended(when: Any, done: bool) -> None:
    inner = Scripted(MoveState.DONE if done else MoveState.AGAIN)
    landing = FaultyLanding(inner, Faults(Fault("fail", when=when)), None)
    with pytest.raises(TransportError, match="slice 0"):
        landing.step()
    assert inner.aborted is not done


def test_an_abort_in_a_paused_slice_comes_to_what_the_work_came_to() -> None:
    for state, error in ((MoveState.WAIT, True), (MoveState.DONE, False)):
        plan = Faults(Fault("pause", when="asked"))
        inner = Scripted(state)
        landing = FaultyLanding(inner, plan, None)
        plan.on_reached = landing.abort
        if error:
            landing.step()
            with pytest.raises(CancelledError):
                landing.step()
        else:
            assert landing.step() is MoveState.DONE
        assert inner.aborted


def test_a_later_kill_strikes_its_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, number: killed.append(number))
    landing = FaultyLanding(Scripted(MoveState.WAIT, MoveState.DONE), Faults(Fault("kill", when="moved")), None)
    assert landing.step() is MoveState.WAIT
    assert not killed
    landing.step()
    assert killed == [signal.SIGKILL]


def test_a_layer_gives_back_what_is_inside() -> None:
    inner = mock.Mock(spec=Landing)
    FaultyLanding(inner, None, None).release()
    inner.release.assert_called_once_with()


def test_calls_are_timed_and_nothing_else_changes() -> None:
    backend = MeteredTransport(CpuBackend(CpuOptions(capacity="64MiB")))
    with two_sides(backend, cpu()) as (consumer, producer):
        out = fresh(NBYTES)
        inserted, taken = start(producer, consumer, pattern(1, NBYTES), out)
        taken.wait(5)
        inserted.wait(5)
        assert np.array_equal(out, pattern(1, NBYTES))
    assert set(backend.meter.slowest) >= {"Transport.land", "Landing.step"}
    assert all(0 < seconds < 5 for seconds in backend.meter.slowest.values())


@pytest.mark.parametrize("wrapped", ["held", "landing"])
def test_a_descriptor_that_is_set_late_is_seen(wrapped: str) -> None:
    backend = DirectBackend(DirectOptions("producer"))
    inner: Any = backend.hold(fresh(10))
    if wrapped == "landing":
        inner = backend.land(None, None, inner.descriptor, fresh(10), 0)
    outer: Any = FaultyHeld(inner, None, None) if wrapped == "held" else FaultyLanding(inner, None, fresh(10))
    inner.descriptor = b"late"
    assert outer.descriptor == b"late"
    outer.descriptor = b"later"
    assert inner.descriptor == b"later"
    assert Landing.descriptor == b""
    backend.close()
