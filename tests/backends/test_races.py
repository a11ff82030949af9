"""Calls that meet each other in the middle: none of them is lost."""

from __future__ import annotations

import errno
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zmq

from kvbridge.abc import Key
from kvbridge.control.messages import Pong
from kvbridge.errors import ClosedError, KVBridgeError, PeerClosedError, StaleGenerationError
from tests.nodes import Node, eventually, pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.transfer import Transfer


@pytest.mark.parametrize("what", ["endpoint", "buffer", "everything"])
def test_every_transfer_that_was_started_while_closing_finishes(what: str) -> None:
    for _ in range(6):
        producer, consumer = Node(capacity="1MiB"), Node(capacity="1MiB")
        key = Key("never", producer.endpoint.address)
        consumer.buffer.contains([key]).wait(5)
        started: list[Transfer[Any]] = []
        stop = threading.Event()

        def ask(consumer: Node = consumer, started: Any = started, stop: Any = stop, key: Key = key) -> None:
            while not stop.is_set():
                started.append(consumer.buffer.claim(key))
                started.append(consumer.buffer.contains([key]))
                try:
                    started.append(consumer.endpoint.dial(key.home))
                except ClosedError:
                    return

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.005)
        {"endpoint": consumer.endpoint.close, "buffer": consumer.buffer.close, "everything": consumer.close}[what]()
        stop.set()
        for thread in threads:
            thread.join(5)
        deadline = time.monotonic() + 10
        hanging = [t for t in started if not t.poll()]
        while hanging and time.monotonic() < deadline:
            time.sleep(0.01)
            hanging = [t for t in hanging if not t.poll()]
        consumer.close()
        producer.close()
        assert not hanging


def test_who_asks_for_any_generation_is_not_told_that_another_one_is_stale(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    address, generation = producer.where()
    consumer.endpoint.call_soon(lambda: time.sleep(0.05))
    stale = consumer.endpoint.dial(address, generation + 1)
    any_of_them = consumer.endpoint.dial(address)
    right = consumer.endpoint.dial(address, generation)
    with pytest.raises(StaleGenerationError):
        stale.wait(5)
    assert any_of_them.wait(5).peer.generation == generation
    assert right.wait(5).peer.generation == generation


def test_a_question_that_comes_before_the_buffer_is_opened_is_answered_after(node: Callable[..., Node]) -> None:
    producer, consumer = node(), node()
    buffer = producer.buffer
    served = producer.endpoint._services.pop("buffer")  # as before open_buffer
    consumer.begin("early", "drop_select", Key("k", producer.endpoint.address), 1, 1000, timeout=3)
    producer.link()
    consumer.flush()
    time.sleep(0.1)
    producer.flush()
    producer.endpoint.call_soon(lambda: producer.endpoint.serve("buffer", served))
    buffer.insert(Key("k"), pattern(1, 1000)).wait(5)
    consumer.end("early")


def test_sockets_that_have_run_out_are_an_error_of_the_dial(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, consumer = pair

    def refuse(*_: Any) -> Any:
        raise zmq.ZMQError(errno.EMFILE)

    with monkeypatch.context() as patched:
        patched.setattr(consumer.endpoint._sockets._context, "socket", refuse)
        claim = consumer.buffer.claim(Key("k", producer.endpoint.address))
        with pytest.raises(KVBridgeError) as found:
            claim.wait(3)
        assert "did not finish" not in str(found.value)
    producer.insert("k", 1, 1000)
    consumer.take(Key("k", producer.endpoint.address), 1, 1000)


def test_both_sides_may_dial_each_other_at_once(pair: tuple[Node, Node]) -> None:
    one, two = pair
    one.insert("a", 1, 1000)
    two.insert("b", 2, 1000)
    one.begin("b", "drop_select", Key("b", two.endpoint.address), 2, 1000)
    two.begin("a", "drop_select", Key("a", one.endpoint.address), 1, 1000)
    one.end("b")
    two.end("a")


def test_many_threads_use_one_buffer(pair: tuple[Node, Node]) -> None:
    producer, consumer = pair
    home = producer.endpoint.address
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for round_ in range(15):
                name, seed = f"{number}-{round_}", 100 * number + round_
                out = np.zeros(20_000, dtype=np.uint8)
                taken = consumer.buffer.drop_select(Key(name, home), out)
                producer.buffer.insert(Key(name), pattern(seed, 20_000)).wait(10)
                taken.wait(10)
                assert np.array_equal(out, pattern(seed, 20_000))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not failures
    producer.await_stats(taken=90, entries=0)
    producer.await_used(0)


def test_a_link_that_closes_in_order_is_never_taken_for_a_death(node: Callable[..., Node]) -> None:
    """The goodbye lies unread in the socket when a heartbeat finds that the connection is gone."""
    producer = node()
    for _ in range(5):
        consumer = Node(capacity="1MiB")
        consumer.dial(producer.endpoint.address)
        link = producer.link()
        producer.flush()
        producer.endpoint.call_soon(lambda: time.sleep(0.15))
        producer.endpoint.call_soon(lambda link=link: link.send(Pong()))
        consumer.close()
        eventually(lambda link=link: not link.up, 3.0, lambda: "the goodbye did not come")
        assert isinstance(link.error, PeerClosedError)
        producer.links.clear()
