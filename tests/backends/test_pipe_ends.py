"""The ends of a pipe's life are told apart, on both sides, and nobody waits for what cannot come."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvbridge.errors import (
    ClosedError,
    EndOfPipeError,
    KeyDroppedError,
    KVBridgeError,
    PipeBrokenError,
    TransferTimeoutError,
)
from tests.nodes import Node, eventually, pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.abc import RecvPipe, SendPipe

AT_ONCE = 2.0
"""Seconds, generous: what ends at once must not run into a deadline of 10 s."""


@pytest.fixture
def linked(pair: tuple[Node, Node]) -> tuple[Node, Node]:
    """A sender and a receiver; the receiver dialled."""
    sender, receiver = pair
    receiver.connect(sender.endpoint.address)
    sender.link()
    receiver.link()
    return pair


@pytest.fixture
def ends(linked: tuple[Node, Node]) -> tuple[SendPipe, RecvPipe]:
    sender, receiver = linked
    receiver.open_pipe("c", "recv")
    sender.open_pipe("c", "send")
    return sender.pipes["c"], receiver.pipes["c"]


def in_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """Start a call in a thread; the answer waits for what it raised or returned."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except KVBridgeError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def answer() -> Any:
        thread.join(10)
        assert not thread.is_alive()
        return found[0]

    return answer


def test_what_was_sent_before_the_close_is_delivered_and_then_the_pipe_ends(ends: tuple[SendPipe, RecvPipe]) -> None:
    send, recv = ends
    sent = [send.post(np.full(3, seed)) for seed in range(3)]
    for seed in range(3):
        assert recv.recv_tensor(timeout=5).tolist() == [seed] * 3
    for transfer in sent:
        transfer.wait(5)
    send.close()
    for call in (recv.recv_tensor, lambda: recv.peek(5), lambda: recv.recv_tensor(timeout=5)):
        start = time.monotonic()
        with pytest.raises(EndOfPipeError):
            call()
        assert time.monotonic() - start < AT_ONCE


def test_a_receiver_that_waits_hears_that_the_sender_closed(ends: tuple[SendPipe, RecvPipe]) -> None:
    send, recv = ends
    answer = in_thread(lambda: recv.recv_tensor(timeout=10))
    start = time.monotonic()
    send.close()
    assert isinstance(answer(), EndOfPipeError)
    assert time.monotonic() - start < AT_ONCE


def test_closing_twice_and_using_a_closed_end_are_told(ends: tuple[SendPipe, RecvPipe]) -> None:
    send, recv = ends
    for end in ends:
        end.close()
        end.close()
    for call in (lambda: send.post(np.ones(3)), lambda: send.send_tensor(np.ones(3)), recv.peek, recv.recv_tensor):
        with pytest.raises(ClosedError):
            call()


def test_a_thread_that_waits_in_an_end_hears_that_it_was_closed_here(ends: tuple[SendPipe, RecvPipe]) -> None:
    _send, recv = ends
    receiving = in_thread(lambda: recv.recv_tensor(timeout=10))
    deadline = time.monotonic() + 5
    while not recv._use.locked():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    recv.close()
    assert isinstance(receiving(), ClosedError)


def test_closing_the_sender_ends_its_unfinished_transfers_with_closed(
    ends: tuple[SendPipe, RecvPipe], linked: tuple[Node, Node]
) -> None:
    send, recv = ends
    sent = send.post(np.ones(1000))
    assert recv.peek(5) is not None
    send.close()
    with pytest.raises(ClosedError):
        sent.wait(5)
    with pytest.raises(EndOfPipeError):
        recv.peek(5)
    linked[0].await_used(0)


def test_a_receiver_in_mid_transfer_of_a_sender_that_closes_is_not_told_that_he_closed(
    ends: tuple[SendPipe, RecvPipe], linked: tuple[Node, Node]
) -> None:
    send, recv = ends
    linked[1].gate("scatter", 1)
    send.post(pattern(1, 9_000_000))
    answer = in_thread(lambda: recv.recv_tensor(timeout=10))
    linked[1].await_gate("scatter")
    send.close()
    found = answer()
    assert isinstance(found, KVBridgeError)
    assert not isinstance(found, (ClosedError, TransferTimeoutError))


def test_closing_the_receiver_gives_unfinished_sources_back(
    ends: tuple[SendPipe, RecvPipe], linked: tuple[Node, Node]
) -> None:
    send, recv = ends
    waiting = [send.post(np.ones(1000)) for _ in range(2)]
    assert recv.peek(5) is not None
    recv.close()
    for transfer in waiting:
        with pytest.raises(KVBridgeError) as found:
            transfer.wait(5)
        assert not isinstance(found.value, (TransferTimeoutError, ClosedError))
    linked[0].await_used(0)


def test_what_is_sent_to_a_receiver_that_closed_earlier_fails_and_does_not_hang(
    ends: tuple[SendPipe, RecvPipe], linked: tuple[Node, Node]
) -> None:
    send, recv = ends
    recv.close()
    linked[1].flush()
    start = time.monotonic()
    with pytest.raises((PipeBrokenError, KeyDroppedError, EndOfPipeError)):
        send.post(np.ones(1000)).wait(5)
    assert time.monotonic() - start < AT_ONCE
    linked[0].await_used(0)


def test_what_is_sent_before_the_receiver_opens_is_not_lost(linked: tuple[Node, Node]) -> None:
    sender, receiver = linked
    sender.open_pipe("c", "send")
    sender.begin_send("0", "c", 0, 1000)
    time.sleep(0.1)
    receiver.flush()
    receiver.open_pipe("c", "recv")
    sender.begin_send("1", "c", 1, 1000)
    for seed in range(2):
        receiver.recv("c", seed, 1000, timeout=3)
        sender.end(f"{seed}")


def test_a_receiver_that_opens_after_the_sender_closed_hears_the_end(linked: tuple[Node, Node]) -> None:
    sender, receiver = linked
    sender.open_pipe("c", "send")
    sender.close_pipe("c")
    sender.flush()
    time.sleep(0.1)
    receiver.flush()
    receiver.open_pipe("c", "recv")
    with pytest.raises(EndOfPipeError):
        receiver.recv("c", 0, 10, timeout=2)


@pytest.mark.parametrize("closing", ["sender", "receiver"])
def test_closing_an_endpoint_in_order_breaks_the_pipe_of_the_other_side_at_once(
    ends: tuple[SendPipe, RecvPipe], linked: tuple[Node, Node], closing: str
) -> None:
    send, recv = ends
    waiting = send.post(np.ones(1000))
    assert recv.peek(5) is not None
    start = time.monotonic()
    linked[closing == "receiver"].endpoint.close()
    if closing == "sender":
        eventually(lambda: not linked[1].link().up, AT_ONCE, lambda: "the goodbye did not come")
        linked[1].flush()
        with pytest.raises(PipeBrokenError):
            recv.peek(5)
    else:
        with pytest.raises(PipeBrokenError):
            waiting.wait(5)
        with pytest.raises(PipeBrokenError):
            send.post(np.ones(10)).wait(5)
    assert time.monotonic() - start < AT_ONCE
