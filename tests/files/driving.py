"""A store driven by hand, as the endpoint's thread does it, and processes that do so elsewhere."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from kvbridge.abc import MoveState
from tests.nodes import pattern

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvbridge.abc import Move, Stored, Task
    from kvbridge_files import FilesStore

T = TypeVar("T")

MIB = 1 << 20
SOON = 60.0

ROOT = Path(__file__).parents[2]


def over(move: Move, timeout: float = SOON) -> None:
    """Step a move to its end."""
    deadline = time.monotonic() + timeout
    while move.step() is not MoveState.DONE:
        if time.monotonic() > deadline:
            raise AssertionError(f"no end after {timeout} s")
        time.sleep(0.0005)


def done(task: Task[T]) -> T:
    """Step a task to its end."""
    over(task)
    return task.result


def put(store: FilesStore, key: str, seed: int, nbytes: int = 1000) -> None:
    over(store.put(key, b"header " + key.encode(), pattern(seed, nbytes)))


def find(store: FilesStore, key: str, *, take: bool = False) -> Stored | None:
    return done(store.find(key, take=take))


def read(stored: Stored, nbytes: int) -> NDArray[np.uint8]:
    out = np.zeros(nbytes, dtype=np.uint8)
    over(stored.read(out, 0))
    return out


def holds(store: FilesStore, key: str, seed: int, nbytes: int = 1000, *, take: bool = False) -> bool:
    """Whether a key has this value. It is found, read and let go of."""
    stored = find(store, key, take=take)
    if stored is None:
        return False
    try:
        assert stored.header == b"header " + key.encode()
        assert np.array_equal(read(stored, nbytes), pattern(seed, nbytes))
    finally:
        stored.release()
        settle(store)
    return True


def settle(store: FilesStore) -> None:
    """Return when what was released before has been let go of."""
    deadline = time.monotonic() + SOON
    while store._found and time.monotonic() < deadline:
        time.sleep(0.001)
    for _ in range(2):  # the last thing may still be under way on either thread
        done(store.headers([]))
    time.sleep(0.002)


def there(store: FilesStore, keys: Sequence[str]) -> list[str]:
    return [key for key, header in zip(keys, done(store.headers(keys)), strict=True) if header is not None]


def used(store: FilesStore) -> int:
    """What the ledger says."""
    return store._folder.used()


def counted(folder: Path) -> int:
    """What the files really take, by another way than the store's."""
    found = [path.stat() for kind in ("values", "hidden") for path in (folder / kind).rglob("*") if path.is_file()]
    return sum(-(-size // 4096) * 4096 for size in {stat.st_ino: stat.st_size for stat in found}.values())


def file_of(store: FilesStore, key: str) -> Path:
    return store._folder.path_of(key)


def hidden(folder: Path) -> list[Path]:
    return list((folder / "hidden").iterdir())


class Child:
    """A process that runs one of the plays of `tests.files.plays`, and says so line by line."""

    def __init__(self, play: str, *arguments: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.files.plays", play, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def hears(self, line: str) -> None:
        """Wait until it says something."""
        assert self._process.stdout is not None
        found = self._process.stdout.readline().strip()
        assert found == line, f"it said {found!r}"

    def tell(self) -> None:
        """Let it go on."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(SOON)
        self._close()

    def end(self) -> str:
        """Wait for its end; what it said last."""
        try:
            said, _ = self._process.communicate(timeout=SOON)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        assert self._process.returncode == 0
        return said.strip()

    def pid(self) -> int:
        return self._process.pid

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
