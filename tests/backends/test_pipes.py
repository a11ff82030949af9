"""Pipes between two nodes: order, peeking, choosing, refusing, and that a mistake costs nothing."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvbridge.abc import pipe
from kvbridge.errors import BusyError, KeyDroppedError, SpecMismatchError, TransferTimeoutError
from kvbridge.memory import Pages, Region
from tests.nodes import Node, pattern

if TYPE_CHECKING:
    from kvbridge.abc import RecvPipe, SendPipe


@pytest.fixture
def ends(pair: tuple[Node, Node]) -> tuple[SendPipe, RecvPipe]:
    """Both ends of a pipe; the receiver dialled."""
    producer, consumer = pair
    consumer.connect(producer.endpoint.address)
    consumer.link()
    consumer.open_pipe("c", "recv")
    producer.open_pipe("c", "send")
    return producer.pipes["c"], consumer.pipes["c"]


def test_many_tensors_of_many_sizes_arrive_in_the_order_in_which_they_were_sent(
    ends: tuple[SendPipe, RecvPipe],
) -> None:
    send, recv = ends
    sizes = [1, 0, 7, 4096, 3_000_000, 64, 2 << 20, 0, 12_345] * 10
    sent = [send.post(pattern(seed, size), tag=seed) for seed, size in enumerate(sizes)]
    for seed, size in enumerate(sizes):
        assert np.array_equal(recv.recv_tensor(timeout=5), pattern(seed, size))
    for transfer in sent:
        transfer.wait(5)


def test_a_tensor_is_settled_before_it_is_sent_and_so_is_a_destination_before_it_is_filled(
    ends: tuple[SendPipe, RecvPipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[object] = []
    monkeypatch.setattr(pipe, "settle", settled.append)
    source, out = pattern(1, 1000), np.zeros(1000, dtype=np.uint8)
    with pytest.raises(TransferTimeoutError):
        ends[0].send_tensor(source, timeout=0.01)
    assert settled == [source]
    ends[0].post(source)
    assert ends[1].recv_tensor(out, timeout=5) is out
    assert settled[1] is out


def test_a_peek_shows_the_next_offer_and_takes_nothing(ends: tuple[SendPipe, RecvPipe]) -> None:
    send, recv = ends
    assert recv.peek() is None
    send.post(np.arange(3, dtype=np.int16), tag=11)
    send.post(np.arange(4), tag=12)
    first = recv.peek(5)
    assert first is not None
    assert recv.peek() is first
    assert (first.seq, first.tag, first.spec.dtype, first.spec.shape) == (0, 11, "int16", (3,))
    assert recv.recv_tensor(timeout=5).tolist() == [0, 1, 2]
    second = recv.peek(5)
    assert second is not None
    assert (second.seq, second.tag) == (1, 12)


def test_offers_are_accepted_out_of_order_and_each_gets_its_own_bytes(ends: tuple[SendPipe, RecvPipe]) -> None:
    send, recv = ends
    values = [pattern(seed, 100_000 + seed) for seed in range(6)]
    sent = [send.post(value) for value in values]
    offers, outs = [], [np.zeros_like(value) for value in values]
    for out in outs:
        offer = recv.peek(5)
        assert offer is not None
        offers.append(offer)
        if len(offers) % 2:  # take the even ones now, put the odd ones into the destination of their own
            recv.accept(offer, out).wait(5)
        else:
            recv.decline(offer)
    for index, (transfer, out, value) in enumerate(zip(sent, outs, values, strict=True)):
        if index % 2:
            with pytest.raises(KeyDroppedError):
                transfer.wait(5)
            assert not out.any()
        else:
            transfer.wait(5)
            assert np.array_equal(out, value)


def test_offers_that_were_seen_earlier_are_accepted_in_any_order(ends: tuple[SendPipe, RecvPipe]) -> None:
    """Accepting removes an offer from the queue at once, so the next one is seen while it is still moving."""
    send, recv = ends
    for seed in range(3):
        send.post(pattern(seed, 5_000_000))
    transfers = []
    for seed in range(3):
        offer = recv.peek(5)
        assert offer is not None
        assert offer.seq == seed
        out = np.zeros(5_000_000, dtype=np.uint8)
        transfers.append((recv.accept(offer, out), out, seed))
    for transfer, out, seed in reversed(transfers):
        transfer.wait(5)
        assert np.array_equal(out, pattern(seed, 5_000_000))


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((3, 4)),
        np.zeros((4, 3), dtype=np.float32),
        np.zeros(12),
        np.zeros((3, 4)).T,
        np.zeros((8, 3))[::2],
        Pages.of([Region.over(np.zeros(96, dtype=np.uint8), 96)], [0]),
        b"x" * 96,
    ],
    ids=["shape", "dtype", "flat", "transposed", "strided", "pages", "bytes"],
)
def test_a_destination_that_does_not_fit_leaves_the_offer(ends: tuple[SendPipe, RecvPipe], wrong: object) -> None:
    send, recv = ends
    value = np.arange(12.0).reshape(4, 3)
    sent = send.post(value)
    offer = recv.peek(5)
    assert offer is not None
    with pytest.raises(SpecMismatchError):
        recv.accept(offer, wrong)
    with pytest.raises(SpecMismatchError):
        recv.recv_tensor(wrong, timeout=5)
    assert recv.peek() is offer
    assert not sent.poll()
    assert np.array_equal(recv.recv_tensor(timeout=5), value)
    sent.wait(5)


def test_a_destination_that_is_read_only_leaves_the_offer(ends: tuple[SendPipe, RecvPipe]) -> None:
    send, recv = ends
    sent = send.post(np.arange(12.0))
    wrong = np.zeros(12)
    wrong.flags.writeable = False
    with pytest.raises(SpecMismatchError, match="read-only"):
        recv.recv_tensor(wrong, timeout=5)
    assert np.array_equal(recv.recv_tensor(timeout=5), np.arange(12.0))
    sent.wait(5)


def test_an_offer_is_accepted_or_declined_once(ends: tuple[SendPipe, RecvPipe]) -> None:
    send, recv = ends
    send.post(np.ones(3))
    sent = send.post(np.ones(4))
    offer = recv.peek(5)
    assert offer is not None
    recv.accept(offer, np.zeros(3)).wait(5)
    with pytest.raises(BusyError):
        recv.accept(offer, np.zeros(3))
    with pytest.raises(BusyError):
        recv.decline(offer)
    second = recv.peek(5)
    assert second is not None
    recv.decline(second)
    with pytest.raises(BusyError):
        recv.accept(second, np.zeros(4))
    with pytest.raises(KeyDroppedError):
        sent.wait(5)


def test_two_threads_in_one_end_are_told_and_the_first_goes_on(ends: tuple[SendPipe, RecvPipe]) -> None:
    send, recv = ends
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(recv.recv_tensor(timeout=10)))
    thread.start()
    deadline = time.monotonic() + 5
    while not recv._use.locked():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    for call in (recv.peek, lambda: recv.recv_tensor(timeout=1)):
        with pytest.raises(BusyError):
            call()
    send.post(np.arange(3))
    thread.join(5)
    assert np.array_equal(found[0], np.arange(3))
    assert recv.peek() is None


def test_a_receive_that_times_out_leaves_the_pipe_usable(ends: tuple[SendPipe, RecvPipe]) -> None:
    send, recv = ends
    for seed in range(3):
        start = time.monotonic()
        with pytest.raises(TransferTimeoutError):
            recv.recv_tensor(timeout=0.05)
        assert time.monotonic() - start < 2
        send.post(np.full(3, seed))
        assert recv.recv_tensor(timeout=5).tolist() == [seed] * 3


def test_a_send_that_times_out_is_withdrawn_and_the_pipe_goes_on(
    ends: tuple[SendPipe, RecvPipe], pair: tuple[Node, Node]
) -> None:
    send, recv = ends
    for seed in range(3):
        with pytest.raises(TransferTimeoutError):
            send.send_tensor(np.full(5, -1), timeout=0.05)
        assert recv.peek() is None
        sent = send.post(np.full(3, seed))
        assert recv.recv_tensor(timeout=5).tolist() == [seed] * 3
        sent.wait(5)
    pair[0].await_used(0)


def test_a_transfer_cancelled_in_the_middle_leaves_the_pipe_usable(
    ends: tuple[SendPipe, RecvPipe], pair: tuple[Node, Node]
) -> None:
    producer, consumer = pair
    send, recv = ends
    sent = send.post(pattern(1, 9_000_000))
    consumer.gate("scatter", 1)
    with pytest.raises(TransferTimeoutError):
        recv.recv_tensor(timeout=0.2)
    with pytest.raises(KeyDroppedError):
        sent.wait(5)
    consumer.gate("scatter", None)
    send.post(pattern(2, 9_000_000))
    assert np.array_equal(recv.recv_tensor(timeout=5), pattern(2, 9_000_000))
    producer.await_used(0)


def test_channels_of_one_link_do_not_mix(ends: tuple[SendPipe, RecvPipe], pair: tuple[Node, Node]) -> None:
    send, recv = ends
    producer, consumer = pair
    consumer.open_pipe("other", "send")
    producer.open_pipe("other", "recv")
    consumer.begin_send("back", "other", 5, 1000)
    send.post(pattern(6, 2000))
    producer.recv("other", 5, 1000)
    assert np.array_equal(recv.recv_tensor(timeout=5), pattern(6, 2000))
    consumer.end("back")


def test_pages_go_through_a_pipe_with_blocks_left_out(ends: tuple[SendPipe, RecvPipe]) -> None:
    send, recv = ends
    memory, target = pattern(1, 64 * 100), np.zeros(64 * 100, dtype=np.uint8)
    sent = send.post(Pages.of([Region.over(memory, 64)], [5, 9, 2]))
    offer = recv.peek(5)
    assert offer is not None
    with pytest.raises(SpecMismatchError):
        recv.recv_tensor(timeout=1)
    recv.accept(offer, Pages.of([Region.over(target, 64)], [1, 2]), skip=1).wait(5)
    sent.wait(5)
    assert np.array_equal(target.reshape(-1, 64)[[1, 2]], memory.reshape(-1, 64)[[9, 2]])
    assert not target.reshape(-1, 64)[3:].any()
