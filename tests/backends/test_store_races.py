"""A buffer on a store that takes its time: what is under way on one key at once does not spoil each other."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvbridge.abc import Key
from kvbridge.errors import (
    BindingMismatchError,
    DuplicateKeyError,
    KeyConsumedError,
    KeyDroppedError,
    KeyUnknownError,
    KVBridgeError,
    TransferTimeoutError,
    TransportError,
)
from tests.nodes import pattern
from tests.slow_store import NBYTES, K, Process, SlowStore, ThreadedStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.abc import Claim
    from kvbridge.transfer import Transfer


def test_of_two_inserts_of_one_key_the_first_stays(slow: Process) -> None:
    hold = slow.store.hold("put")
    first, second = slow.insert(1), slow.insert(2)
    assert hold.reached.wait(5)
    time.sleep(0.02)
    hold.open()
    first.wait(5)
    with pytest.raises(DuplicateKeyError):
        second.wait(5)
    assert slow.store.begun.count(("put", "k")) == 1
    assert slow.stats("inserted", "refused_duplicate", "failed_insert", "entries") == [1, 1, 0, 1]
    slow.take(1)


def test_a_second_insert_gets_the_key_of_one_that_failed(slow: Process) -> None:
    hold = slow.store.hold("put")
    slow.store.failures["put"] = TransportError("it is gone")
    slow.store.only_next = True
    first, second = slow.insert(1), slow.insert(2)
    assert hold.reached.wait(5)
    hold.open()
    with pytest.raises(TransportError):
        first.wait(5)
    second.wait(5)
    slow.take(2)


def test_of_two_processes_that_insert_one_key_one_is_refused(process: Callable[..., Process]) -> None:
    values: dict[str, Any] = {}
    one, two = process(SlowStore(values=values)), process(SlowStore(values=values))
    holds = [one.store.hold("put"), two.store.hold("put")]
    inserts = [one.insert(1), two.insert(2)]
    assert all(hold.reached.wait(5) for hold in holds)
    holds[1].open()
    inserts[1].wait(5)
    holds[0].open()
    with pytest.raises(DuplicateKeyError):
        inserts[0].wait(5)
    one.take(2)


def test_a_value_of_another_process_is_given_while_an_insert_of_its_key_is_under_way(
    process: Callable[..., Process],
) -> None:
    """That insert will be refused, but not before the claim's deadline."""
    values: dict[str, Any] = {}
    one, two = process(SlowStore(values=values)), process(SlowStore(values=values))
    hold = one.store.hold("put")
    inserted = one.insert(1)
    assert hold.reached.wait(5)
    two.insert(2).wait(5)
    claim = one.buffer.claim(K, timeout=0.05)
    time.sleep(0.3)
    assert not claim.poll()
    hold.open()
    claim.wait(5).release()
    with pytest.raises(DuplicateKeyError):
        inserted.wait(5)


def test_why_a_key_had_no_value_is_forgotten_when_it_has_one_again(process: Callable[..., Process]) -> None:
    values: dict[str, Any] = {}
    one, two = process(SlowStore(values=values)), process(SlowStore(values=values))
    one.insert(1).wait(5)
    one.buffer.drop([K])
    one.insert(2).wait(5)
    two.take(2)
    with pytest.raises(KeyUnknownError):
        one.buffer.claim(K, timeout=0.05).wait(5)


@pytest.mark.parametrize("verb", ["headers", "remove"])
def test_a_lease_that_ends_does_not_cost_the_next_value(slow: Process, verb: str) -> None:
    """The expiry is under way when the next insert comes; it must not remove what that puts."""
    slow.insert(1, lease=0.2).wait(5)
    hold = slow.store.hold(verb)
    assert hold.reached.wait(5)
    inserted = slow.insert(2)
    time.sleep(0.02)
    hold.open()
    inserted.wait(5)
    slow.settle()
    assert slow.stats("expired", "inserted", "entries") == [1, 2, 1]
    slow.take(2)


@pytest.mark.parametrize("verb", ["headers", "remove", "put"])
def test_an_insert_over_a_value_that_lapses_meanwhile(slow: Process, verb: str) -> None:
    """The insert comes first, and the lease's end is due when it has begun."""
    slow.insert(1, lease=0.3).wait(5)
    expires = slow.buffer._keeper._entries["k"][1]  # type: ignore[attr-defined]
    slow.endpoint.call_soon(lambda: time.sleep(max(0.0, expires - time.time()) + 0.01))
    hold = slow.store.hold(verb)
    inserted = slow.insert(2)  # its call is run before the timer
    assert hold.reached.wait(5)
    time.sleep(0.05)
    hold.open()
    inserted.wait(5)
    slow.settle()
    assert slow.stats("expired", "inserted", "entries") == [1, 2, 1]
    slow.take(2)


def test_a_value_that_another_process_put_in_its_place_outlives_the_first_lease(
    process: Callable[..., Process],
) -> None:
    values: dict[str, Any] = {}
    one, two = process(SlowStore(values=values)), process(SlowStore(values=values))
    one.insert(1, lease=0.3).wait(5)
    two.take(1)
    two.insert(2).wait(5)
    one.await_stats(entries=0)
    one.settle()
    assert one.stats("expired") == [0]
    two.take(2)


