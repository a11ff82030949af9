"""What goes when the folder is full, and in which order."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvbridge.errors import CapacityError, KVBridgeError
from kvbridge_files import room
from tests.files.driving import MIB, counted, file_of, find, hidden, holds, put, read, settle, there, used
from tests.nodes import pattern

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvbridge_files import FilesStore

KEYS = [f"k{number}" for number in range(8)]


def fill(store: FilesStore) -> None:
    for number, key in enumerate(KEYS[:7]):
        put(store, key, number, MIB)


def test_what_was_not_used_for_longest_goes_first_and_no_more_than_has_to(
    store: Callable[..., FilesStore], folder: Path
) -> None:
    made = store(capacity="8MiB", when_full="evict")
    fill(made)
    for number in (0, 2):
        assert holds(made, KEYS[number], number, MIB)
    there(made, KEYS)  # a look at headers is no use
    gone = []
    for turn in range(6):
        put(made, f"new{turn}", turn, MIB)
        gone.append([key for key in KEYS[:7] if key not in there(made, KEYS)])
    order = ["k1", "k3", "k4", "k5", "k6", "k0"]
    assert gone == [sorted(order[: turn + 1]) for turn in range(6)]
    assert used(made) == counted(folder) <= 8 * MIB
    assert made._room.evicted == 6


def test_the_order_is_right_over_several_lists(
    store: Callable[..., FilesStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "LISTED", 3)
    monkeypatch.setattr(room, "AT_ONCE", 2)
    made = store(capacity="8MiB", when_full="evict")
    fill(made)
    put(made, "large", 1, 5 * MIB)
    assert there(made, [*KEYS, "large"]) == ["k5", "k6", "large"]
    put(made, "largest", 2, 7 * MIB)
    assert there(made, [*KEYS, "large", "largest"]) == ["largest"]


def test_a_value_that_is_read_stays_readable_and_is_not_evicted(store: Callable[..., FilesStore], folder: Path) -> None:
    made = store(capacity="8MiB", when_full="evict")
    fill(made)
    stored = find(made, "k0")
    assert stored is not None
    for turn in range(9):
        put(made, f"new{turn}", turn, MIB)
    made._folder.remove([file_of(made, "k0")])
    assert find(made, "k0") is None
    put(made, "another", 3, 5 * MIB)
    assert np.array_equal(read(stored, MIB), pattern(0, MIB))
    assert used(made) == counted(folder) <= 8 * MIB
    stored.release()
    settle(made)
    assert hidden(folder) == []
    assert used(made) == counted(folder)


def test_refuse_refuses_and_takes_again_when_there_is_room(store: Callable[..., FilesStore], folder: Path) -> None:
    made = store(capacity="8MiB")
    fill(made)
    with pytest.raises(CapacityError, match=r"of the folder's 8388608 bytes \(options.capacity\) are in use"):
        put(made, "new", 1, MIB)
    assert there(made, KEYS) == KEYS[:7]
    assert hidden(folder) == []
    stored = find(made, "k3", take=True)
    assert stored is not None
    with pytest.raises(CapacityError):
        put(made, "new", 1, MIB)
    stored.release()
    settle(made)
    put(made, "new", 1, MIB)
    assert used(made) == counted(folder)


def test_what_was_abandoned_gives_way_even_where_nothing_is_evicted(store: Callable[..., FilesStore]) -> None:
    made = store(capacity="8MiB", abandoned_after=100)
    fill(made)
    past = time.time() - 200
    for key in ("k4", "k2"):
        os.utime(file_of(made, key), (past, past))
    put(made, "new0", 1, MIB)
    put(made, "new1", 1, MIB)
    with pytest.raises(CapacityError):
        put(made, "new2", 1, MIB)
    assert there(made, KEYS) == ["k0", "k1", "k3", "k5", "k6"]


def test_what_is_refused_does_not_look_at_every_file_each_time(
    store: Callable[..., FilesStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = store(capacity="8MiB")
    fill(made)
    looks = []
    oldest = made._folder.oldest
    monkeypatch.setattr(made._folder, "oldest", lambda count: looks.append(count) or oldest(count))
    for _ in range(20):
        with pytest.raises(CapacityError):
            put(made, "new", 1, MIB)
    assert len(looks) == 1


@pytest.mark.parametrize("when_full", ["refuse", "evict"])
def test_a_value_that_can_never_fit_drives_nothing_out(store: Callable[..., FilesStore], when_full: str) -> None:
    made = store(capacity="8MiB", when_full=when_full)
    fill(made)
    with pytest.raises(CapacityError):
        put(made, "new", 1, 9 * MIB)
    assert there(made, KEYS) == KEYS[:7]


@pytest.mark.parametrize("capacity", ["1MiB", "8MiB", "100MiB"])
def test_the_largest_value_that_is_claimed_fits(store: Callable[..., FilesStore], capacity: str) -> None:
    made = store(capacity=capacity)
    largest = made.capabilities.max_value_bytes
    key = "k" * 256
    made_move = made.put(key, bytes(64 << 10), pattern(1, largest))
    while made_move.step().name != "DONE":
        time.sleep(0.001)
    assert used(made) <= made.capabilities.capacity_bytes


def test_room_is_given_back_when_a_put_is_refused_or_fails(
    store: Callable[..., FilesStore], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = store(capacity="8MiB")
    put(made, "k", 1, MIB)
    before = used(made)
    with pytest.raises(KVBridgeError):
        put(made, "k", 2, MIB)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full, raising=True)
    with pytest.raises((CapacityError, KVBridgeError)):
        put(made, "other", 2, MIB)
    monkeypatch.undo()
    made._folder.sweep()
    assert used(made) == counted(folder) == before
    assert hidden(folder) == []
