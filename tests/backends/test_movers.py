"""What the core promises with a backend that keeps no copy, whichever side moves: abort is a barrier."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvbridge.abc import Key
from kvbridge.buffers import producer as producer_module
from kvbridge.control.endpoint import Endpoint
from kvbridge.control.messages import Done
from kvbridge.errors import (
    CancelledError,
    KeyDroppedError,
    KVBridgeError,
    LeaseExpiredError,
    TransferTimeoutError,
    TransportError,
)
from tests.direct import DirectBackend, DirectOptions, fresh
from tests.nodes import eventually, pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NBYTES = 10_000
MOVERS = ["consumer", "producer", "both"]


class Side:
    """Backend, endpoint and buffer of one side."""

    def __init__(self, mover: Any) -> None:
        self.backend = DirectBackend(DirectOptions(mover))
        self.endpoint = Endpoint(self.backend)
        self.buffer = self.backend.open_buffer(self.endpoint, timeout=20)

    def close(self) -> None:
        self.buffer.close()
        self.endpoint.close()
        self.backend.close()


@pytest.fixture
def sides() -> Iterator[Callable[[str], tuple[Side, Side]]]:
    made: list[Side] = []

    def make(mover: str) -> tuple[Side, Side]:
        made.extend((Side(mover), Side(mover)))
        return made[-2], made[-1]

    yield make
    for side in reversed(made):
        side.close()


def mover_of(producer: Side, consumer: Side, mover: str) -> DirectBackend:
    """The backend whose gate, stubbornness and failures decide."""
    return consumer.backend if mover == "consumer" else producer.backend


def finish_halves(consumer: Side) -> None:
    """Let the receiving half of a two-sided move end."""
    eventually(lambda: bool(consumer.backend.landings), 5.0, lambda: "no landing")
    for landing in consumer.backend.landings:
        landing.half_done = True


def start(producer: Side, consumer: Side, value: Any, out: Any) -> tuple[Any, Any]:
    inserted = producer.buffer.insert(Key("k"), value)
    return inserted, consumer.buffer.drop_select(Key("k", producer.endpoint.address), out)


@pytest.mark.parametrize("mover", MOVERS)
def test_a_value_arrives_and_its_source_is_held_until_then(
    sides: Callable[[str], tuple[Side, Side]], mover: str
) -> None:
    producer, consumer = sides(mover)
    value, out = pattern(1, NBYTES), fresh(NBYTES)
    gate = mover_of(producer, consumer, mover).gate
    gate.shut_after(3)
    inserted, taken = start(producer, consumer, value, out)
    assert gate.reached.wait(5)
    assert not inserted.poll()
    assert not taken.poll()
    gate.open()
    if mover == "both":
        time.sleep(0.05)
        assert not taken.poll(), "a two-sided move is done when both halves are"
        finish_halves(consumer)
    taken.wait(5)
    inserted.wait(5)
    assert np.array_equal(out, value)
    assert [held.released for held in producer.backend.held] == [1]


@pytest.mark.parametrize("how", ["drop", "expire", "cancel", "close"])
def test_a_source_that_nobody_takes_is_given_back_once(sides: Callable[[str], tuple[Side, Side]], how: str) -> None:
    producer, _ = sides("consumer")
    inserted = producer.buffer.insert(Key("k"), pattern(1, NBYTES), lease=0.2 if how == "expire" else 0.0)
    eventually(lambda: bool(producer.backend.held), 5.0, lambda: "not held")
    assert not inserted.poll()
    if how == "drop":
        producer.buffer.drop([Key("k")])
    elif how == "cancel":
        inserted.cancel()
    elif how == "close":
        producer.buffer.close()
    inserted.wait(5)
    assert [held.released for held in producer.backend.held] == [1]


@pytest.mark.parametrize("end", ["cancel", "deadline"])
@pytest.mark.parametrize("mover", ["consumer", "producer"])
def test_a_cancelled_transfer_is_not_finished_while_bytes_may_still_land(
    sides: Callable[[str], tuple[Side, Side]], mover: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, consumer = sides(mover)
    value, out = pattern(1, NBYTES), fresh(NBYTES)
    moving = mover_of(producer, consumer, mover)
    moving.stubborn = True
    moving.gate.shut_after(3)
    if end == "deadline":
        monkeypatch.setattr(consumer.buffer._seeker, "_timeout", 0.1)
    inserted, taken = start(producer, consumer, value, out)
    assert moving.gate.reached.wait(5)
    if end == "cancel":
        taken.cancel()
    with pytest.raises(TransferTimeoutError, match=r"did not finish within 0\.2 s"):
        taken.wait(0.2)
    assert not inserted.poll(), "the source is free although the mover has not ended"
    assert not any(held.released for held in producer.backend.held)
    moving.gate.open()
    with pytest.raises((CancelledError, TransferTimeoutError)):
        taken.wait(5)
    (copy,) = consumer.backend.landings if mover == "consumer" else producer.backend.moves
    assert copy.over, "the transfer ended before its mover did"
    inserted.wait(5)
    assert [held.released for held in producer.backend.held] == [1]


@pytest.mark.parametrize("mover", MOVERS)
def test_a_move_that_can_be_aborted_ends_soon(sides: Callable[[str], tuple[Side, Side]], mover: str) -> None:
    producer, consumer = sides(mover)
    moving = mover_of(producer, consumer, mover)
    moving.gate.shut_after(3)
    out = fresh(NBYTES)
    inserted, taken = start(producer, consumer, pattern(1, NBYTES), out)
    assert moving.gate.reached.wait(5)
    taken.cancel()
    with pytest.raises(CancelledError):
        taken.wait(3)
    out[:] = 7
    moving.gate.open()
    inserted.wait(3)
    time.sleep(0.02)
    assert (out == 7).all()
    assert all(copy.over for copy in (*producer.backend.moves, *consumer.backend.landings) if copy.aborted)


@pytest.mark.parametrize("error", [TransportError("vendor code 5"), RuntimeError("vendor code 5")])
@pytest.mark.parametrize("mover", MOVERS)
def test_a_move_that_fails_is_told_to_the_consumer_and_frees_the_source(
    sides: Callable[[str], tuple[Side, Side]], mover: str, error: Exception
) -> None:
    producer, consumer = sides(mover)
    mover_of(producer, consumer, mover).failure = error
    inserted, taken = start(producer, consumer, pattern(1, NBYTES), fresh(NBYTES))
    with pytest.raises(TransportError, match="vendor code 5"):
        taken.wait(5)
    inserted.wait(5)
    assert [held.released for held in producer.backend.held] == [1]


@pytest.mark.parametrize("error", [TransportError("vendor code 5"), RuntimeError("vendor code 5")])
def test_a_write_that_cannot_start_is_told_to_the_consumer(
    sides: Callable[[str], tuple[Side, Side]], error: Exception
) -> None:
    producer, consumer = sides("producer")
    producer.backend.refusal = error
    inserted, taken = start(producer, consumer, pattern(1, NBYTES), fresh(NBYTES))
    with pytest.raises(TransportError, match="vendor code 5"):
        taken.wait(5)
    inserted.wait(5)


def test_when_one_half_of_a_two_sided_move_fails_the_other_is_stopped_before_the_transfer_ends(
    sides: Callable[[str], tuple[Side, Side]],
) -> None:
    producer, consumer = sides("both")
    producer.backend.failure = TransportError("vendor code 5")
    consumer.backend.stubborn = True  # the posted receive cannot be taken back; it ends when the library says so
    _, taken = start(producer, consumer, pattern(1, NBYTES), fresh(NBYTES))
    eventually(lambda: any(move.over for move in producer.backend.moves), 5.0, lambda: "the sending half goes on")
    with pytest.raises(TransferTimeoutError):
        taken.wait(0.2)
    (landing,) = consumer.backend.landings
    assert landing.aborted, "nobody asked the receiving half for an end"
    finish_halves(consumer)
    with pytest.raises(TransportError, match="vendor code 5"):
        taken.wait(5)
    assert landing.over


@pytest.mark.parametrize("mover", ["consumer", "producer"])
def test_a_drop_under_a_reader_keeps_the_source_until_the_reader_has_let_go(
    sides: Callable[[str], tuple[Side, Side]], mover: str
) -> None:
    producer, consumer = sides(mover)
    moving = mover_of(producer, consumer, mover)
    moving.stubborn = True
    moving.gate.shut_after(3)
    inserted, taken = start(producer, consumer, pattern(1, NBYTES), fresh(NBYTES))
    assert moving.gate.reached.wait(5)
    producer.buffer.drop([Key("k")])
    with pytest.raises(TransferTimeoutError):
        inserted.wait(0.2)
    assert not taken.poll()
    moving.gate.open()
    with pytest.raises(KeyDroppedError):
        taken.wait(5)
    inserted.wait(5)


@pytest.mark.parametrize("mover", MOVERS)
@pytest.mark.parametrize("closing", [0, 1], ids=["producer", "consumer"])
def test_closing_either_endpoint_in_mid_transfer_ends_both_sides(
    sides: Callable[[str], tuple[Side, Side]], mover: str, closing: int
) -> None:
    pair = sides(mover)
    moving = mover_of(*pair, mover)
    moving.gate.shut_after(3)
    inserted, taken = start(*pair, pattern(1, NBYTES), fresh(NBYTES))
    assert moving.gate.reached.wait(5)
    began = time.monotonic()
    pair[closing].endpoint.close()
    with pytest.raises(KVBridgeError):
        taken.wait(3)
    inserted.wait(3)
    assert time.monotonic() - began < 5
    assert [held.released for held in pair[0].backend.held] == [1]


def test_a_read_that_ends_after_the_lease_does_not_count_although_every_byte_was_there(
    sides: Callable[[str], tuple[Side, Side]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer got its memory back and wrote something else into it while the reader stalled."""
    monkeypatch.setattr(producer_module, "VALID", 0.4)
    producer, consumer = sides("consumer")
    value, out = np.ones(NBYTES, dtype=np.uint8), fresh(NBYTES)
    consumer.backend.gate.shut_after(9)
    inserted, taken = start(producer, consumer, value, out)
    assert consumer.backend.gate.reached.wait(5)
    consumer.endpoint.call_soon(lambda: time.sleep(1.0))
    consumer.backend.gate.open()
    inserted.wait(5)
    value[:] = 2
    with pytest.raises(LeaseExpiredError):
        taken.wait(5)
    assert [held.released for held in producer.backend.held] == [1]


def test_a_consumer_that_lets_go_in_the_middle_does_not_free_a_source_that_still_moves(
    sides: Callable[[str], tuple[Side, Side]],
) -> None:
    producer, consumer = sides("producer")
    producer.backend.stubborn = True
    producer.backend.gate.shut_after(3)
    inserted, _ = start(producer, consumer, pattern(1, NBYTES), fresh(NBYTES))
    assert producer.backend.gate.reached.wait(5)
    link = consumer.endpoint.dial(producer.endpoint.address).wait(5)
    consumer.endpoint.call_soon(lambda: link.send(Done("buffer", 0, taken=False)))
    with pytest.raises(TransferTimeoutError):
        inserted.wait(0.3)
    assert not any(held.released for held in producer.backend.held)
    producer.backend.gate.open()
    inserted.wait(5)
    assert [move.over for move in producer.backend.moves] == [True]
