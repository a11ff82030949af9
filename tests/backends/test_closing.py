"""Closing anything, in any order, with anything under way: every transfer finishes, and soon."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvbridge.abc import Key
from kvbridge.errors import ClosedError, KVBridgeError
from tests.nodes import MIB, Node, pattern

if TYPE_CHECKING:
    from kvbridge.transfer import Transfer

SOON = 3.0
"""Seconds, generous: nothing here may wait for a deadline of 30 s or a lease of 10 s."""

NBYTES = 8 * MIB


class Hangs(Exception):  # noqa: N818 - stands for the lack of one
    """A transfer that did not end."""


def under_way(pair: tuple[Node, Node]) -> dict[str, Transfer[Any]]:
    """One transfer of the consumer in every phase, by what it is."""
    producer, consumer = pair
    key = lambda name: Key(name, *producer.where())  # noqa: E731 - short and local
    producer.insert("claimed", 1, 1000)
    producer.insert("filling", 2, NBYTES)
    consumer.claim("idle", key("claimed"))
    consumer.open_pipe("c", "recv")
    producer.open_pipe("c", "send")
    consumer.gate("scatter", 1)
    found = {
        "claiming": consumer.buffer.claim(key("never")),
        "selecting": consumer.buffer.drop_select(key("never"), np.zeros(3)),
        "asking": consumer.buffer.contains([key("never")]),
        "filling": consumer.buffer.drop_select(key("filling"), np.zeros(NBYTES, dtype=np.uint8)),
    }
    consumer.await_gate("scatter")
    producer.begin_send("posted", "c", 3, 1000)
    offer = consumer.pipes["c"].peek(5)
    producer.begin_send("accepted", "c", 4, 1000)
    assert offer is not None
    found["receiving"] = consumer.pipes["c"].accept(offer, np.zeros(1000, dtype=np.uint8))
    consumer.flush()
    return found


def all_end(transfers: dict[str, Transfer[Any]], since: float) -> dict[str, type[Exception] | None]:
    """How every transfer ends; one that hangs is a failure."""
    found: dict[str, type[Exception] | None] = {}
    for name, transfer in transfers.items():
        with contextlib.suppress(KVBridgeError):
            transfer.wait(max(0.05, since + SOON - time.monotonic()))
        found[name] = type(transfer.error) if transfer.error is not None else None if transfer.poll() else Hangs
    hanging = {name for name, kind in found.items() if kind is Hangs}
    assert not hanging, f"after {SOON} s: {hanging}"
    return found


@pytest.mark.parametrize("what", ["buffer", "endpoint", "everything", "pipe, then buffer"])
def test_whatever_a_consumer_closes_its_transfers_end(pair: tuple[Node, Node], what: str) -> None:
    producer, consumer = pair
    transfers = under_way(pair)
    theirs = {name: transfer for name, (transfer, _) in producer.transfers.items()}
    start = time.monotonic()
    if what == "endpoint":
        consumer.endpoint.close()
    elif what == "everything":
        assert consumer.close() < 2
    else:
        if what.startswith("pipe"):
            consumer.close_pipe("c")
        else:
            transfers.pop("receiving")
        consumer.buffer.close()
    found = all_end(transfers, start)
    for name in ("claiming", "selecting"):
        assert found[name] is ClosedError, name
    assert found["filling"] is not None
    producer.await_stats(SOON, entries=0)
    if what != "buffer":
        all_end(theirs, start)


@pytest.mark.parametrize("what", ["buffer", "endpoint", "everything"])
def test_whatever_a_producer_closes_its_consumers_transfers_end(pair: tuple[Node, Node], what: str) -> None:
    producer, consumer = pair
    transfers = under_way(pair)
    mine = {name: transfer for name, (transfer, _) in producer.transfers.items()}
    start = time.monotonic()
    if what == "buffer":
        producer.buffer.close()
        transfers = {"filling": transfers["filling"]}
        consumer.begin_fill("late", "idle", 1, 1000)
        transfers["late"] = consumer.transfers["late"][0]
        mine = {}
    elif what == "endpoint":
        producer.endpoint.close()
    else:
        assert producer.close() < 2
    all_end({**transfers, **mine}, start)
    consumer.gate("scatter", None)


def test_questions_to_a_producer_whose_buffer_was_closed_are_answered(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    waiting = consumer.buffer.claim(Key("never", *producer.where()), timeout=20)
    consumer.flush()
    consumer.buffer.contains([Key("never", *producer.where())]).wait(5)
    start = time.monotonic()
    producer.buffer.close()
    new = consumer.buffer.claim(Key("other", *producer.where()), timeout=20)
    all_end({"waiting": waiting, "new": new}, start)


def test_a_closed_buffer_refuses_everything_and_closes_twice(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    consumer.buffer.close()
    consumer.buffer.close()
    key = Key("k", *producer.where())
    out = np.zeros(3)
    for transfer in (
        consumer.buffer.insert(Key("k"), out),
        consumer.buffer.claim(key),
        consumer.buffer.select(key, out),
        consumer.buffer.drop_select(key, out),
        consumer.buffer.contains([key]),
    ):
        with pytest.raises(ClosedError):
            transfer.wait(1)
    consumer.buffer.drop([key])
    assert consumer.buffer.stats()["entries"] == 0


def test_a_buffer_on_a_closed_endpoint_refuses_everything_without_raising(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    nothing = consumer.buffer.claim(Key("never", *producer.where()))
    consumer.flush()
    consumer.endpoint.close()
    with pytest.raises(ClosedError):
        consumer.buffer.claim(Key("k", *producer.where())).wait(1)
    consumer.buffer.drop([Key("k", *producer.where())])  # best effort
    nothing.cancel()
    with pytest.raises(ClosedError):
        consumer.endpoint.dial(producer.endpoint.address)


CLOSING = """
import threading, time
from tests.nodes import Node
for _ in range(5):
    node = Node(capacity="1MiB")
    node.dial(node.endpoint.address)
    node.endpoint.call_soon(lambda: time.sleep(0.1))  # so that all of them meet
    threads = [threading.Thread(target=node.endpoint.close) for _ in range(4)]
    threads += [threading.Thread(target=node.buffer.close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    node.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("kvbridge-")]
"""


def test_closing_from_many_threads_at_once_is_closing_once() -> None:
    """In a process of its own: sockets that are closed twice at once abort it."""
    done = subprocess.run([sys.executable, "-c", CLOSING], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr


def test_values_of_a_closed_buffer_are_given_up_and_their_keys_dropped(pair: tuple[Node, Node]) -> None:
    producer, _ = pair
    producer.insert("k", 1, MIB)
    gathering = producer.buffer.insert(Key("g"), pattern(1, 20 * MIB))
    producer.buffer.close()
    gathering.wait(2)  # the source is free
    producer.flush()
    assert (producer.used(), producer.stats()["entries"], producer.stats()["bytes"]) == (0, 0, 0)


def test_an_endpoint_that_ends_too_late_closes_its_sockets_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    """A context of ZeroMQ that is collected with open sockets keeps its process for ever."""
    node = Node(capacity="1MiB")
    go_on = threading.Event()
    node.endpoint.call_soon(lambda: go_on.wait(30) and None)
    node.endpoint.close(timeout=0.1)
    assert "did not stop" in caplog.text
    context = node.endpoint._sockets._context
    assert not context.closed
    go_on.set()
    deadline = time.monotonic() + SOON
    while not context.closed:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    node.close()
