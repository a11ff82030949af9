"""A cancelled transfer ends soon, with its memory safe, and what it asked for is not lost on the way."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvbridge.abc import Key
from kvbridge.buffers.consumer import PipeClaim
from kvbridge.errors import CancelledError, KVBridgeError, TransferTimeoutError
from tests.nodes import MIB, Node, pattern

if TYPE_CHECKING:
    from kvbridge.transfer import Transfer

NBYTES = 8 * MIB


def ends_cancelled(transfer: Transfer[Any]) -> None:
    start = time.monotonic()
    with pytest.raises(CancelledError):
        transfer.wait(5)
    assert time.monotonic() - start < 2


def test_a_claim_that_waits_is_cancelled_and_the_value_goes_to_another(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    claim = consumer.buffer.claim(Key("k", producer.endpoint.address))
    consumer.flush()
    claim.cancel()
    ends_cancelled(claim)
    consumer.buffer.contains([Key("k", producer.endpoint.address)]).wait(5)  # after the cancel on the same link
    producer.insert("k", 1, 1000)
    consumer.take(Key("k", producer.endpoint.address), 1, 1000)


def test_a_claim_cancelled_before_it_was_sent_is_cancelled(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    consumer.endpoint.call_soon(lambda: time.sleep(0.1))
    claim = consumer.buffer.claim(Key("k", producer.endpoint.address))
    claim.cancel()
    ends_cancelled(claim)


@pytest.mark.parametrize("slices", [0, 1, 3])
def test_a_copy_is_cancelled_in_the_middle_and_nothing_is_written_afterwards(
    pair: tuple[Node, Node], slices: int
) -> None:
    producer, consumer = pair
    producer.insert("k", 1, NBYTES)
    out = np.zeros(NBYTES, dtype=np.uint8)
    consumer.gate("scatter", slices)
    transfer = consumer.buffer.drop_select(Key("k", producer.endpoint.address), out)
    consumer.await_gate("scatter")
    transfer.cancel()
    ends_cancelled(transfer)
    out[:] = 7
    consumer.gate("scatter", None)
    consumer.flush()
    producer.await_used(0)
    assert (out == 7).all()


def test_the_deadline_of_a_transfer_ends_it_with_its_memory_safe(pair: tuple[Node, Node], node: Any) -> None:
    producer, _ = pair
    consumer = node(timeout=0.3)
    producer.insert("k", 1, NBYTES)
    out = np.zeros(NBYTES, dtype=np.uint8)
    consumer.gate("scatter", 1)
    transfer = consumer.buffer.drop_select(Key("k", producer.endpoint.address), out)
    with pytest.raises(TransferTimeoutError, match=r"0\.3 s"):
        transfer.wait(5)
    out[:] = 7
    consumer.gate("scatter", None)
    producer.await_used(0)
    assert (out == 7).all()


def test_a_cancel_between_claim_and_fill_is_not_forgotten(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, consumer = pair
    fill = PipeClaim.fill

    def cancel_first(claim: PipeClaim, *args: Any) -> Any:
        transfer.cancel()
        return fill(claim, *args)

    monkeypatch.setattr(PipeClaim, "fill", cancel_first)
    consumer.endpoint.call_soon(lambda: time.sleep(0.05))
    producer.insert("k", 1, NBYTES)
    consumer.gate("scatter", 1)
    transfer = consumer.buffer.drop_select(Key("k", producer.endpoint.address), np.zeros(NBYTES, dtype=np.uint8))
    ends_cancelled(transfer)


def test_an_insert_cancelled_in_the_middle_gives_its_source_and_its_room_back(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    producer.gate("gather", 1)
    transfer = producer.buffer.insert(Key("k"), pattern(1, NBYTES))
    producer.await_gate("gather")
    transfer.cancel()
    with contextlib.suppress(CancelledError):
        transfer.wait(5)
    producer.await_used(0)
    producer.gate("gather", None)
    with pytest.raises(KVBridgeError, match="dropped"):
        consumer.take(Key("k", producer.endpoint.address), 1, NBYTES, timeout=1)


def test_cancelling_what_is_finished_changes_nothing(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    inserted = producer.buffer.insert(Key("k"), pattern(1, 1000))
    inserted.wait(5)
    inserted.cancel()
    producer.flush()
    taken = consumer.buffer.drop_select(Key("k", producer.endpoint.address), np.zeros(1000, dtype=np.uint8))
    taken.wait(5)
    taken.cancel()
    taken.wait(0)
