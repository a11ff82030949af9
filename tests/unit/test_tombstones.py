"""Tombstones: why a key has no value is remembered for a while, for so many keys, and no longer."""

from __future__ import annotations

import pytest

from kvbridge.buffers import tombstones
from kvbridge.buffers.tombstones import KEEP, Tombstones
from kvbridge.errors import KeyConsumedError, KeyExpiredError
from tests.clock import Clock, stopped_clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return stopped_clock(monkeypatch, tombstones)


def test_a_key_answers_with_its_own_reason_until_it_is_used_anew() -> None:
    stones = Tombstones()
    consumed, expired = KeyConsumedError("a"), KeyExpiredError("b")
    stones.set("a", consumed)
    stones.set("b", expired)
    assert (stones.get("a"), stones.get("b"), stones.get("c")) == (consumed, expired, None)
    stones.set("a", expired)
    assert stones.get("a") is expired
    stones.discard("a")
    stones.discard("unknown")
    assert stones.get("a") is None


def test_only_the_newest_keys_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tombstones, "MAX_KEYS", 10)
    stones = Tombstones()
    for number in range(10):
        stones.set(f"{number}", KeyConsumedError("x"))
    stones.set("0", KeyConsumedError("again"))  # is the newest now
    for number in range(10, 15):
        stones.set(f"{number}", KeyConsumedError("x"))
    kept = [number for number in range(15) if stones.get(f"{number}") is not None]
    assert kept == [0, *range(6, 15)]


def test_old_keys_are_forgotten(clock: Clock) -> None:
    stones = Tombstones()
    stones.set("old", KeyConsumedError("x"))
    clock.now += KEEP / 2
    stones.set("young", KeyConsumedError("x"))
    clock.now += KEEP / 2 + 1
    stones.set("new", KeyConsumedError("x"))
    assert stones.get("old") is None
    assert stones.get("young") is not None
    assert len(stones._keys) == 2
