"""Processes that are killed: nothing half is ever seen, and every byte they left is given back."""

from __future__ import annotations

import os
import signal
import struct
from typing import TYPE_CHECKING

import pytest

from kvbridge.errors import BackendUnavailableError, TransportError
from kvbridge_files import locks
from tests.files.driving import MIB, counted, file_of, find, hidden, holds, put, settle, there, used
from tests.nodes import pattern

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvbridge_files import FilesStore
    from tests.files.driving import Child


def test_who_is_killed_in_mid_write_leaves_nothing_and_is_counted_until_then(
    store: Callable[..., FilesStore], child: Callable[..., Child], folder: Path
) -> None:
    writer = child("stops_in_mid_write")
    writer.hears("here")
    living = store()
    assert there(living, ["k"]) == []
    assert find(living, "k") is None
    assert used(living) >= 12 * MIB, "room for all of it is taken from the start"
    assert len(hidden(folder)) == 1
    living._folder.sweep()
    assert len(hidden(folder)) == 1, "its writer lives"
    writer.kill()
    assert there(living, ["k"]) == []
    living._folder.sweep()
    assert hidden(folder) == []
    assert used(living) == counted(folder) == 0
    put(living, "k", 2, 12 * MIB)
    assert holds(living, "k", 2, 12 * MIB)


def test_opening_a_folder_sweeps_it(
    store: Callable[..., FilesStore], child: Callable[..., Child], folder: Path
) -> None:
    writer = child("stops_in_mid_write")
    writer.hears("here")
    writer.kill()
    assert len(hidden(folder)) == 1
    living = store()
    assert hidden(folder) == []
    assert used(living) == 0


def test_who_needs_room_sweeps(store: Callable[..., FilesStore], child: Callable[..., Child], folder: Path) -> None:
    living = store(capacity="16MiB")
    writer = child("stops_in_mid_write")
    writer.hears("here")
    writer.kill()
    put(living, "other", 2, 12 * MIB)
    assert hidden(folder) == []
    assert used(living) == counted(folder)


def test_who_is_killed_between_link_and_unlink_has_put_its_value_and_it_counts_once(
    store: Callable[..., FilesStore], child: Callable[..., Child], folder: Path
) -> None:
    writer = child("stops_after_link")
    writer.hears("here")
    writer.kill()
    assert len(hidden(folder)) == 1
    living = store()
    assert hidden(folder) == []
    assert holds(living, "k", 1, MIB)
    assert used(living) == counted(folder) > MIB
    living._folder.remove([file_of(living, "k")])
    assert used(living) == counted(folder) == 0


@pytest.mark.parametrize("when", ["making", "removing"])
def test_who_is_killed_between_files_and_ledger_makes_the_next_one_count(
    store: Callable[..., FilesStore], child: Callable[..., Child], folder: Path, when: str
) -> None:
    living = store()
    put(living, "first", 3, MIB)
    writer = child("stops_in_ledger", when)
    writer.hears("here")
    writer.kill()
    settle(living)
    living._folder.sweep()
    assert used(living) == counted(folder)
    assert there(living, ["first", "k", "other"]) == ["first"]


def test_what_a_killed_process_had_taken_is_gone_and_gives_its_room_back(
    store: Callable[..., FilesStore], child: Callable[..., Child], folder: Path
) -> None:
    living = store()
    put(living, "k", 1, MIB)
    taker = child("holds_taken")
    taker.hears("here")
    assert find(living, "k") is None
    assert used(living) > MIB, "it is still there to be read"
    living._folder.sweep()
    assert len(hidden(folder)) == 1
    taker.kill()
    living._folder.sweep()
    assert used(living) == counted(folder) == 0


def test_after_a_restart_of_the_machine_files_are_counted_not_believed(
    store: Callable[..., FilesStore], folder: Path
) -> None:
    first = store()
    put(first, "k", 1, MIB)
    right = used(first)
    first.close()
    ledger = folder / "ledger"
    record = bytearray(ledger.read_bytes())
    ledger.write_bytes(b"\x00" * len(record))  # as a disk may leave it after a power failure
    assert used(store()) == right
    record[24:32] = struct.pack("<Q", 0)
    ledger.write_bytes(record)
    assert used(store()) == right, "a record whose checksum is wrong is none"


def test_a_folder_of_another_version_is_refused(store: Callable[..., FilesStore], folder: Path) -> None:
    store().close()
    (folder / "ledger").write_bytes(b"KVBFILE9" + bytes(40))
    with pytest.raises(BackendUnavailableError, match="another version"):
        store()


def test_a_process_that_stands_still_with_the_lock_makes_an_error_and_no_hang(
    store: Callable[..., FilesStore], child: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.5)
    living = store()
    put(living, "first", 1)
    writer = child("stops_in_ledger", "making")
    writer.hears("here")
    os.kill(writer.pid(), signal.SIGSTOP)
    with pytest.raises(TransportError, match=r"held the lock .*/ledger"):
        put(living, "new", 2)
    assert holds(living, "first", 1), "what is there can be read all the same"
    assert not hidden_of(living, "new")
    os.kill(writer.pid(), signal.SIGCONT)
    writer.kill()
    put(living, "new", 2)
    assert pattern(2, 10).nbytes == 10


def hidden_of(store: FilesStore, key: str) -> bool:
    return bool(there(store, [key]))
