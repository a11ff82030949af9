"""What plans of faults do to the calls of a buffer."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvbridge.abc import Key
from kvbridge.errors import (
    BusyError,
    DuplicateKeyError,
    KeyConsumedError,
    KeyUnknownError,
    SpecMismatchError,
    TransportError,
)
from kvbridge.layers.faulty import Fault, Faults, FaultyBuffer
from kvbridge_cpu import CpuBackend, CpuOptions
from tests.direct import fresh
from tests.nodes import eventually, pattern
from tests.sides import Side, two_sides

if TYPE_CHECKING:
    from collections.abc import Iterator

NBYTES = 1000

VERBS = pytest.mark.parametrize("verb", ["select", "drop_select", "claim"])


@pytest.fixture
def sides() -> Iterator[tuple[Side, Side]]:
    made = [CpuBackend(CpuOptions(capacity="64MiB")) for _ in range(2)]
    with two_sides(made[0], made[1]) as both:
        yield both


def buffers(sides: tuple[Side, Side], call: str, *faults: Fault) -> tuple[FaultyBuffer, FaultyBuffer, Faults]:
    """The producer's and the consumer's buffer, and a plan for one kind of call."""
    plan = Faults(*faults, seed=1)
    plans = {call: plan}
    return FaultyBuffer(sides[0].buffer, **plans), FaultyBuffer(sides[1].buffer, **plans), plan


def get(buffer: FaultyBuffer, key: Key, verb: str = "drop_select", **options: Any) -> Any:
    out = fresh(NBYTES)
    if verb == "claim":
        buffer.claim(key, **options).wait(5).fill(out).wait(5)
    else:
        getattr(buffer, verb)(key, out, **options).wait(5)
    return out


def test_a_buffer_without_faults_changes_nothing(sides: tuple[Side, Side]) -> None:
    here, there, plan = buffers(sides, "insert")
    key = Key("k", sides[0].endpoint.address)
    value = pattern(1, NBYTES)
    here.insert(Key("k"), value, digest=b"d").wait(5)
    with pytest.raises(DuplicateKeyError):
        here.insert(Key("k"), value).wait(5)
    assert there.contains([key]).wait(5) == [True]
    assert np.array_equal(get(there, key, "select", digest=b"d"), value)
    claim = there.claim(key, digest=b"d").wait(5)
    with pytest.raises(SpecMismatchError):
        claim.fill(fresh(1)).wait(5)
    out = fresh(NBYTES)
    claim.fill(out).wait(5)
    assert np.array_equal(out, value)
    with pytest.raises(BusyError):
        claim.fill(out).wait(5)
    with pytest.raises(KeyConsumedError):
        get(there, key, digest=b"d")
    here.insert(Key("l"), value).wait(5)
    here.drop([Key("l")])
    eventually(lambda: here.stats()["entries"] == 0, 5, lambda: f"{here.stats()}")
    assert here.stats()["dropped"] == 1
    assert plan.events == 3


def test_an_insert_that_is_dropped_looks_done(sides: tuple[Side, Side]) -> None:
    here, there, _ = buffers(sides, "insert", Fault("drop"))
    here.insert(Key("k"), pattern(1, NBYTES)).wait(5)
    with pytest.raises(KeyUnknownError):
        get(there, Key("k", sides[0].endpoint.address), timeout=0.05)


@VERBS
def test_a_key_that_is_dropped_on_its_way_is_unknown(sides: tuple[Side, Side], verb: str) -> None:
    here, there, _ = buffers(sides, "select", Fault("drop"))
    key = Key("k", sides[0].endpoint.address)
    here.insert(Key("k"), pattern(1, NBYTES)).wait(5)
    with pytest.raises(KeyUnknownError, match="fault injected"):
        get(there, key, verb)
    assert np.array_equal(get(there, key, verb), pattern(1, NBYTES))


def test_an_insert_that_is_made_twice_is_taken_once(sides: tuple[Side, Side]) -> None:
    here, there, _ = buffers(sides, "insert", Fault("duplicate"))
    here.insert(Key("k"), pattern(1, NBYTES)).wait(5)
    eventually(lambda: here.stats().get("refused_duplicate") == 1, 5, lambda: f"{here.stats()}")
    assert np.array_equal(get(there, Key("k", sides[0].endpoint.address)), pattern(1, NBYTES))


@VERBS
def test_a_question_that_is_put_twice_is_answered_once(sides: tuple[Side, Side], verb: str) -> None:
    here, there, _ = buffers(sides, "select", Fault("duplicate"))
    here.insert(Key("k"), pattern(1, NBYTES)).wait(5)
    assert np.array_equal(get(there, Key("k", sides[0].endpoint.address), verb), pattern(1, NBYTES))
    expected = ("taken", 2) if verb == "select" else ("miss_consumed", 1)
    eventually(lambda: here.stats().get(expected[0]) == expected[1], 5, lambda: f"{here.stats()}")


@pytest.mark.parametrize("kind", ["corrupt", "truncate"])
@pytest.mark.parametrize("call", ["insert", "select", "drop_select", "claim"])
def test_a_value_arrives_changed_and_its_source_stays_as_it_was(sides: tuple[Side, Side], call: str, kind: Any) -> None:
    here, there, plan = buffers(sides, "insert" if call == "insert" else "select", Fault(kind))
    value = np.ones(NBYTES, dtype=np.uint8)
    here.insert(Key("k"), value).wait(5)
    out = get(there, Key("k", sides[0].endpoint.address), "drop_select" if call == "insert" else call)
    assert value.all()
    assert np.count_nonzero(out != 1) == (1 if kind == "corrupt" else 250)
    assert plan.log == [(0, kind)]


@pytest.mark.parametrize("call", ["insert", "select", "drop_select", "claim"])
def test_a_call_that_fails_reaches_nobody(sides: tuple[Side, Side], call: str) -> None:
    here, there, _ = buffers(sides, "insert" if call == "insert" else "select", Fault("fail"))
    key = Key("k", sides[0].endpoint.address)
    if call == "insert":
        with pytest.raises(TransportError, match="fault injected at call 0"):
            here.insert(Key("k"), pattern(1, NBYTES)).wait(5)
        assert there.contains([key]).wait(5) == [False]
        return
    here.insert(Key("k"), pattern(1, NBYTES)).wait(5)
    with pytest.raises(TransportError, match="fault injected at call 0"):
        get(there, key, call)
    assert np.array_equal(get(there, key, call), pattern(1, NBYTES))


@pytest.mark.parametrize("call", ["insert", "select"])
def test_a_delayed_call_comes_late(sides: tuple[Side, Side], call: str) -> None:
    here, there, _ = buffers(sides, call, Fault("delay", seconds=0.1))
    began = time.monotonic()
    here.insert(Key("k"), pattern(1, NBYTES)).wait(5)
    get(there, Key("k", sides[0].endpoint.address), "select")
    assert time.monotonic() - began >= 0.1


@pytest.mark.parametrize("call", ["insert", "select"])
def test_a_kill_strikes_its_call(sides: tuple[Side, Side], call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *what: killed.append(what))
    here, there, _ = buffers(sides, call, Fault("kill"))
    here.insert(Key("k"), pattern(1, NBYTES)).wait(5)
    get(there, Key("k", sides[0].endpoint.address), "select")
    assert killed == [(os.getpid(), signal.SIGKILL)]
