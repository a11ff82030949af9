"""A buffer on a store that takes its time: what nobody waits for any more ends, and gives back what it took."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvbridge.abc import Key
from kvbridge.errors import (
    CancelledError,
    ClosedError,
    KeyConsumedError,
    KeyMissError,
)
from tests.nodes import eventually
from tests.slow_store import NBYTES, K, Process, SlowStore, leave_lapsed

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.transfer import Transfer


def test_a_cancelled_claim_ends_at_once_and_gives_back_what_it_took(slow: Process) -> None:
    slow.store.stubborn = True
    slow.insert(1).wait(5)
    hold = slow.store.hold("find")
    claim = slow.buffer.claim(K)
    assert hold.reached.wait(5)
    claim.cancel()
    with pytest.raises(CancelledError):
        claim.wait(1)
    assert not slow.store.given
    hold.open()
    slow.await_stats(taken=1, not_taken=1)
    assert [stored.releases for stored in slow.store.given] == [1]
    with pytest.raises(KeyConsumedError):
        slow.take(1)


def test_a_cancelled_claim_that_could_be_stopped_leaves_the_value(stepped: Process) -> None:
    stepped.insert(1).wait(5)
    hold = stepped.store.hold("find")
    claim = stepped.buffer.claim(K)
    assert hold.reached.wait(5)
    claim.cancel()
    with pytest.raises(CancelledError):
        claim.wait(1)
    hold.open()
    stepped.settle()
    assert stepped.stats("taken", "not_taken") == [0, 0]
    stepped.take(1)


@pytest.mark.parametrize("verb", ["headers", "remove"])
def test_an_insert_that_is_cancelled_before_its_bytes_move_ends_at_once_and_puts_nothing(
    slow: Process, verb: str
) -> None:
    slow.store.stubborn = True
    leave_lapsed(slow.store, K)
    hold = slow.store.hold(verb)
    before = len(slow.store.begun)
    inserted = slow.insert(2)
    assert hold.reached.wait(5)
    inserted.cancel()
    with pytest.raises(CancelledError):
        inserted.wait(1)
    hold.open()
    slow.settle()
    assert "put" not in [begun for begun, _ in slow.store.begun[before:]]
    with pytest.raises(KeyMissError):
        slow.buffer.claim(K, timeout=0.1).wait(5)


def test_an_insert_that_is_cancelled_ends_when_its_memory_is_free(slow: Process) -> None:
    slow.store.stubborn = True
    hold = slow.store.hold("put")
    inserted = slow.insert(1)
    assert hold.reached.wait(5)
    inserted.cancel()
    slow.flush()
    assert not inserted.poll()
    hold.open()
    inserted.wait(5)  # it was too late
    slow.take(1)


@pytest.mark.parametrize("verb", ["headers", "find", "put", "remove", "read"])
def test_close_ends_every_transfer(slow: Process, verb: str) -> None:
    """At once, but for those whose memory is in use: these end when it is not any more."""
    slow.store.stubborn = True
    claimed = [slow.insert(1, Key(f"old {number}")).wait(5) for number in range(2)]
    assert claimed == [None, None]
    slow.insert(1).wait(5)
    hold = slow.store.hold(verb)
    transfers: dict[str, Transfer[Any]] = {
        "insert": slow.insert(1, Key("new")),
        "claim": slow.buffer.claim(K),
        "waits": slow.buffer.claim(Key("absent")),
        "queued": slow.buffer.claim(K),
        "contains": slow.buffer.contains([K]),
        "select": slow.buffer.select(Key("old 0"), np.zeros(NBYTES, dtype=np.uint8)),
    }
    slow.buffer.drop([Key("old 1")])
    assert hold.reached.wait(5)
    slow.buffer.close()
    using = {"put": {"insert"}, "read": {"select"}}.get(verb, set())
    for name, transfer in transfers.items():
        if name not in using:
            eventually(transfer.poll, 2, lambda name=name: f"{name} has not ended")
    assert {name for name, transfer in transfers.items() if not transfer.poll()} == using
    hold.open()
    slow.settle()
    assert all(transfer.poll() for transfer in transfers.values())
    assert isinstance(transfers["waits"].error, ClosedError)
    claim = transfers["claim"]
    if claim.error is None:
        claim.result().release()
    taken, not_taken = slow.stats("taken", "not_taken")
    assert taken - not_taken == (claim.error is None) + (transfers["queued"].error is None)


def test_an_endpoint_closes_in_time_although_its_store_hangs(process: Callable[..., Process]) -> None:
    one = process(SlowStore())
    one.store.stubborn = True
    one.insert(1).wait(5)
    for verb in ("headers", "find", "put"):
        one.store.hold(verb)
    transfers = [one.insert(2, Key("new")), one.buffer.claim(K), one.buffer.contains([K])]
    one.flush()
    start = time.monotonic()
    one.endpoint.close()
    assert time.monotonic() - start < 3
    for transfer in transfers:
        with pytest.raises(ClosedError):
            transfer.wait(0)


def test_a_claim_that_is_filled_after_the_close_is_let_go_of(stepped: Process) -> None:
    stepped.insert(1).wait(5)
    claim = stepped.buffer.claim(K).wait(5)
    stepped.buffer.close()
    with pytest.raises(ClosedError):
        claim.fill(np.zeros(NBYTES, dtype=np.uint8)).wait(5)
    eventually(lambda: stepped.store.given[0].releases == 1, 5, lambda: "it is still held")
