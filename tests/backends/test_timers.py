"""Timers keep what their calls refer to: what has ended leaves none, however long its lease would have been."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvbridge.abc import Key
from kvbridge.control import reactor
from kvbridge.control.endpoint import Endpoint
from tests.direct import DirectBackend, DirectOptions, fresh
from tests.sides import two_ends, two_sides


def timers(endpoint: Endpoint) -> int:
    """Those that refer to something."""
    return sum(timer.call is not None for _, _, timer in endpoint._reactor._timers)


def test_hand_overs_leave_no_timer() -> None:
    with two_sides(DirectBackend(DirectOptions()), DirectBackend(DirectOptions())) as (producer, consumer):
        send, recv = two_ends(producer, consumer)

        def turn(number: int) -> None:
            key = Key(f"k{number}", producer.endpoint.address)
            if number % 2:
                taken = consumer.buffer.drop_select(key, fresh(100))
            inserted = producer.buffer.insert(Key(f"k{number}"), np.ones(100, dtype=np.uint8), lease=600)
            if not number % 2:
                taken = consumer.buffer.drop_select(key, fresh(100), timeout=600)
            taken.wait(5)
            inserted.wait(5)
            consumer.buffer.contains([key], timeout=600).wait(5)
            given_up = consumer.buffer.claim(Key("never", producer.endpoint.address), timeout=600)
            given_up.cancel()
            posted = send.post(np.ones(100, dtype=np.uint8))
            recv.recv_tensor(timeout=5)
            posted.wait(5)

        for number in range(5):
            turn(number)
        before = [timers(side.endpoint) for side in (producer, consumer)]
        for number in range(5, 300):
            turn(number)
        for side, count in zip((producer, consumer), before, strict=True):
            assert timers(side.endpoint) <= count + 4
            assert len(side.endpoint._reactor._timers) < 4 * reactor.MIN_CANCELLED


def test_a_cancelled_timer_does_not_fire_and_those_between_do() -> None:
    fired: list[Any] = []
    endpoint = Endpoint(DirectBackend(DirectOptions()))
    done = endpoint.dial("tcp://127.0.0.1:1")  # something to wait for below

    def make() -> None:
        made = [endpoint.after(0.001 * number, lambda number=number: fired.append(number)) for number in range(1000)]
        for number, timer in enumerate(made):
            if number % 10:
                timer.cancel()
                timer.cancel()
        endpoint.after(1.2, lambda: fired.append("end"))

    endpoint.call_soon(make)
    while "end" not in fired:
        done.poll()
    endpoint.close()
    assert fired == [*range(0, 1000, 10), "end"]
