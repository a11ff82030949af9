"""What begins when a device has computed what was queued before. The device is a fake, whose marks a test passes."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge.connector import computing as module
from kvbridge.connector.computing import Computing
from kvbridge.errors import CancelledError, ClosedError, KVBridgeError, TransferTimeoutError, TransportError
from kvbridge.memory.cuda import Mark, settle
from tests.fake_gpu import FakeQueue
from tests.fakes import FakeTransfer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvbridge.transfer import Transfer


class Work:
    """Transfers that begin when they are told to, which is recorded."""

    def __init__(self, computing: Computing) -> None:
        self.computing = computing
        self.begun: list[str] = []
        self.inner: dict[str, FakeTransfer] = {}
        self.held: threading.Event | None = None
        self.began = threading.Semaphore(0)

    def after(self, mark: Any, name: str) -> Transfer[None]:
        def begin() -> Transfer[None]:
            self.begun.append(name)
            self.began.release()
            if self.held is not None:
                self.held.wait(10)
            self.inner[name] = FakeTransfer(name)
            return self.inner[name]

        return self.computing.after(mark, name, begin)

    def wait(self) -> None:
        assert self.began.acquire(timeout=10)


@pytest.fixture
def gpu() -> FakeQueue:
    return FakeQueue()


@pytest.fixture
def work(gpu: FakeQueue) -> Iterator[Work]:
    made = Work(Computing(gpu.mark))
    yield made
    made.computing.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name == "kvbridge-computing"]


def test_what_is_in_host_memory_begins_at_once_and_needs_no_thread() -> None:
    before = threading.active_count()
    work = Work(Computing())
    transfer = work.after(work.computing.mark(), "one")
    assert transfer is work.inner["one"]
    assert threading.active_count() == before
    work.computing.give_up([transfer])
    assert not transfer.poll()
    work.computing.close()


def test_what_a_device_has_to_compute_begins_when_it_has_and_in_that_order(gpu: FakeQueue, work: Work) -> None:
    first = work.computing.mark()
    transfers = [work.after(first, "one"), work.after(first, "two"), work.after(work.computing.mark(), "three")]
    gpu.seen(2)
    assert work.begun == []
    gpu.compute(1)
    work.wait()
    work.wait()
    gpu.seen(2)
    assert work.begun == ["one", "two"]
    gpu.compute(1)
    work.wait()
    for name in ("three", "one", "two"):
        work.inner[name].resolve(None)
    for transfer in transfers:
        transfer.wait(10)


def test_what_is_cancelled_before_does_not_begin_and_the_next_does(gpu: FakeQueue, work: Work) -> None:
    mark = work.computing.mark()
    one, _ = work.after(mark, "one"), work.after(mark, "two")
    one.cancel()
    with pytest.raises(CancelledError, match="one was cancelled"):
        one.result()
    gpu.compute(1)
    work.wait()
    assert work.begun == ["two"]


def test_a_cancel_afterwards_reaches_what_has_begun(gpu: FakeQueue, work: Work) -> None:
    one = work.after(work.computing.mark(), "one")
    gpu.compute(1)
    work.wait()
    gpu.wait_for(lambda: "one" in work.inner)
    one.cancel()
    with pytest.raises(CancelledError):
        one.wait(10)
    assert work.inner["one"].cancels == 1


def test_only_what_has_not_begun_is_given_up(gpu: FakeQueue, work: Work) -> None:
    one, two = work.after(work.computing.mark(), "one"), work.after(work.computing.mark(), "two")
    stranger = work.after(work.computing.mark(), "stranger")
    gpu.compute(1)
    work.wait()
    gpu.wait_for(lambda: "one" in work.inner)
    work.computing.give_up([one, two])
    assert (one.poll(), two.poll(), stranger.poll()) == (False, True, False)
    gpu.compute(2)
    work.wait()
    assert work.begun == ["one", "stranger"]


def test_what_is_cancelled_while_its_mark_is_looked_at_does_not_begin_and_the_next_does(
    gpu: FakeQueue, work: Work
) -> None:
    ready = threading.Event()  # `one` has its name

    def passed() -> bool:
        one.cancel()
        return True

    one = work.after(SimpleNamespace(passed=lambda: ready.wait(10) and passed()), "one")
    ready.set()
    work.after(work.computing.mark(), "two")
    gpu.compute(1)
    work.wait()
    assert work.begun == ["two"]
    assert isinstance(one.error, CancelledError)


@pytest.mark.parametrize("how", ["cancel", "give_up"])
def test_what_is_given_up_while_it_begins_is_cancelled_when_it_has(gpu: FakeQueue, work: Work, how: str) -> None:
    work.held = threading.Event()
    one = work.after(work.computing.mark(), "one")
    gpu.compute(1)
    work.wait()
    if how == "cancel":
        one.cancel()
    else:
        work.computing.give_up([one])
    assert not one.poll(), "its memory may be in use"
    work.held.set()
    with pytest.raises(CancelledError):
        one.wait(10)
    assert work.inner["one"].cancels == 1


def test_a_device_that_fails_is_told_and_so_is_a_bug_and_the_others_go_on(gpu: FakeQueue, work: Work) -> None:
    def bug() -> Transfer[None]:
        raise ValueError("a bug")

    def refusal() -> Transfer[None]:
        raise ClosedError("closed")

    gpu.broken = 0
    one = work.after(work.computing.mark(), "one")
    with pytest.raises(TransportError, match="failed"):
        one.wait(10)
    bad = work.computing.after(work.computing.mark(), "two", bug)
    refused = work.computing.after(work.computing.mark(), "three", refusal)
    work.after(work.computing.mark(), "four")
    gpu.compute(4)
    with pytest.raises(KVBridgeError, match=r"two: ValueError\('a bug'\); report this as a bug"):
        bad.wait(10)
    with pytest.raises(ClosedError, match=r"^closed$"):
        refused.wait(10)
    work.wait()
    assert work.begun == ["four"]


def test_a_device_that_does_not_come_to_it_ends_the_wait(monkeypatch: pytest.MonkeyPatch, work: Work) -> None:
    monkeypatch.setattr(module, "MARK_TIMEOUT", 0.05)
    one = work.after(work.computing.mark(), "one")
    with pytest.raises(TransferTimeoutError, match=r"one: the device had not computed it after 0.05 s"):
        one.wait(10)
    assert work.begun == []


def test_what_is_left_at_the_end_fails_and_so_does_what_comes_after(gpu: FakeQueue, work: Work) -> None:
    mark = work.computing.mark()
    one = work.after(mark, "one")
    work.computing.close()
    work.computing.close()
    gpu.compute(1)
    for transfer in (one, work.after(mark, "two")):
        with pytest.raises(ClosedError, match="before the device had computed it"):
            transfer.result()
    assert work.begun == []


def test_a_mark_is_an_event_behind_what_the_thread_has_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    recorded = []
    state: dict[str, Any] = {"passed": False}

    class Event:
        def record(self, stream: Any) -> None:
            recorded.append(stream)

        def query(self) -> bool:
            if isinstance(state["passed"], Exception):
                raise state["passed"]
            return bool(state["passed"])

    fake = SimpleNamespace(Event=Event, current_stream=lambda device: f"the stream of {device}")
    monkeypatch.setattr(torch, "cuda", fake)
    mark = Mark("cuda:1")
    assert recorded == ["the stream of cuda:1"]
    assert not mark.passed()
    state["passed"] = True
    assert mark.passed()
    state["passed"] = RuntimeError("an illegal memory access was encountered")
    with pytest.raises(TransportError, match="cuda:1 has failed: an illegal"):
        mark.passed()


def test_what_is_on_a_gpu_is_settled_and_host_memory_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    waited = []
    stream = SimpleNamespace(synchronize=lambda: waited.append("done"))
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(current_stream=lambda device: waited.append(device) or stream))
    settle(SimpleNamespace(device="cpu"))
    settle(object())
    assert waited == []
    settle(SimpleNamespace(device="cuda:1"))
    assert waited == ["cuda:1", "done"]
