"""`Pool`: calls that block, on a few named threads, each with a task that waits for it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from kvbridge.abc import MoveState, Ready, Task
from kvbridge.errors import CancelledError, ClosedError, KVBridgeError, TransportError
from kvbridge.threads import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


def end(task: Task[T], seconds: float = 5) -> T:
    deadline = time.monotonic() + seconds
    while task.step() is not MoveState.DONE:
        assert time.monotonic() < deadline, "it does not end"
        time.sleep(0.001)
    return task.result


def names() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("kvbridge-p")}


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool("p", 2)
    yield made
    assert made.close(5)
    assert not names()


class Blocked:
    """A call that blocks until it is let go, and counts how many of it run at one time."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.began = threading.Semaphore(0)
        self.running = self.most = 0
        self._lock = threading.Lock()

    def __call__(self) -> str:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.began.release()
        assert self.go.wait(10)
        with self._lock:
            self.running -= 1
        return threading.current_thread().name

    def await_beginning(self) -> None:
        assert self.began.acquire(timeout=5)


def test_an_answer_that_is_there_is_done_at_once_whatever_is_asked() -> None:
    task = Ready([1])
    task.abort()
    assert task.step() is MoveState.DONE
    assert task.result == [1]


def test_a_call_runs_on_a_named_thread_and_its_result_is_the_tasks(pool: Pool) -> None:
    blocked = Blocked()
    task = pool.run(blocked)
    blocked.await_beginning()
    assert task.step() is MoveState.WAIT
    assert not hasattr(task, "result")
    blocked.go.set()
    assert end(task) == "kvbridge-p-0"
    assert end(pool.run(lambda: None)) is None


def test_threads_are_started_when_they_are_needed_and_used_again(pool: Pool) -> None:
    assert not names()
    for _ in range(20):
        end(pool.run(lambda: 1))
        time.sleep(0.001)
    assert len(names()) <= 2
    assert "kvbridge-p-0" in names()


def test_no_more_calls_run_at_one_time_than_there_are_threads(pool: Pool) -> None:
    blocked = Blocked()
    tasks = [pool.run(blocked) for _ in range(6)]
    for _ in range(2):
        blocked.await_beginning()
    time.sleep(0.02)
    assert blocked.most == 2
    assert names() == {"kvbridge-p-0", "kvbridge-p-1"}
    blocked.go.set()
    assert {end(task) for task in tasks} <= names()
    assert blocked.most == 2


@pytest.mark.parametrize("error", [TransportError("gone"), ValueError("a bug")])
def test_what_a_call_raises_its_task_raises(pool: Pool, error: Exception) -> None:
    def fail() -> None:
        raise error

    task = pool.run(fail)
    with pytest.raises(type(error)) as found:
        end(task)
    assert found.value is error
    assert end(pool.run(lambda: 3)) == 3


def test_a_call_that_would_end_its_thread_ends_only_its_task(pool: Pool) -> None:
    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(KVBridgeError, match="SystemExit") as found:
        end(pool.run(leave))
    assert isinstance(found.value.__cause__, SystemExit)
    assert end(pool.run(lambda: 3)) == 3


def test_an_abort_drops_a_call_that_has_not_begun_and_leaves_one_that_has(pool: Pool) -> None:
    blocked, calls = Blocked(), []
    running = [pool.run(blocked) for _ in range(2)]
    for _ in running:
        blocked.await_beginning()
    waiting = [pool.run(lambda number=number: calls.append(number)) for number in range(3)]  # type: ignore[misc]
    running[0].abort()
    waiting[1].abort()
    waiting[1].abort()
    with pytest.raises(CancelledError):
        waiting[1].step()
    assert running[0].step() is MoveState.WAIT
    blocked.go.set()
    for task in [*running, waiting[0], waiting[2]]:
        end(task)
        task.abort()
        assert task.step() is MoveState.DONE
    assert sorted(calls) == [0, 2]


def test_what_a_call_held_is_let_go_of_before_its_end_is_told(pool: Pool) -> None:
    class Memory:
        pass

    gone = threading.Event()
    memory: Any = Memory()
    Memory.__del__ = lambda _: gone.set()  # type: ignore[attr-defined]
    task = pool.run(lambda memory=memory: id(memory))  # type: ignore[misc]
    del memory
    end(task)
    assert gone.is_set()


def test_close_drops_what_waits_and_waits_for_what_runs() -> None:
    pool, blocked = Pool("p", 1), Blocked()
    running, waiting = pool.run(blocked), pool.run(lambda: 1)
    blocked.await_beginning()
    start = time.monotonic()
    assert not pool.close(0.2)
    assert time.monotonic() - start < 2
    with pytest.raises(CancelledError):
        waiting.step()
    with pytest.raises(ClosedError):
        pool.run(lambda: 1)
    assert running.step() is MoveState.WAIT
    blocked.go.set()
    assert end(running) == "kvbridge-p-0"
    assert pool.close(5)
    assert not names()


def test_one_call_that_hangs_does_not_keep_the_other_threads() -> None:
    pool, blocked = Pool("p", 3), Blocked()
    hanging = pool.run(blocked)
    blocked.await_beginning()
    end(pool.run(lambda: 1))
    assert not pool.close(0.1)
    deadline = time.monotonic() + 5
    while len(names()) > 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert names() == {"kvbridge-p-0"}
    blocked.go.set()
    end(hanging)
    assert pool.close(5)


def test_a_pool_that_was_never_used_closes_at_once() -> None:
    assert Pool("p", 3).close(0)


def test_many_threads_use_one_pool(pool: Pool) -> None:
    wrong: list[object] = []

    def work(number: int) -> None:
        for turn in range(100):
            value = (number, turn)
            if end(pool.run(lambda value=value: value)) != value:  # type: ignore[misc]
                wrong.append(value)

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not wrong
