"""What the conformance suite cannot know: our own files. Everything else is tested by the suite."""

from __future__ import annotations

import os
import resource
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pytest
from kvbridge.abc import Key, MoveState
from kvbridge.control.endpoint import Endpoint
from kvbridge.errors import (
    BackendUnavailableError,
    CancelledError,
    CapacityError,
    DuplicateKeyError,
    TransportError,
    UnsupportedError,
)
from kvbridge.memory import Pages, Region

from kvbridge_example_folder import ExampleFolderBackend, ExampleFolderOptions, backend

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvbridge.abc import Move, Store, Stored, Task

T = TypeVar("T")

NBYTES = 5 << 20


def some_bytes(nbytes: int = NBYTES) -> Any:
    return np.random.default_rng(1).integers(0, 256, nbytes, dtype=np.uint8)


def made(folder: Path) -> ExampleFolderBackend:
    return ExampleFolderBackend(ExampleFolderOptions(folder=str(folder)))


def end(move: Move) -> None:
    """Step a move until it has ended."""
    while move.step() is not MoveState.DONE:
        pass


def answer(task: Task[T]) -> T:
    """Step a task until it has its answer."""
    end(task)
    return task.result


@pytest.fixture
def store(tmp_path: Path) -> Store[Any]:
    return made(tmp_path)


@contextmanager
def found(store: Store[Any], key: str, *, take: bool = False) -> Iterator[Stored]:
    stored = answer(store.find(key, take=take))
    assert stored is not None
    yield stored
    stored.release()


@contextmanager
def engine(backend: ExampleFolderBackend) -> Iterator[Any]:
    """What an engine's worker makes: a backend, an endpoint, a buffer."""
    endpoint = Endpoint(backend)
    buffer = backend.open_buffer(endpoint)
    try:
        yield buffer
    finally:
        buffer.close()
        endpoint.close()
        backend.close()


def test_a_value_goes_from_one_process_to_another_that_names_the_same_folder(tmp_path: Path) -> None:
    with engine(made(tmp_path)) as producer, engine(made(tmp_path)) as consumer:
        value, out = some_bytes(), np.zeros(NBYTES, dtype=np.uint8)
        producer.insert(Key("k"), value).wait(10)
        consumer.drop_select(Key("k"), out).wait(10)
        assert np.array_equal(out, value)
    assert not any(tmp_path.iterdir())


def test_scattered_pages_land_in_their_blocks_and_skipped_ones_stay_in_the_file(store: Store[Any]) -> None:
    memories = [some_bytes(64 * 100), np.zeros(64 * 100, dtype=np.uint8)]
    source, target = (Region.over(memory, 64) for memory in memories)
    ids = np.array([7, 3, 99, 4, 50])
    end(store.put("k", b"header", Pages.of([source, source], ids)))
    with found(store, "k") as stored:
        end(stored.read(Pages.of([target, target], [0, 1, 2]), 2))
    assert np.array_equal(target.rows()[:3], source.rows()[ids[2:]])
    assert not target.rows()[3:].any()
    assert answer(store.headers(["k", "other"])) == [b"header", None]


def test_a_value_is_not_found_before_all_of_it_is_written(store: Store[Any]) -> None:
    move = store.put("k", b"", some_bytes())
    while move.step() is not MoveState.DONE:
        assert answer(store.find("k", take=False)) is None
    with found(store, "k") as stored:
        assert stored.header == b""


def test_of_two_who_put_one_key_the_first_to_end_stays(store: Store[Any], tmp_path: Path) -> None:
    moves = [store.put("k", header, some_bytes(1)) for header in (b"one", b"two")]
    end(moves[1])
    with pytest.raises(DuplicateKeyError):
        end(moves[0])
    with pytest.raises(DuplicateKeyError):
        store.put("k", b"", some_bytes(1))
    assert answer(store.headers(["k"])) == [b"two"]
    assert len(list(tmp_path.iterdir())) == 1


def test_of_many_who_take_one_gets_the_value(store: Store[Any], tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        for number in range(50):
            key = f"../k {number}"
            end(store.put(key, b"", some_bytes(8)))
            took = list(pool.map(lambda _, key=key: answer(store.find(key, take=True)), range(8)))
            (winner,) = [stored for stored in took if stored is not None]
            winner.release()
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("how", ["taken", "removed"])
def test_what_was_found_can_be_read_whatever_becomes_of_its_key(store: Store[Any], how: str) -> None:
    value, out = some_bytes(), np.zeros(NBYTES, dtype=np.uint8)
    end(store.put("k", b"", value))
    with found(store, "k") as stored:
        if how == "removed":
            end(store.remove(["k"]))
        else:
            with found(store, "k", take=True):
                pass
        end(stored.read(out, 0))
    assert np.array_equal(out, value)


def test_an_aborted_write_leaves_nothing(store: Store[Any], tmp_path: Path) -> None:
    move = store.put("k", b"", some_bytes())
    move.step()
    assert len(list(tmp_path.iterdir())) == 1
    move.abort()
    with pytest.raises(CancelledError):
        move.step()
    assert not any(tmp_path.iterdir())


def test_nothing_is_written_once_an_abort_has_ended(store: Store[Any]) -> None:
    end(store.put("k", b"", np.ones(NBYTES, dtype=np.uint8)))
    out = np.zeros(NBYTES, dtype=np.uint8)
    with found(store, "k") as stored:
        move = stored.read(out, 0)
        move.step()
        move.abort()
        out[:] = 3
        with pytest.raises(CancelledError):
            move.step()
    assert (out == 3).all()


def test_a_full_disk_refuses_the_value_and_leaves_nothing(store: Store[Any], tmp_path: Path) -> None:
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    move = store.put("k", b"", some_bytes())
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, limits[1]))
    try:
        with pytest.raises(CapacityError, match="writing a value failed"):
            end(move)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert not any(tmp_path.iterdir())


def test_a_file_that_was_cut_is_no_value(store: Store[Any], tmp_path: Path) -> None:
    end(store.put("k", b"", some_bytes()))
    os.truncate(next(tmp_path.iterdir()), 2 << 20)
    with found(store, "k") as stored, pytest.raises(TransportError, match="shorter than its value"):
        end(stored.read(np.zeros(NBYTES, dtype=np.uint8), 0))


def test_what_a_killed_process_left_unfinished_is_deleted_in_time(
    store: Store[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = store.put("k", b"", some_bytes())
    move.step()
    made(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1, "its owner may be at work"
    monkeypatch.setattr(backend, "STALE", -1)
    made(tmp_path)
    assert not any(tmp_path.iterdir())
    with pytest.raises(TransportError):
        end(move)


def test_memory_of_a_device_is_refused_by_name(store: Store[Any]) -> None:
    far = Region(address=1 << 40, page_bytes=4096, block_stride=4096, num_blocks=8, device="cuda:0")
    with pytest.raises(UnsupportedError, match="host memory only"):
        store.put("k", b"", Pages.of([far], [1]))


@pytest.mark.parametrize("folder", ["", "values", "/dev/null/values", "\0", "/\0", "~nobody-of-this-name/values"])
def test_a_folder_that_cannot_be_is_refused_with_a_reason(folder: str) -> None:
    options = ExampleFolderOptions(folder=folder)
    assert "options.folder is" in ExampleFolderBackend.probe(options).reason
    with pytest.raises(BackendUnavailableError, match=r"options\.folder"):
        ExampleFolderBackend(options)


def test_a_folder_that_we_make_is_for_us_alone(tmp_path: Path) -> None:
    made(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
