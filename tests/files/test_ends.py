"""Options, probe, aborts and closing."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvbridge.errors import (
    BackendUnavailableError,
    CancelledError,
    CapacityError,
    ClosedError,
    KVBridgeError,
    SpecMismatchError,
)
from kvbridge_files import FilesOptions, FilesStore, moves, place
from kvbridge_files.locks import SharedLock
from tests.files.driving import MIB, counted, done, find, hidden, holds, over, put, there, used
from tests.nodes import eventually, pattern

if TYPE_CHECKING:
    from collections.abc import Callable


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "name a folder"),
        ({"folder": "here"}, "it is relative"),
        ({"folder": "/proc/self/no/such"}, "cannot write|it is on|No such file"),
        ({"folder": "/dev/null"}, "is no folder"),
        ({"folder": "/\x00"}, "null"),
        ({"folder": "/nowhere/x", "capacity": "much"}, "expected a number of bytes"),
        ({"folder": "/nowhere/x", "capacity": 5}, "options.capacity is 5 bytes"),
        ({"folder": "/nowhere/x", "capacity": "99999999999999999999TiB"}, "options.capacity is"),
    ],
)
def test_probe_says_why_not(options: dict[str, Any], why: str) -> None:
    found = FilesStore.probe(FilesOptions(**options))
    assert not found.ok
    with pytest.raises(BackendUnavailableError, match=why):
        FilesStore(FilesOptions(**options))


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    found = FilesStore.probe(FilesOptions(folder=str(tmp_path)))
    assert not found.ok
    assert "something else" in found.reason
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


@pytest.mark.parametrize(("kind", "why"), [("nfs4", "not those of a local"), ("vfat", "has no links")])
def test_file_systems_that_will_not_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, why: str) -> None:
    monkeypatch.setattr(place, "_file_system", lambda _: kind)
    assert why in FilesStore.probe(FilesOptions(folder=str(tmp_path / "x"))).reason


def test_the_file_system_is_known() -> None:
    assert place._file_system(Path("/proc/self")) == "proc"
    assert place._file_system(Path(__file__))


def test_without_links_there_is_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    before = descriptors()
    with pytest.raises(BackendUnavailableError, match="cannot keep values"):
        FilesStore(FilesOptions(folder=str(tmp_path / "x")))
    assert descriptors() == before


def test_folder_and_files_are_this_users_alone(store: Callable[..., FilesStore], folder: Path) -> None:
    put(store(), "k", 1)
    modes = {path.stat().st_mode & 0o777 for path in [folder, *folder.rglob("*")] if path.is_dir()}
    assert modes == {0o700}
    assert {path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()} == {0o600}


def test_any_key_is_a_key(store: Callable[..., FilesStore]) -> None:
    made = store()
    keys = ["/", "..", "../../x", "a\tb", " ", "*", "k" * 256, "~", "K", "k"]
    for number, key in enumerate(keys):
        put(made, key, number)
    assert there(made, keys) == keys
    assert all(holds(made, key, number) for number, key in enumerate(keys))
    done(made.remove([*keys[:5], "no such"]))
    assert there(made, keys) == keys[5:]


@pytest.mark.parametrize("fsync", [False, True])
@pytest.mark.parametrize("nbytes", [0, 1, moves.WINDOW_BYTES - 1, moves.WINDOW_BYTES, 9 * MIB + 3])
def test_values_of_every_size(store: Callable[..., FilesStore], nbytes: int, fsync: bool) -> None:
    made = store(fsync=fsync)
    put(made, "k", 1, nbytes)
    assert holds(made, "k", 1, nbytes)


def test_a_destination_of_another_size_is_refused(store: Callable[..., FilesStore]) -> None:
    made = store()
    put(made, "k", 1, 1000)
    stored = find(made, "k")
    assert stored is not None
    with pytest.raises(SpecMismatchError):
        over(stored.read(np.zeros(999, dtype=np.uint8), 0))
    stored.release()


class Gate:
    """Keeps back what looks at a `Stop` the second time after it was shut."""

    def __init__(self) -> None:
        self.reached, self.go = threading.Event(), threading.Event()
        self._looks = 2

    def shut(self) -> None:
        self.reached.clear()
        self.go.clear()
        self._looks = 0

    def pass_by(self) -> None:
        self._looks += 1
        if self._looks == 2:
            self.reached.set()
            self.go.wait(10)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    made = Gate()
    check = moves.Stop.check

    def checking(self: moves.Stop) -> None:
        made.pass_by()
        check(self)

    monkeypatch.setattr(moves.Stop, "check", checking)
    return made


@pytest.mark.parametrize("verb", ["put", "read"])
def test_an_abort_ends_at_the_next_slice_and_not_before(
    store: Callable[..., FilesStore], folder: Path, gate: Gate, verb: str
) -> None:
    made = store()
    memory = pattern(1, 16 * MIB)
    out = np.zeros(16 * MIB, dtype=np.uint8)
    stored = None
    if verb == "read":
        over(made.put("k", b"h", memory))
        stored = find(made, "k")
        assert stored is not None
    gate.shut()
    move = made.put("k", b"h", memory) if stored is None else stored.read(out, 0)
    assert gate.reached.wait(10)
    move.abort()
    assert move.step().name == "WAIT", "a thread still uses the caller's memory"
    gate.go.set()
    with pytest.raises(CancelledError):
        over(move)
    before = out.copy()
    time.sleep(0.05)
    assert np.array_equal(out, before)
    if stored is not None:
        stored.release()
        return
    assert there(made, ["k"]) == []
    assert hidden(folder) == []
    assert used(made) == counted(folder) == 0


def test_what_waits_for_a_thread_is_dropped_by_an_abort(store: Callable[..., FilesStore], gate: Gate) -> None:
    made = store(threads=1)
    gate.shut()
    first = made.put("k", b"h", pattern(1, 16 * MIB))
    assert gate.reached.wait(10)
    second = made.put("j", b"h", pattern(2, MIB))
    second.abort()
    with pytest.raises(CancelledError):
        second.step()
    assert there(made, ["j"]) == [], "and questions do not wait for bytes"
    gate.go.set()
    over(first)


def test_close_ends_what_is_under_way_and_leaves_nothing(
    store: Callable[..., FilesStore], folder: Path, gate: Gate
) -> None:
    threads, before = threading.active_count(), descriptors()
    made = store()
    put(made, "taken", 1)
    put(made, "found", 1)
    claims = [find(made, "taken", take=True), find(made, "found")]
    gate.shut()
    move = made.put("k", b"h", pattern(1, 16 * MIB))
    assert gate.reached.wait(10)
    threading.Timer(0.2, gate.go.set).start()
    began = time.monotonic()
    made.close()
    made.close()
    assert time.monotonic() - began < 2
    with pytest.raises(KVBridgeError):
        over(move)
    for stored in claims:
        assert stored is not None
        stored.release()  # late, and harmless
    with pytest.raises(ClosedError):
        made.find("k", take=False)
    eventually(lambda: threading.active_count() == threads, 5, lambda: f"{threading.enumerate()}")
    assert descriptors() == before
    assert hidden(folder) == []
    again = store()
    assert holds(again, "found", 1)
    assert there(again, ["k", "taken"]) == []
    assert used(again) == counted(folder)


def test_a_thread_that_hangs_does_not_hold_up_close(
    store: Callable[..., FilesStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = store()
    go = threading.Event()
    write = moves.write_all

    def hanging(*arguments: Any) -> None:
        go.wait(20)
        write(*arguments)

    monkeypatch.setattr(moves, "write_all", hanging)
    move = made.put("k", b"h", pattern(1, MIB))
    eventually(lambda: used(made) > 0, 5, lambda: "it did not begin")
    began = time.monotonic()
    made.close()
    assert time.monotonic() - began < 2
    assert move.step().name == "WAIT"
    go.set()
    with pytest.raises(ClosedError):
        over(move)
    eventually(
        lambda: not [one.name for one in threading.enumerate() if "files-move" in one.name],
        10,
        lambda: f"{threading.enumerate()}",
    )


def test_a_lock_that_was_closed_is_none(tmp_path: Path) -> None:
    lock = SharedLock(tmp_path / "lock", threading.Event())
    lock.close()
    lock.close()
    with pytest.raises(ClosedError), lock.held():
        pass


def test_a_full_disk_is_a_matter_of_capacity(store: Callable[..., FilesStore], monkeypatch: pytest.MonkeyPatch) -> None:
    made = store()

    def full(*_: object) -> None:
        raise OSError(122, "Disk quota exceeded")

    monkeypatch.setattr("kvbridge_files.store.write_value", full)
    with pytest.raises(CapacityError, match="EDQUOT"):
        put(made, "k", 1)
    monkeypatch.undo()
    assert used(made) == 0
