"""A store in this process's memory whose every task waits where a test says, so that races are met, not hoped for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec
import numpy as np

from kvbridge.abc import Key, MoveState, Store, Stored, Task
from kvbridge.buffers.keeper import Header
from kvbridge.capabilities import Capabilities, Probe
from kvbridge.control.endpoint import Endpoint
from kvbridge.errors import DuplicateKeyError
from kvbridge.memory import spec_of
from kvbridge.memory.tensors import tensor_bytes
from kvbridge.threads import Pool
from kvbridge.transfer import cancelled
from tests.nodes import eventually, pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbridge.abc import Move
    from kvbridge.transfer import Transfer

T = TypeVar("T")

NBYTES = 1000
"""Size of every value."""

K = Key("k")

STEPS = 3
"""Steps of a task that nothing holds up: its work is done in the last one."""


class SlowOptions(msgspec.Struct, frozen=True):
    pass


class SlowTask(Task[T]):
    """Does its work in its last step. An obedient one can be aborted before it; a stubborn one goes on."""

    def __init__(self, store: SlowStore, verb: str, key: str, work: Callable[[], T]) -> None:
        self.verb, self.key = verb, key
        self.aborted = False
        self._store = store
        self._work = work
        self._left = STEPS
        store.begun.append((verb, key))
        store.tasks.append(self)

    def step(self) -> MoveState:
        assert threading.current_thread().name.startswith("kvbridge-endpoint")
        store = self._store
        if self.aborted and not store.stubborn:
            self._end()
            raise cancelled(self.verb)
        hold = store.holding(self.verb, self.key)
        if hold is not None:
            hold.reached.set()
            return MoveState.WAIT
        self._left -= 1
        if self._left:
            return MoveState.WAIT if self._left % 2 else MoveState.AGAIN
        self._end()
        if self.verb in store.failures:
            raise store.failure(self.verb)
        self.result = self._work()
        return MoveState.DONE

    def abort(self) -> None:
        self.aborted = True

    def _end(self) -> None:
        self._store.tasks.remove(self)


class Hold:
    """Where tasks of one kind wait until it is opened; of one key, if one is named."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.shut = True

    def open(self) -> None:
        self.shut = False


class SlowStored(Stored):
    def __init__(self, store: SlowStore, header: bytes, value: Any) -> None:
        self.header = header
        self.releases = 0
        self._store = store
        self._value = value
        store.given.append(self)

    def read(self, out: Any, skip: int) -> Move:
        def copy() -> None:
            tensor_bytes(out)[:] = self._value

        return self._store.task("read", f"of {id(self)}", copy)

    def release(self) -> None:
        assert not any(task.key == f"of {id(self)}" for task in self._store.tasks), "it is still read"
        self.releases += 1


