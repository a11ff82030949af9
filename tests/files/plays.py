"""What processes of their own do in these tests: `python -m tests.files.plays PLAY FOLDER ...`."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kvbridge.errors import CapacityError, DuplicateKeyError
from kvbridge_files import FilesOptions, FilesStore, moves
from kvbridge_files.ledger import Account
from tests.files.driving import MIB, find, holds, put, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def stand_still(*_: Any) -> None:
    say("here")
    sys.stdin.readline()


def say(line: str) -> None:
    print(line, flush=True)


def open_store(folder: str, capacity: str = "64MiB", **options: Any) -> FilesStore:
    return FilesStore(FilesOptions(folder=folder, capacity=capacity, **options))


def stops_in_mid_write(folder: str) -> None:
    """Writes two of three windows, then waits to be killed."""
    write, seen = moves.write_all, []

    def writing(*arguments: Any) -> None:
        seen.append(write(*arguments))
        if len(seen) == 2:
            stand_still()

    moves.write_all = writing
    put(open_store(folder), "k", 1, 12 * MIB)


def stops_after_link(folder: str) -> None:
    """Has linked its value, and not yet removed its hidden name."""
    link = os.link

    def linking(*arguments: Any) -> None:
        link(*arguments)
        stand_still()

    store = open_store(folder)
    os.link = linking  # type: ignore[assignment]
    put(store, "k", 1, MIB)


def stops_in_ledger(folder: str, when: str) -> None:
    """Has made or removed a file, and not yet said so in the ledger."""
    store = open_store(folder)
    if when == "removing":
        put(store, "k", 1, MIB)
    changing = Account.changing

    @contextmanager
    def stopping(self: Account) -> Iterator[None]:
        with changing(self):
            yield
            stand_still()

    Account.changing = stopping  # type: ignore[method-assign, assignment]
    if when == "removing":
        store._folder.remove([store._folder.path_of("k")])
    else:
        put(store, "other", 2, MIB)


def holds_taken(folder: str) -> None:
    """Has taken a value, and not yet let go of it."""
    store = open_store(folder)
    stored = find(store, "k", take=True)
    assert stored is not None
    stand_still()


def reads(folder: str) -> None:
    """Has found a value; reads it when told to."""
    store = open_store(folder)
    stored = find(store, "k")
    assert stored is not None
    stand_still()
    say(str(int(read(stored, MIB).sum())))
    stored.release()
    store.close()


def races(folder: str, number: str) -> None:
    """Puts the same keys as others."""
    store = open_store(folder)
    won = []
    stand_still()
    for turn in range(60):
        try:
            put(store, f"k{turn}", int(number), 5000)
            won.append(turn)
        except DuplicateKeyError:
            continue
    store.close()
    say(" ".join(map(str, won)))


def takes(folder: str) -> None:
    """Takes the same keys as others."""
    store = open_store(folder)
    stand_still()
    won = [turn for turn in range(200) if holds(store, f"k{turn}", turn, take=True)]
    store.close()
    say(" ".join(map(str, won)))


def fills(folder: str, number: str, when_full: str) -> None:
    """Puts values of its own until the folder is full, removes some, and so on."""
    store = open_store(folder, "8MiB", when_full=when_full)
    stand_still()
    refused, kept = 0, []
    for turn in range(150):
        key = f"{number}.{turn}"
        try:
            put(store, key, turn, 10_000 + 1000 * (turn % 200))
            kept.append(key)
        except CapacityError:
            refused += 1
            store._folder.remove([store._folder.path_of(kept.pop(0)) for _ in range(min(3, len(kept)))])
    store.close()
    say(str(refused))


PLAYS: dict[str, Callable[..., None]] = {
    play.__name__: play
    for play in (stops_in_mid_write, stops_after_link, stops_in_ledger, holds_taken, reads, races, takes, fills)
}

if __name__ == "__main__":
    PLAYS[sys.argv[1]](*sys.argv[2:])
