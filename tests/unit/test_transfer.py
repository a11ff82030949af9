"""`Transfer`: resolves once, waits with a deadline, cancels once, calls back once."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from kvbridge.buffers.chain import all_of
from kvbridge.errors import CancelledError, ClosedError, KVBridgeError, TransferTimeoutError, TransportError
from kvbridge.transfer import Transfer, cancelled


def test_a_value_is_there_after_it_resolved_and_not_before() -> None:
    transfer: Transfer[int] = Transfer("adding")
    assert not transfer.poll()
    assert transfer.error is None
    with pytest.raises(TransferTimeoutError, match="adding is still in flight"):
        transfer.result()
    transfer.resolve(3)
    assert transfer.poll()
    assert (transfer.result(), transfer.wait(0), transfer.error) == (3, 3, None)


def test_none_is_a_value() -> None:
    transfer: Transfer[None] = Transfer("x")
    transfer.resolve(None)
    assert transfer.poll()
    assert transfer.wait(0) is None


def test_only_the_first_outcome_counts() -> None:
    for first in ("resolve", "fail"):
        transfer: Transfer[int] = Transfer("x")
        outcomes = [lambda t=transfer: t.resolve(1), lambda t=transfer: t.fail(TransportError("no"))]
        if first == "fail":
            outcomes.reverse()
        for outcome in (*outcomes, *outcomes):
            outcome()
        if first == "resolve":
            assert transfer.wait(0) == 1
            assert transfer.error is None
        else:
            with pytest.raises(TransportError, match="no"):
                transfer.wait(0)


def test_a_failure_is_raised_by_wait_and_result_each_time() -> None:
    transfer: Transfer[int] = Transfer("x")
    transfer.fail(TransportError("vendor code 5"))
    for _ in range(2):
        with pytest.raises(TransportError, match="vendor code 5"):
            transfer.wait(1)
        with pytest.raises(TransportError):
            transfer.result()


@pytest.mark.parametrize("timeout", [0, 0.05, -1])
def test_waiting_ends_at_its_deadline_and_the_transfer_goes_on(timeout: float) -> None:
    transfer: Transfer[int] = Transfer("loading")
    start = time.monotonic()
    with pytest.raises(TransferTimeoutError, match="loading did not finish within"):
        transfer.wait(timeout)
    assert time.monotonic() - start < 2
    transfer.resolve(1)
    assert transfer.wait(0) == 1


def test_many_threads_that_wait_all_wake() -> None:
    transfer: Transfer[int] = Transfer("x")
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(transfer.wait(10))) for _ in range(8)]
    for thread in threads:
        thread.start()
    transfer.resolve(7)
    for thread in threads:
        thread.join(10)
    assert found == [7] * 8


def test_cancelling_asks_once_and_does_not_finish_by_itself() -> None:
    asked: list[int] = []
    transfer: Transfer[int] = Transfer("x", lambda: asked.append(1))
    transfer.cancel()
    transfer.cancel()
    assert asked == [1]
    assert not transfer.poll()
    transfer.fail(cancelled("x"))
    with pytest.raises(CancelledError, match="x was cancelled"):
        transfer.wait(0)


def test_cancelling_what_is_finished_or_cannot_be_cancelled_asks_nobody() -> None:
    asked: list[int] = []
    transfer: Transfer[int] = Transfer("x", lambda: asked.append(1))
    transfer.resolve(1)
    transfer.cancel()
    assert asked == []
    Transfer("y").cancel()


def test_a_cancelled_transfer_may_still_succeed() -> None:
    transfer: Transfer[int] = Transfer("x", lambda: None)
    transfer.cancel()
    transfer.resolve(4)
    assert transfer.wait(0) == 4


def test_callbacks_are_called_once_in_order_also_when_they_come_late() -> None:
    calls: list[str] = []
    transfer: Transfer[int] = Transfer("x")
    transfer.on_done(lambda t: calls.append(f"a{t.result()}"))
    transfer.on_done(lambda t: calls.append(f"b{t.result()}"))
    assert calls == []
    transfer.resolve(1)
    transfer.resolve(2)
    transfer.on_done(lambda t: calls.append(f"c{t.result()}"))
    assert calls == ["a1", "b1", "c1"]


def test_a_callback_may_wait_for_its_own_transfer_and_add_another() -> None:
    calls: list[int] = []
    transfer: Transfer[int] = Transfer("x")
    transfer.on_done(lambda t: t.on_done(lambda u: calls.append(u.wait(0) + t.wait(0))))
    transfer.resolve(2)
    assert calls == [4]


def test_a_callback_that_raises_keeps_no_other_from_being_called() -> None:
    calls: list[int] = []

    def refuse(_: Transfer[int]) -> None:
        raise ZeroDivisionError

    transfer: Transfer[int] = Transfer("x")
    transfer.on_done(refuse)
    transfer.on_done(lambda t: calls.append(t.result()))
    transfer.resolve(1)
    transfer.on_done(refuse)
    assert calls == [1]


def test_resolving_and_adding_callbacks_from_two_threads_loses_none() -> None:
    for _ in range(100):
        calls: list[int] = []
        transfer: Transfer[int] = Transfer("x")
        start = threading.Barrier(2)

        def add(t: Transfer[int] = transfer, c: list[int] = calls, s: threading.Barrier = start) -> None:
            s.wait(5)
            for _ in range(20):
                t.on_done(lambda done: c.append(done.result()))

        thread = threading.Thread(target=add)
        thread.start()
        start.wait(5)
        transfer.resolve(1)
        thread.join(5)
        assert calls == [1] * 20


def test_it_shows_what_it_does_and_how_it_stands() -> None:
    transfer: Transfer[Any] = Transfer("loading r1")
    assert repr(transfer) == "<Transfer loading r1: in flight>"
    transfer.fail(KVBridgeError("x"))
    assert repr(transfer) == "<Transfer loading r1: failed>"
    transfer = Transfer("y")
    transfer.resolve(None)
    assert repr(transfer) == "<Transfer y: done>"


def test_cancelling_what_is_closed_raises_nothing_and_the_others_of_all_are_waited_for() -> None:
    def closed() -> None:
        raise ClosedError("the endpoint is closed")

    first, second = Transfer[None]("first", closed), Transfer[None]("second", closed)
    whole = all_of([first, second], "both")
    first.fail(ClosedError("over"))
    second.fail(ClosedError("over"))
    with pytest.raises(ClosedError):
        whole.wait(1)