class SlowStore(Store[SlowOptions]):
    """`hold` stops tasks by verb, `failures` ends them; `stubborn` ones do not stop for an abort."""

    name: ClassVar[str] = "slow"
    Options: ClassVar[type[msgspec.Struct]] = SlowOptions

    def __init__(self, options: SlowOptions | None = None, values: dict[str, tuple[bytes, Any]] | None = None) -> None:
        super().__init__(options or SlowOptions())
        self.values: dict[str, tuple[bytes, Any]] = {} if values is None else values
        self.held: dict[tuple[str, str], Hold] = {}
        self.failures: dict[str, Exception] = {}
        self.only_next = False
        self.stubborn = False
        self.begun: list[tuple[str, str]] = []
        self.tasks: list[SlowTask[Any]] = []
        self.given: list[SlowStored] = []
        self.pool: Pool | None = None

    @classmethod
    def probe(cls, options: SlowOptions) -> Probe:
        return Probe(ok=True, reason="tests only")

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(buffer=True, takes=True, tensors=True, detaches=True)

    def hold(self, verb: str, key: str = "") -> Hold:
        self.held[verb, key] = Hold()
        return self.held[verb, key]

    def failure(self, verb: str) -> Exception:
        """Why a task of this kind fails: the next one alone, if `only_next` is set."""
        return self.failures.pop(verb) if self.only_next else self.failures[verb]

    def holding(self, verb: str, key: str) -> Hold | None:
        found = self.held.get((verb, key)) or self.held.get((verb, ""))
        return found if found is not None and found.shut else None

    def task(self, verb: str, key: str, work: Callable[[], T]) -> Task[T]:
        return SlowTask(self, verb, key, work)

    def put(self, key: str, header: bytes, payload: Any) -> Move:
        def put() -> None:
            value = header, np.array(tensor_bytes(payload))
            if self.values.setdefault(key, value) is not value:
                raise DuplicateKeyError(key)

        return self.task("put", key, put)

    def find(self, key: str, *, take: bool) -> Task[Stored | None]:
        def find() -> Stored | None:
            found = self.values.pop(key, None) if take else self.values.get(key)
            return None if found is None else SlowStored(self, *found)

        return self.task("find", key, find)

    def headers(self, keys: Sequence[str]) -> Task[list[bytes | None]]:
        def headers() -> list[bytes | None]:
            return [None if found is None else found[0] for found in map(self.values.get, keys)]

        return self.task("headers", ",".join(keys), headers)

    def remove(self, keys: Sequence[str]) -> Task[None]:
        def remove() -> None:
            for key in keys:
                self.values.pop(key, None)

        return self.task("remove", ",".join(keys), remove)

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close(1)


class ThreadedStore(SlowStore):
    """The same, with every task a call on a thread of a pool, which a held one blocks."""

    def __init__(self, options: SlowOptions | None = None, values: dict[str, tuple[bytes, Any]] | None = None) -> None:
        super().__init__(options, values)
        self.pool = Pool("slow", 4)

    def task(self, verb: str, key: str, work: Callable[[], T]) -> Task[T]:
        def call() -> T:
            while (hold := self.holding(verb, key)) is not None:
                hold.reached.set()
                threading.Event().wait(0.002)
            if verb in self.failures:
                raise self.failure(verb)
            return work()

        assert self.pool is not None
        self.begun.append((verb, key))
        return self.pool.run(call)


class Process:
    """What a process has: a store, an endpoint and a buffer."""

    def __init__(self, store: SlowStore, *, patient: bool = False) -> None:
        self.store = store
        self.endpoint = Endpoint(store)
        self.buffer = store.open_buffer(self.endpoint, timeout=5, patient=patient)

    def insert(self, seed: int, key: Key = K, **options: Any) -> Transfer[None]:
        return self.buffer.insert(key, pattern(seed, NBYTES), **options)

    def take(self, seed: int, key: Key = K) -> None:
        out = np.zeros(NBYTES, dtype=np.uint8)
        self.buffer.drop_select(key, out).wait(5)
        assert np.array_equal(out, pattern(seed, NBYTES))

    def stats(self, *names: str) -> list[float]:
        return [self.buffer.stats().get(name, 0) for name in names]

    def await_stats(self, **expected: float) -> None:
        eventually(lambda: self.stats(*expected) == list(expected.values()), 5, lambda: f"{self.buffer.stats()}")

    def flush(self) -> None:
        """Wait until the endpoint's thread has done what it was told so far."""
        done = threading.Event()
        self.endpoint.call_soon(done.set)
        assert done.wait(1), "the endpoint's thread is blocked"

    def settle(self) -> None:
        """Wait until nothing is under way any more, not even what nobody waits for."""
        eventually(lambda: not self.buffer._moving, 5, lambda: f"{self.buffer._moving}")  # type: ignore[attr-defined]
        assert not self.buffer._keeper._turns._lines  # type: ignore[attr-defined]

    def close(self) -> None:
        for hold in self.store.held.values():
            hold.open()
        self.buffer.close()
        self.endpoint.close()
        self.store.close()


def leave_lapsed(store: SlowStore, key: Key) -> None:
    """A value whose lease has ended, as a process that was killed leaves it."""
    value = pattern(9, NBYTES)
    store.values[key.id] = Header(spec_of(value), b"", 1.0).encode(), value
