"""Descriptors that no message can carry are refused where they are made, and what was held for them is given back."""

from __future__ import annotations

from typing import Any

import pytest

from kvbridge.abc import Key
from kvbridge.control.messages import MAX_BLOB
from kvbridge.errors import CapacityError, KeyDroppedError
from tests.direct import DirectBackend, DirectOptions, fresh
from tests.nodes import pattern
from tests.sides import two_ends, two_sides


class Verbose(DirectBackend):
    """Describes what it holds, or where it lands, at length."""

    surplus = 0

    def hold(self, payload: Any) -> Any:
        held = super().hold(payload)
        held.descriptor = held.descriptor.ljust(self.surplus, b".")
        return held

    def land(self, link: Any, spec: Any, descriptor: bytes, out: Any, skip: int) -> Any:
        landing = super().land(link, spec, descriptor.rstrip(b"."), out, skip)
        landing.descriptor = landing.descriptor.ljust(self.surplus, b".")
        self.targets[landing.descriptor] = landing
        return landing


def sides(mover: Any = "consumer", *, producer: int = 0, consumer: int = 0) -> tuple[Verbose, Verbose]:
    made = Verbose(DirectOptions(mover)), Verbose(DirectOptions(mover))
    made[0].surplus, made[1].surplus = producer, consumer
    return made


def test_the_longest_descriptor_fits() -> None:
    with two_sides(*sides(producer=MAX_BLOB)) as (producer, consumer):
        producer.buffer.insert(Key("k"), pattern(1, 100))
        out = fresh(100)
        consumer.buffer.drop_select(Key("k", producer.endpoint.address), out).wait(5)
        assert (out == pattern(1, 100)).all()


def test_a_longer_one_is_refused_and_its_key_says_so() -> None:
    with two_sides(*sides(producer=MAX_BLOB + 1)) as (producer, consumer):
        inserted = producer.buffer.insert(Key("k"), pattern(1, 100))
        with pytest.raises(CapacityError, match=f"{MAX_BLOB + 1} bytes"):
            inserted.wait(5)
        with pytest.raises(KeyDroppedError):
            consumer.buffer.drop_select(Key("k", producer.endpoint.address), fresh(100)).wait(5)
        send, _ = two_ends(producer, consumer)
        with pytest.raises(CapacityError):
            send.post(pattern(1, 100)).wait(5)
        assert [held.released for held in producer.backend.held] == [1, 1]


def test_a_destination_that_takes_too_long_to_describe_is_refused() -> None:
    with two_sides(*sides("producer", consumer=MAX_BLOB + 1)) as (producer, consumer):
        inserted = producer.buffer.insert(Key("k"), pattern(1, 100))
        with pytest.raises(CapacityError):
            consumer.buffer.drop_select(Key("k", producer.endpoint.address), fresh(100)).wait(5)
        inserted.wait(5)


def test_a_release_that_raises_keeps_nobody_from_his_own(caplog: pytest.LogCaptureFixture) -> None:
    class Raises(DirectBackend):
        def hold(self, payload: Any) -> Any:
            held = super().hold(payload)
            held.release = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
            return held

    with two_sides(Raises(DirectOptions()), DirectBackend(DirectOptions())) as (producer, consumer):
        inserted = producer.buffer.insert(Key("k"), pattern(1, 100))
        consumer.buffer.drop_select(Key("k", producer.endpoint.address), fresh(100)).wait(5)
        inserted.wait(5)
        send, recv = two_ends(producer, consumer)
        posted = send.post(pattern(1, 100))
        recv.recv_tensor(timeout=5)
        posted.wait(5)
    assert "must not" in caplog.text
