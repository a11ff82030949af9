"""Files that are not what was written: never delivered, an error that says so, then a miss."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvbridge.abc import Key
from kvbridge.control.endpoint import Endpoint
from kvbridge.errors import TransportError
from kvbridge.memory import Pages, Region
from kvbridge_files.head import PIECE_BYTES
from tests.files.driving import MIB, counted, done, file_of, find, holds, over, put, read, settle, there, used
from tests.nodes import pattern

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvbridge_files import FilesStore


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x10]))


def gone(store: FilesStore, folder: Path, key: str = "k") -> None:
    """The key is a miss, counted once, its room is free, and it can be put again."""
    settle(store)
    assert store.counters["damaged"] == 1
    assert there(store, [key]) == []
    assert find(store, key) is None
    store._folder.sweep()
    assert used(store) == counted(folder) == 0
    put(store, key, 9)
    assert holds(store, key, 9)


@pytest.mark.parametrize("offset", [-1, -MIB, -(3 * MIB)])
def test_a_flipped_bit_of_a_value_is_an_error_then_a_miss(
    store: Callable[..., FilesStore], folder: Path, offset: int
) -> None:
    made = store()
    put(made, "k", 1, 3 * MIB)
    flip(file_of(made, "k"), offset)
    stored = find(made, "k")
    assert stored is not None
    with pytest.raises(TransportError, match="not what was written"):
        read(stored, 3 * MIB)
    stored.release()
    gone(made, folder)


@pytest.mark.parametrize("offset", [0, 9, 13, 17, 20, 30, 34])
@pytest.mark.parametrize("verb", ["find", "take", "headers"])
def test_a_flipped_bit_of_the_beginning_is_found_before_anything_is_read(
    store: Callable[..., FilesStore], folder: Path, offset: int, verb: str
) -> None:
    made = store()
    put(made, "k", 1)
    flip(file_of(made, "k"), offset)
    if verb == "headers":
        assert done(made.headers(["k", "other"])) == [None, None]
        gone(made, folder)
        return
    with pytest.raises(TransportError, match="the file of 'k'"):
        find(made, "k", take=verb == "take")
    made.counters["damaged"] = 1
    gone(made, folder)


@pytest.mark.parametrize("length", [0, 10, 100, 1000, MIB])
def test_a_file_that_was_cut_short_is_a_miss(store: Callable[..., FilesStore], folder: Path, length: int) -> None:
    made = store()
    put(made, "k", 1, 3 * MIB)
    os.truncate(file_of(made, "k"), length)
    assert there(made, ["k"]) == []
    assert made.counters["damaged"] == 1
    assert find(made, "k") is None
    put(made, "k", 2)
    assert holds(made, "k", 2)


def test_a_file_that_is_cut_short_while_it_is_read_is_an_error_and_no_signal(
    store: Callable[..., FilesStore],
) -> None:
    made = store()
    put(made, "k", 1, 3 * MIB)
    stored = find(made, "k")
    assert stored is not None
    os.truncate(file_of(made, "k"), MIB)
    with pytest.raises(TransportError, match="cut short"):
        read(stored, 3 * MIB)
    stored.release()
    settle(made)
    assert find(made, "k") is None


def test_a_piece_of_another_value_or_place_does_not_pass(store: Callable[..., FilesStore]) -> None:
    made = store()
    same = np.zeros(2 * PIECE_BYTES, dtype=np.uint8)
    same[PIECE_BYTES:] = 1
    for key in ("k", "other"):
        over(made.put(key, b"", same))
    path, other = file_of(made, "k"), file_of(made, "other")
    content, donor = bytearray(path.read_bytes()), other.read_bytes()
    content[-2 * PIECE_BYTES :] = content[-PIECE_BYTES:] + content[-2 * PIECE_BYTES : -PIECE_BYTES]
    path.write_bytes(content)  # as a disk that mixed up two blocks
    stored = find(made, "k")
    assert stored is not None
    with pytest.raises(TransportError, match="piece 0"):
        read(stored, same.nbytes)
    stored.release()
    settle(made)
    path.write_bytes(donor)  # as a folder whose names were mixed up
    with pytest.raises(TransportError, match="not what was written"):
        find(made, "k")


@pytest.mark.parametrize("page", [4096, 24 << 10, 1000])
@pytest.mark.parametrize("skip", [0, 1, 37, 120])
def test_what_is_skipped_is_not_looked_at_and_what_is_wanted_is(
    store: Callable[..., FilesStore], page: int, skip: int
) -> None:
    """A bit is flipped in every piece in turn: where a byte of it is wanted, it is an error; elsewhere nothing."""
    made = store()
    blocks = 130
    source = [pattern(number, blocks * page) for number in (1, 2)]
    order = np.random.default_rng(3).permutation(blocks)
    over(made.put("k", b"h", Pages.of([Region.over(memory, page) for memory in source], order)))
    content = file_of(made, "k").read_bytes()
    packed = np.concatenate([memory.reshape(blocks, page)[order].reshape(-1) for memory in source])
    wanted = np.ones((2, blocks, page), dtype=bool)
    wanted[:, :skip] = False
    touched = {int(piece) for piece in np.unique(np.flatnonzero(wanted.reshape(-1)) // PIECE_BYTES)}
    for piece in range(-(-packed.nbytes // PIECE_BYTES)):
        path = file_of(made, "k")
        path.write_bytes(content)
        flip(path, len(content) - packed.nbytes + min(piece * PIECE_BYTES + 77, packed.nbytes - 1))
        stored = find(made, "k")
        assert stored is not None
        out = [np.zeros(blocks * page, dtype=np.uint8) for _ in source]
        into = np.random.default_rng(4).permutation(blocks)[: blocks - skip]
        reading = stored.read(Pages.of([Region.over(memory, page) for memory in out], into), skip)
        if piece in touched:
            with pytest.raises(TransportError, match=f"piece {piece} "):
                over(reading)
        else:
            over(reading)
            for memory, found in zip(source, out, strict=True):
                assert np.array_equal(found.reshape(blocks, page)[into], memory.reshape(blocks, page)[order[skip:]])
        stored.release()
        settle(made)


def test_a_select_of_a_damaged_value_fails_visibly(store: Callable[..., FilesStore]) -> None:
    made = store()
    endpoint = Endpoint(made)
    buffer = made.open_buffer(endpoint, timeout=5)
    try:
        buffer.insert(Key("k"), pattern(1, MIB)).wait(5)
        flip(file_of(made, "k"), -5)
        with pytest.raises(TransportError, match="not what was written"):
            buffer.select(Key("k"), np.zeros(MIB, dtype=np.uint8)).wait(5)
        assert buffer.contains([Key("k")]).wait(5) == [False]
        buffer.insert(Key("k"), pattern(2, MIB)).wait(5)
        out = np.zeros(MIB, dtype=np.uint8)
        buffer.select(Key("k"), out).wait(5)
        assert np.array_equal(out, pattern(2, MIB))
    finally:
        buffer.close()
        endpoint.close()
