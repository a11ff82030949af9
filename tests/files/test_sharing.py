"""Several processes, one folder: one value a key, one taker a value, one cap for all."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from kvbridge.errors import CapacityError
from tests.files.driving import MIB, SOON, counted, find, hidden, holds, put, read, there, used
from tests.nodes import pattern

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvbridge_files import FilesStore
    from tests.files.driving import Child


def together(children: list[Child]) -> list[str]:
    """Start them at the same moment; what each said at its end."""
    for one in children:
        one.hears("here")
    for one in children:
        one.tell()
    return [one.end() for one in children]


def test_of_processes_that_put_one_key_one_wins(store: Callable[..., FilesStore], child: Callable[..., Child]) -> None:
    made = store()
    said = together([child("races", number) for number in range(3)])
    won = {int(turn): number for number, turns in enumerate(said) for turn in turns.split()}
    assert sum(len(turns.split()) for turns in said) == 60, "each key was put once"
    for turn in range(60):
        assert holds(made, f"k{turn}", won[turn], 5000), "the value is the winner's"


def test_of_processes_that_take_one_value_one_gets_it(
    store: Callable[..., FilesStore], child: Callable[..., Child], folder: Path
) -> None:
    made = store()
    for turn in range(200):
        put(made, f"k{turn}", turn)
    said = together([child("takes") for _ in range(3)])
    won = [int(turn) for turns in said for turn in turns.split()]
    assert sorted(won) == list(range(200))
    made._folder.sweep()
    assert used(made) == counted(folder) == 0


@pytest.mark.parametrize("when_full", ["refuse", "evict"])
def test_processes_never_have_more_than_the_cap_together(
    store: Callable[..., FilesStore], child: Callable[..., Child], folder: Path, when_full: str
) -> None:
    made = store(capacity="8MiB", when_full=when_full)
    children = [child("fills", number, when_full) for number in range(3)]
    for one in children:
        one.hears("here")
    for one in children:
        one.tell()
    most = looks = 0
    deadline = time.monotonic() + SOON
    while any(one._process.poll() is None for one in children) and time.monotonic() < deadline:
        with made._folder._ledger.locked() as account:  # else files come and go between two of them
            found = counted_at_once(folder)
            assert found <= account.used <= 8 * MIB
        most, looks = max(most, found), looks + 1
        time.sleep(0.002)
    refused = [int(one.end()) for one in children]
    assert looks > 20
    assert 6 * MIB < most <= 8 * MIB
    assert any(refused) == (when_full == "refuse")
    made._folder.sweep()
    assert used(made) == counted(folder)
    assert hidden(folder) == []


def counted_at_once(folder: Path) -> int:
    """Count while values may still be published: a name may go between the list and the look."""
    while True:
        try:
            return counted(folder)
        except FileNotFoundError:
            continue


def test_a_value_that_another_process_reads_counts_until_it_has_done(
    store: Callable[..., FilesStore], child: Callable[..., Child], folder: Path
) -> None:
    made = store(capacity="2MiB")
    put(made, "k", 1, MIB)
    reader = child("reads")
    reader.hears("here")
    made._folder.remove([made._folder.path_of("k")])
    assert there(made, ["k"]) == []
    with pytest.raises(CapacityError):
        put(made, "other", 2, MIB)
    reader.tell()
    assert reader.end() == str(int(pattern(1, MIB).sum()))
    assert hidden(folder) == [], "the reader gave it up with its release"
    put(made, "other", 2, MIB)
    assert used(made) == counted(folder)


def test_a_restart_finds_values_and_counts_them(store: Callable[..., FilesStore], folder: Path) -> None:
    first = store()
    for turn in range(20):
        put(first, f"k{turn}", turn, 10_000)
    before = used(first)
    first.close()
    second = store()
    assert used(second) == before == counted(folder)
    assert all(holds(second, f"k{turn}", turn, 10_000) for turn in range(20))
    put(second, "new", 1)
    stored = find(second, "new", take=True)
    assert stored is not None
    assert (read(stored, 1000) == pattern(1, 1000)).all()
    stored.release()
