"""What plans of faults do to the messages of a pipe and to the calls of a buffer."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvbridge.errors import (
    CancelledError,
    ClosedError,
    ConfigError,
    EndOfPipeError,
    KeyDroppedError,
    TransferTimeoutError,
    TransportError,
)
from kvbridge.layers.faulty import Fault, Faults, FaultyBuffer, faulty_recv, faulty_send
from kvbridge.memory import Pages, Region
from kvbridge_cpu import CpuBackend, CpuOptions
from tests.direct import fresh
from tests.nodes import eventually, pattern
from tests.sides import Side, two_ends, two_sides

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbridge.abc import RecvPipe, SendPipe

NBYTES = 1000

ENDS = pytest.mark.parametrize("end", ["send", "recv"])


@pytest.fixture
def sides() -> Iterator[tuple[Side, Side]]:
    made = [CpuBackend(CpuOptions(capacity="64MiB")) for _ in range(2)]
    with two_sides(made[0], made[1]) as both:
        yield both


def pipe(
    sides: tuple[Side, Side], end: str, *faults: Fault, channel: str = "c", **options: Any
) -> tuple[SendPipe, RecvPipe, Faults]:
    """A pipe with faults at one end."""
    send, recv = two_ends(*sides, channel)
    plan = Faults(*faults, **options)
    return (faulty_send(send, plan), recv, plan) if end == "send" else (send, faulty_recv(recv, plan), plan)


def posted(send: SendPipe, count: int) -> list[Any]:
    return [send.post(pattern(seed, NBYTES), tag=seed) for seed in range(count)]


def received(recv: RecvPipe, count: int) -> list[int]:
    """Tags of what comes, and of anything beyond; the bytes have to be those of their tag."""
    tags: list[int] = []
    while (offer := recv.peek(5 if len(tags) < count else 0.05)) is not None:
        out = fresh(NBYTES)
        recv.accept(offer, out).wait(5)
        assert np.array_equal(out, pattern(offer.tag, NBYTES))
        tags.append(offer.tag)
    return tags


# -- pipes ----------------------------------------------------------------------------------------------------


@ENDS
def test_an_end_without_faults_changes_nothing(sides: tuple[Side, Side], end: str) -> None:
    send, recv, plan = pipe(sides, end)
    transfers = posted(send, 5)
    assert received(recv, 5) == [0, 1, 2, 3, 4]
    for transfer in transfers:
        transfer.wait(5)
    assert plan.events == 5
    refused = send.post(pattern(1, NBYTES))
    offer = recv.peek(5)
    assert offer is not None
    assert recv.peek() is offer
    recv.decline(offer)
    with pytest.raises(KeyDroppedError):
        refused.wait(5)
    withdrawn = send.post(pattern(6, NBYTES), tag=6)
    assert recv.peek(5) is not None
    withdrawn.cancel()
    with pytest.raises(TransferTimeoutError):
        send.send_tensor(pattern(1, NBYTES), 0.05)  # withdrawn before anybody looked
    last = send.post(pattern(7, NBYTES), tag=7)
    eventually(lambda: (o := recv.peek()) is not None and o.tag == 7, 5, lambda: "a withdrawn offer stands")
    assert received(recv, 1) == [7]
    last.wait(5)
    send.close()
    with pytest.raises(EndOfPipeError):
        recv.peek(5)
    recv.close()
    with pytest.raises(ClosedError):
        recv.peek()
    with pytest.raises(ClosedError):
        send.post(fresh(1))


@ENDS
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault("drop", at=1), [0, 2, 3]),
        (Fault("drop", at=1, count=2), [0, 3]),
        (Fault("duplicate", at=1), [0, 1, 1, 2, 3]),
        (Fault("reorder", at=1), [0, 2, 1, 3]),
        (Fault("reorder", at=0, count=0), [1, 0, 3, 2]),
    ],
)
def test_messages_are_lost_doubled_and_swapped(
    sides: tuple[Side, Side], end: str, fault: Fault, expected: list[int]
) -> None:
    send, recv, _ = pipe(sides, end, fault)
    transfers = posted(send, 4)
    assert received(recv, len(expected)) == expected
    for transfer in transfers:
        transfer.wait(5)


@ENDS
def test_the_same_seed_does_the_same_to_the_same_messages(sides: tuple[Side, Side], end: str) -> None:
    rates: Any = {"drop": 0.2, "duplicate": 0.2, "reorder": 0.2}
    runs = []
    for channel in ("one", "two"):
        send, recv, plan = pipe(sides, end, channel=channel, seed=3, rates=rates)
        transfers = posted(send, 20)
        tags = received(recv, 0)
        while (more := received(recv, 0)) or not all(transfer.poll() for transfer in transfers[:-1]):
            tags += more
        runs.append((tags, plan.log))
        send.close()
        recv.close()
        assert len(transfers) == 20
    assert runs[0] == runs[1]
    assert runs[0][0] != list(range(20))


@ENDS
@pytest.mark.parametrize("kind", ["corrupt", "truncate"])
@pytest.mark.parametrize("what", ["tensor", "pages"])
def test_a_message_arrives_changed_and_its_source_stays_as_it_was(
    sides: tuple[Side, Side], end: str, kind: Any, what: str
) -> None:
    send, recv, _ = pipe(sides, end, Fault(kind), seed=1)
    memory = [np.ones(NBYTES, dtype=np.uint8), fresh(NBYTES)]
    payloads = memory if what == "tensor" else [Pages.of([Region.over(m, 10)], np.arange(100)) for m in memory]
    sent = send.post(payloads[0])
    offer = recv.peek(5)
    assert offer is not None
    recv.accept(offer, payloads[1]).wait(5)
    sent.wait(5)
    assert memory[0].all()
    assert np.count_nonzero(memory[1] != 1) == (1 if kind == "corrupt" else 250)
    assert kind == "corrupt" or not memory[1][750:].any()


@ENDS
def test_a_message_that_fails_is_not_delivered(sides: tuple[Side, Side], end: str) -> None:
    send, recv, _ = pipe(sides, end, Fault("fail"))
    transfers = posted(send, 2)
    if end == "recv":
        offer = recv.peek(5)
        assert offer is not None
        with pytest.raises(TransportError, match="fault injected at message 0"):
            recv.accept(offer, fresh(NBYTES)).wait(5)
    assert received(recv, 1) == [1]
    with pytest.raises(TransportError if end == "send" else KeyDroppedError):
        transfers[0].wait(5)
    transfers[1].wait(5)


@ENDS
def test_a_delayed_message_comes_late_and_in_order(sides: tuple[Side, Side], end: str) -> None:
    send, recv, _ = pipe(sides, end, Fault("delay", at=1, seconds=0.3))
    began = time.monotonic()
    posted(send, 3)
    if end == "recv":
        assert received(recv, 1) == [0]
    assert received(recv, 2) == ([0, 1, 2] if end == "send" else [1, 2])
    assert time.monotonic() - began >= 0.3


def test_a_paused_message_is_seen_when_it_is_let(sides: tuple[Side, Side]) -> None:
    send, recv, plan = pipe(sides, "recv", Fault("pause", at=1))
    posted(send, 3)
    assert received(recv, 1) == [0]
    assert plan.reached.is_set()
    plan.open()
    assert received(recv, 2) == [1, 2]


def test_a_paused_end_can_be_closed(sides: tuple[Side, Side]) -> None:
    send, recv, plan = pipe(sides, "recv", Fault("pause"), Fault("duplicate"))
    posted(send, 1)
    found: list[BaseException] = []

    def look() -> None:
        try:
            recv.peek(20)
        except ClosedError as error:
            found.append(error)

    looking = threading.Thread(target=look)
    looking.start()
    assert plan.reached.wait(5)
    recv.close()
    looking.join(5)
    assert len(found) == 1


@ENDS
def test_a_kill_strikes_its_message(sides: tuple[Side, Side], end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *what: killed.append(what))
    send, recv, _ = pipe(sides, end, Fault("kill", at=1))
    posted(send, 1)
    assert received(recv, 1) == [0]
    assert not killed
    posted(send, 1)
    received(recv, 1)
    assert killed == [(os.getpid(), signal.SIGKILL)]


def test_a_message_that_was_kept_back_can_be_cancelled_and_is_given_back_at_the_end(
    sides: tuple[Side, Side],
) -> None:
    send, recv, _ = pipe(sides, "send", Fault("reorder", count=0))
    first, second = send.post(pattern(0, NBYTES)), None
    first.cancel()
    with pytest.raises(CancelledError):
        first.wait(5)
    send.post(pattern(1, NBYTES), tag=1)
    assert received(recv, 1) == [1]
    second = send.post(pattern(2, NBYTES))
    third = send.post(pattern(3, NBYTES))
    eventually(lambda: recv.peek() is not None, 5, lambda: "nothing came")
    second.cancel()  # posted by now
    with pytest.raises(CancelledError):
        second.wait(5)
    fourth = send.post(pattern(4, NBYTES))
    send.close()
    for transfer in (third, fourth):
        with pytest.raises(ClosedError):
            transfer.wait(5)


def test_what_was_overtaken_is_seen_when_its_pipe_ends(sides: tuple[Side, Side]) -> None:
    send, recv, _ = pipe(sides, "recv", Fault("reorder"))
    (transfer,) = posted(send, 1)
    assert recv.peek(0.2) is None
    transfer.wait(5)
    send.close()
    assert np.array_equal(recv.recv_tensor(timeout=5), pattern(0, NBYTES))
    with pytest.raises(EndOfPipeError):
        recv.peek(5)


def test_faults_that_cannot_happen_to_an_end_are_refused(sides: tuple[Side, Side]) -> None:
    with pytest.raises(ConfigError, match="'pause' cannot happen to a message that is sent"):
        pipe(sides, "send", Fault("pause"))
    with pytest.raises(ConfigError, match="'reorder' cannot happen to a call"):
        FaultyBuffer(sides[0].buffer, insert=Faults(Fault("reorder")))
    with pytest.raises(ConfigError, match="'pause' cannot happen to a call"):
        FaultyBuffer(sides[0].buffer, select=Faults(Fault("pause")))
