"""A buffer on a store that takes its time: the endpoint's thread waits for none of its tasks."""

from __future__ import annotations

import time

import numpy as np
import pytest

from kvbridge.abc import Key
from kvbridge.buffers import looking, over_store
from kvbridge.errors import (
    KeyConsumedError,
    KeyDroppedError,
    KeyExpiredError,
    KeyUnknownError,
    TransferTimeoutError,
    TransportError,
)
from tests.nodes import eventually, pattern
from tests.slow_store import NBYTES, K, Process, leave_lapsed


def test_values_come_and_go(slow: Process) -> None:
    slow.insert(1).wait(5)
    assert slow.buffer.contains([K, Key("other")]).wait(5) == [True, False]
    out = np.zeros(NBYTES, dtype=np.uint8)
    slow.buffer.select(K, out).wait(5)
    assert np.array_equal(out, pattern(1, NBYTES))
    slow.take(1)
    with pytest.raises(KeyConsumedError):
        slow.take(1)
    slow.insert(2, Key("dropped")).wait(5)
    slow.buffer.drop([Key("dropped"), Key("other"), Key("dropped")])
    with pytest.raises(KeyDroppedError):
        slow.take(2, Key("dropped"))
    assert slow.stats("inserted", "taken", "dropped", "entries", "bytes") == [2, 1, 1, 0, 0]


@pytest.mark.parametrize("verb", ["headers", "find", "put", "remove", "read"])
def test_a_store_that_hangs_holds_up_nothing_else(slow: Process, verb: str) -> None:
    slow.insert(1).wait(5)
    leave_lapsed(slow.store, Key("old"))
    holds = [slow.store.hold(verb, key) for key in ("k", "old", "new")]
    if verb == "read":
        holds = [slow.store.hold(verb)]
    hanging = [
        slow.buffer.select(K, np.zeros(NBYTES, dtype=np.uint8)),
        slow.insert(3, Key("new")),
        slow.insert(4, Key("old")),
    ]
    eventually(lambda: any(hold.reached.is_set() for hold in holds), 5, lambda: "nothing was held")
    for number in range(5):
        key = Key(f"free {number}")
        slow.insert(number, key).wait(5)
        assert slow.buffer.contains([key]).wait(5) == [True]
        if verb != "read":
            slow.take(number, key)
        slow.flush()
    assert not all(transfer.poll() for transfer in hanging)
    assert not slow.endpoint.counters["pauses"]
    for hold in holds:
        hold.open()
    for transfer in hanging:
        transfer.wait(5)


def test_a_claim_looks_once_at_a_time_and_again_until_the_value_comes(slow: Process) -> None:
    hold = slow.store.hold("headers")
    claim = slow.buffer.claim(K)
    assert hold.reached.wait(5)
    time.sleep(0.1)
    assert slow.store.begun == [("headers", "k")]
    hold.open()
    eventually(lambda: len(slow.store.begun) > 3, 5, lambda: "it does not look again")
    slow.insert(1).wait(5)
    claim.wait(5).release()


def test_who_looks_does_not_wait_for_an_insert(slow: Process) -> None:
    hold = slow.store.hold("put")
    inserted = slow.insert(1)
    assert hold.reached.wait(5)
    start = time.monotonic()
    with pytest.raises(KeyUnknownError):
        slow.buffer.claim(K, timeout=0.1).wait(5)
    assert time.monotonic() - start < looking.ANSWER_GRACE
    hold.open()
    inserted.wait(5)
    slow.take(1)


def test_a_store_that_does_not_answer_is_told_after_the_deadline(
    slow: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "ANSWER_GRACE", 0.1)
    slow.insert(1).wait(5)
    slow.store.hold("headers")
    claim, contains = slow.buffer.claim(K, timeout=0.1), slow.buffer.contains([K], timeout=0.1)
    for transfer in (claim, contains):
        with pytest.raises(TransferTimeoutError):
            transfer.wait(2)
    slow.store.held["headers", ""].open()
    slow.settle()
    slow.take(1)


@pytest.mark.parametrize("error", [TransportError("gone"), ValueError("a bug")])
@pytest.mark.parametrize("verb", ["headers", "find", "put", "read"])
def test_what_a_task_raises_ends_its_transfer_and_nothing_else(slow: Process, verb: str, error: Exception) -> None:
    slow.insert(1).wait(5)
    slow.store.failures[verb] = error
    out = np.zeros(NBYTES, dtype=np.uint8)
    transfer = slow.insert(2, Key("new")) if verb == "put" else slow.buffer.select(K, out)
    with pytest.raises(TransportError, match=r"gone|a bug"):
        transfer.wait(5)
    slow.store.failures.clear()
    slow.settle()
    slow.take(1)
    if verb == "put":
        with pytest.raises(KeyDroppedError):
            slow.take(2, Key("new"))


@pytest.mark.parametrize("verb", ["headers", "remove"])
def test_a_lease_whose_end_failed_is_ended_later(slow: Process, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_store, "EXPIRE_AGAIN", 0.05)
    slow.insert(1, lease=0.2).wait(5)
    slow.store.failures[verb] = TransportError("gone")
    eventually(lambda: slow.stats("failed_expiry") > [1], 5, lambda: f"{slow.buffer.stats()}")
    slow.store.failures.clear()
    slow.await_stats(expired=1, entries=0)
    assert not slow.store.values
    with pytest.raises(KeyExpiredError):
        slow.take(1)