def test_a_drop_during_an_insert_drops_what_it_put(slow: Process) -> None:
    hold = slow.store.hold("put")
    inserted = slow.insert(1)
    assert hold.reached.wait(5)
    slow.buffer.drop([Key("other"), K])
    time.sleep(0.02)
    hold.open()
    inserted.wait(5)
    with pytest.raises(KeyDroppedError):
        slow.buffer.claim(K).wait(5)
    slow.await_stats(dropped=1, inserted=1, entries=0)
    assert not slow.store.values


def test_an_insert_after_a_drop_stays(slow: Process) -> None:
    slow.insert(1).wait(5)
    hold = slow.store.hold("remove")
    slow.buffer.drop([K])
    inserted = slow.insert(2)
    assert hold.reached.wait(5)
    hold.open()
    inserted.wait(5)
    slow.take(2)


def test_what_is_dropped_is_not_found_by_who_asks_afterwards(slow: Process) -> None:
    slow.insert(1).wait(5)
    hold = slow.store.hold("remove")
    slow.buffer.drop([K])
    claims = [slow.buffer.claim(K, take=take) for take in (True, False)]
    assert hold.reached.wait(5)
    hold.open()
    for claim in claims:
        with pytest.raises(KeyDroppedError):
            claim.wait(5)
    assert slow.stats("taken", "dropped") == [0, 1]


def test_what_is_being_taken_is_not_dropped(slow: Process) -> None:
    slow.insert(1).wait(5)
    hold = slow.store.hold("find")
    claim = slow.buffer.claim(K)
    assert hold.reached.wait(5)
    slow.buffer.drop([K])
    hold.open()
    claim.wait(5).release()
    slow.settle()
    assert slow.stats("taken", "dropped") == [1, 0]


def test_of_many_who_take_one_gets_it(slow: Process) -> None:
    claims = [slow.buffer.claim(K) for _ in range(8)]
    slow.insert(1).wait(5)
    won: list[Claim] = []
    for claim in claims:
        try:
            won.append(claim.wait(5))
        except KeyConsumedError:
            continue
    assert len(won) == 1
    won[0].release()
    assert slow.stats("taken") == [1]


def test_a_value_that_was_replaced_between_look_and_find_is_not_given(stepped: Process) -> None:
    """Another process has taken it, and put one that is KV of something else."""
    stepped.insert(2, Key("else"), digest=b"else").wait(5)
    stepped.insert(1, digest=b"wanted").wait(5)
    hold = stepped.store.hold("find")
    claim = stepped.buffer.claim(K, digest=b"wanted")
    assert hold.reached.wait(5)
    stepped.store.values["k"] = stepped.store.values["else"]
    hold.open()
    with pytest.raises(BindingMismatchError):
        claim.wait(5)
    assert [stored.releases for stored in stepped.store.given] == [1]


def begin(one: Process, verb: str, seed: int, out: Any, lease: float) -> Transfer[Any] | None:
    """Start something on the key of this number, whose value always has the same bytes."""
    key = Key(f"k{seed}")
    if verb == "insert":
        return one.insert(seed, key, lease=lease)
    if verb == "take":
        return one.buffer.drop_select(key, out, timeout=0.05)
    if verb == "select":
        return one.buffer.select(key, out, timeout=0.05)
    if verb == "contains":
        return one.buffer.contains([key])
    one.buffer.drop([key])
    return None


def do_anything(processes: list[Process], chance: random.Random) -> str:
    """Do something somewhere, and perhaps cancel it. Returns what is wrong."""
    verb = chance.choice(["insert", "insert", "take", "select", "drop", "contains"])
    seed, out = chance.randrange(4), np.zeros(NBYTES, dtype=np.uint8)
    transfer = begin(chance.choice(processes), verb, seed, out, chance.choice([0.01, 60]))
    if transfer is None:
        return ""
    if chance.random() < 0.3:
        time.sleep(chance.random() * 0.01)
        transfer.cancel()
    try:
        transfer.wait(10)
    except TransferTimeoutError as error:
        return f"{verb}: {error}"
    except KVBridgeError:
        return ""
    right = verb not in ("take", "select") or np.array_equal(out, pattern(seed, NBYTES))
    return "" if right else f"{verb}: wrong bytes"


@pytest.mark.parametrize("kind", [SlowStore, ThreadedStore])
def test_whatever_is_done_at_once_every_value_is_accounted_for(
    process: Callable[..., Process], kind: type[SlowStore]
) -> None:
    values: dict[str, Any] = {}
    processes = [process(kind(values=values)) for _ in range(2)]
    wrong: list[str] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        wrong.extend(filter(None, (do_anything(processes, chance) for _ in range(100))))

    threads = [threading.Thread(target=work, args=[seed]) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    time.sleep(0.1)  # the last leases
    for one in processes:
        one.settle()
    inserted, *gone = np.sum([one.stats("inserted", "taken", "dropped", "expired") for one in processes], axis=0)
    assert inserted <= sum(gone) + len(values), "a value is gone that nobody took, dropped or saw expire"
    assert min(gone) > 0
