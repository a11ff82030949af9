"""Eviction policies against plain models of what a tier holds, and what each is there for."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbridge.policies import create_policy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvbridge.abc.policy import Policy

NAMES = ["arc", "lru", "s3fifo"]
UNIVERSE = [b"%d" % number for number in range(16)]

LOOKED = 9
"""Keys that a hand looks at in one line before it asks the other: eight that are pinned, and the victim."""

modelled = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
every_policy = pytest.mark.parametrize("name", NAMES)
keys = st.sampled_from(UNIVERSE)
capacities = st.one_of(st.integers(1, 14), st.just(40))  # of 20 and more, s3fifo's small queue has more than one
pins = st.one_of(st.just(0), st.integers(0, 2**16 - 1), st.just(2**16 - 1)).map(
    lambda bits: frozenset(key for place, key in enumerate(UNIVERSE) if bits >> place & 1)
)
steps = st.lists(st.tuples(st.sampled_from(["use", "use", "use", "evict", "discard", "odd"]), keys, pins), max_size=60)


def numbered(first: int, count: int) -> list[bytes]:
    return [b"key %d" % number for number in range(first, first + count)]


def fill(policy: Policy, some: Iterable[bytes]) -> None:
    for key in some:
        policy.insert(key)


def use(policy: Policy, inside: set[bytes], capacity: int, key: bytes, pinned: frozenset[bytes] = frozenset()) -> None:
    """Do what a tier does when a block is used: touch it, or make room and insert it."""
    if key in inside:
        policy.touch(key)
        return
    if len(inside) >= capacity:
        victim = policy.evict(pinned)
        assert (victim is None) == (inside <= pinned)
        if victim is None:
            return
        assert victim in inside
        assert victim not in pinned
        inside.remove(victim)
    policy.insert(key)
    inside.add(key)


def drain(policy: Policy, pinned: frozenset[bytes] = frozenset()) -> list[bytes]:
    return list(iter(lambda: policy.evict(pinned), None))


def remembered(policy: Policy) -> int:
    """Count all keys that a policy holds on to, ghosts included."""
    return sum(len(line) for line in vars(policy).values() if isinstance(line, OrderedDict))


@every_policy
@modelled
@given(capacity=capacities, steps=steps, last=pins)
def test_a_policy_gives_up_what_is_inside_and_not_pinned_and_nothing_else(
    name: str, capacity: int, steps: list[tuple[str, bytes, frozenset[bytes]]], last: frozenset[bytes]
) -> None:
    policy, inside = create_policy(name, capacity), set[bytes]()
    for step, key, pinned in steps:
        if step == "use":
            use(policy, inside, capacity, key, pinned)
        elif step == "evict":
            victim = policy.evict(pinned)
            assert (victim in inside - pinned) if inside - pinned else (victim is None)
            inside.discard(victim or b"")
        elif step == "discard":
            policy.discard(key)
            inside.discard(key)
        elif key in inside:
            policy.insert(key)  # a tier should not, but nothing may break
        else:
            policy.touch(key)
        assert len(policy) == len(inside)
        assert remembered(policy) <= 2 * capacity
    given_up = drain(policy, last)
    assert sorted(given_up) == sorted(inside - last)
    assert sorted(drain(policy)) == sorted(inside & last)
    assert len(policy) == 0


@modelled
@given(capacity=capacities, steps=steps)
def test_lru_is_a_list_to_whose_end_goes_what_is_used_or_passed(
    capacity: int, steps: list[tuple[str, bytes, frozenset[bytes]]]
) -> None:
    policy, line = create_policy("lru", capacity), list[bytes]()
    for step, key, pinned in steps:
        if step == "discard":
            policy.discard(key)
            line = [one for one in line if one != key]
        elif step == "evict" or (key not in line and len(line) == capacity):
            free = next((place for place, one in enumerate(line) if one not in pinned), None)
            assert policy.evict(pinned) == (None if free is None else line[free])
            line = line if free is None else line[free + 1 :] + line[:free]
        elif key in line:
            policy.touch(key)
            line = [one for one in line if one != key] + [key]
        else:
            policy.insert(key)
            line.append(key)
    assert drain(policy) == line


@every_policy
def test_a_discarded_key_is_new_again_even_where_it_was_remembered(name: str) -> None:
    policy, fresh = create_policy(name, 10), create_policy(name, 10)
    fill(policy, numbered(0, 10))
    for victim in drain(policy):
        policy.discard(victim)
    assert remembered(policy) == 0
    for one in (policy, fresh):
        fill(one, numbered(0, 10))
    assert drain(policy) == drain(fresh)


@every_policy
@pytest.mark.parametrize("uses", [0, 1, 2, 9])
def test_what_is_remembered_is_bounded(name: str, uses: int) -> None:
    policy, inside = create_policy(name, 10), set[bytes]()
    for key in numbered(0, 300):
        for _ in range(1 + uses):
            use(policy, inside, 10, key)
        assert remembered(policy) <= 20
        assert len(policy) == len(inside) <= 10


def hot_keys_after_a_scan(name: str) -> int:
    capacity, inside = 100, set[bytes]()
    policy, hot = create_policy(name, capacity), numbered(0, 50)
    for _ in range(5):
        for key in hot:
            use(policy, inside, capacity, key)
    for key in numbered(1000, 1000):
        use(policy, inside, capacity, key)
    return len(inside & set(hot))


def test_a_scan_takes_the_hot_keys_from_lru_and_not_from_the_others() -> None:
    assert {name: hot_keys_after_a_scan(name) for name in NAMES} == {"arc": 50, "lru": 0, "s3fifo": 50}


def test_arc_gives_room_to_what_came_back_too_late() -> None:
    policy = create_policy("arc", 10)
    fill(policy, numbered(0, 10))
    for key in numbered(5, 5):
        policy.touch(key)
    assert [policy.evict(()) for _ in range(3)] == numbered(0, 3)  # T1 first: nothing says yet that it is too short
    fill(policy, numbered(0, 3))  # it was
    for victim in numbered(5, 2):
        assert policy.evict(()) == victim  # T2's oldest: T1 has two keys, and should have three, then two
        policy.insert(victim)  # that was wrong too
    assert policy.evict(()) == b"key 3"  # T1 should have one
    assert drain(policy) == [b"key %d" % number for number in (7, 8, 9, 0, 1, 2, 5, 6, 4)]


def test_arc_forgets_the_oldest_it_remembers_of_keys_that_came_once() -> None:
    policy = create_policy("arc", 4)
    fill(policy, numbered(0, 4))
    for key in numbered(2, 2):
        policy.touch(key)
    for key in numbered(10, 3):  # T2 has two keys, so two ghosts stand behind two keys that came once
        policy.evict(())
        policy.insert(key)
    policy.evict(())
    policy.insert(b"key 0")  # too long ago: it is new, and so the next but one to go
    assert policy.evict(()) == b"key 12"
    assert policy.evict(()) == b"key 0"


def test_s3fifo_keeps_what_was_used_twice_and_what_came_back_and_counts_to_three() -> None:
    policy = create_policy("s3fifo", 20)  # small: 2
    fill(policy, numbered(0, 6))
    for key, uses in ((b"key 0", 2), (b"key 1", 1), (b"key 2", 9)):
        for _ in range(uses):
            policy.touch(key)
    assert policy.evict(()) == b"key 1"  # used once only; key 0 moved on
    assert policy.evict(()) == b"key 3"
    policy.insert(b"key 1")  # remembered: into main, behind 0 and 2
    for _ in range(3):
        policy.touch(b"key 1")
        fill(policy, [b"key 2"] * 3)  # which count as touches
    assert policy.evict(()) == b"key 4"
    assert policy.evict(()) == b"key 0"  # small has fewer than 2 from here on
    assert policy.evict(()) == b"key 2"  # nine uses count as three, and it came before key 1
    assert drain(policy) == [b"key 1", b"key 5"]


def test_s3fifo_takes_one_use_for_each_round_in_the_main_queue() -> None:
    policy = create_policy("s3fifo", 20)
    fill(policy, numbered(0, 3) * 3 + numbered(10, 3))
    assert [policy.evict(()) for _ in range(2)] == numbered(10, 2)  # the first three moved on
    for key in [b"key 0"] * 3 + numbered(1, 2):
        policy.touch(key)
    assert drain(policy) == [b"key 1", b"key 2", b"key 0", b"key 12"]


def test_s3fifo_finds_the_one_free_key_where_it_only_moves_on_to_a_queue_of_pinned_ones() -> None:
    policy, pinned = create_policy("s3fifo", 40), frozenset(numbered(0, 3))  # small: 4
    fill(policy, numbered(0, 3) * 3 + numbered(10, 4))
    assert policy.evict(()) == b"key 10"
    for key in numbered(12, 2):
        policy.discard(key)
    fill(policy, [b"key 11"] * 2)
    assert policy.evict(pinned) == b"key 11"
    assert policy.evict(pinned) is None


class Counting:
    """Pins, counting how often it was asked."""

    def __init__(self, pinned: Iterable[bytes]) -> None:
        self.pinned = frozenset(pinned)
        self.asked = 0

    def __contains__(self, key: object) -> bool:
        self.asked += 1
        return key in self.pinned


@every_policy
@pytest.mark.parametrize("used", [False, True], ids=["came once", "used"])
def test_pinned_keys_in_the_way_are_passed_once_a_turn(name: str, used: bool) -> None:
    policy, half = create_policy(name, 20_000), numbered(0, 10_000)
    fill(policy, half)
    for key in half * 3 if used else []:
        policy.touch(key)
    fill(policy, numbered(10_000, 10_000))
    pinned = Counting(half)  # arc, used: all of T2, and later T1 is empty; s3fifo: all of main
    for _ in range(9_000):
        assert policy.evict(pinned) is not None
    assert pinned.asked < 20_000 * 2 + 9_000 * (LOOKED)


def test_a_line_that_is_pinned_whole_is_not_walked_for_each_victim_of_the_other() -> None:
    policy = create_policy("arc", 20_000)
    fill(policy, numbered(0, 20_000))
    for key in numbered(10_000, 10_000):
        policy.touch(key)
    pinned = Counting(numbered(0, 10_000))  # all of T1, which is asked first while p is 0
    for key in numbered(10_000, 5_000):
        assert policy.evict(pinned) == key
    assert pinned.asked <= 5_000 * (LOOKED)
