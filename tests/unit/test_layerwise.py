"""Layer by layer: what is ordered in the last step of a prompt, handed over during it, and taken back if need be."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvbridge.connector import layerwise
from kvbridge.connector.computing import Computing
from kvbridge.connector.handoff_worker import HandoffWorker
from kvbridge.connector.layerwise import LayerwiseSaves
from kvbridge.connector.plan import Plan, SaveOrder
from kvbridge.errors import CapacityError, TransferTimeoutError
from kvbridge.layers.layered import LayeredBuffer, part_sizes
from kvbridge.memory.layout import CacheLayout, Placement
from tests.fake_gpu import FakeQueue
from tests.fakes import FakeBuffer
from tests.requests import BLOCK, DIGEST, view
from tests.unit.test_handoff_producer import BLOCKS, DECODE, prefill

if TYPE_CHECKING:
    from collections.abc import Iterator

LAYERS = ("l0", "l1", "l2", "l3", "l4")
ORDER = SAVE = SaveOrder("p", "key", b"digest", (7, 2), ("tcp://a:1", "tcp://b:2"))


def layout() -> CacheLayout:
    """Each layer has a region of its own."""
    memory = np.zeros(5 * 640, dtype=np.uint8)
    place = Placement(LAYERS, 0, 0, 640, 64, 64)
    return CacheLayout.build([place], num_blocks=10, address=memory.ctypes.data, device="cpu", host=memory)


class Rank:
    """Rank 1 of an engine whose values have two layers."""

    def __init__(self, *, obedient: bool = True, gpu: FakeQueue | None = None) -> None:
        self.buffer = FakeBuffer(obedient=obedient)
        self.told: list[tuple[str, str]] = []
        parts = LayeredBuffer(self.buffer, part_sizes(layout().layers, 2))
        computing = Computing(gpu.mark) if gpu is not None else None
        self.early = LayerwiseSaves(parts, layout(), rank=1, lease=33.0, announce=self.announce, computing=computing)
        self.half = HandoffWorker(
            parts,
            layout(),
            rank=1,
            claim_timeout=4.0,
            lease=33.0,
            layerwise=self.early,
        )

    def announce(self, key: Any, pages: Any, digest: bytes, to: str) -> None:
        assert key.id in self.buffer.inserts
        assert digest == b"digest"
        self.told.append((key.id, to))

    def step(self, *orders: SaveOrder, layers: tuple[str, ...] = LAYERS) -> None:
        self.early.prepare(Plan(layers=list(orders)))
        for name in layers:
            self.early.computed(name)
        self.early.finish()

    def inserted(self) -> list[str]:
        return list(self.buffer.inserts)

    def free(self, *names: str) -> None:
        for name in names or self.inserted():
            self.buffer.inserts[name][3].resolve(None)

    def sent(self) -> set[str]:
        return self.half.poll().sent


def test_a_layout_names_the_layers_of_its_regions() -> None:
    assert layout().layers == tuple((name,) for name in LAYERS)
    memory = np.zeros(3 * 640, dtype=np.uint8)
    close = Placement(("a", "b"), 0, 0, 64, 128, 64)
    again = Placement(("c", "d"), 1, 0, 64, 128, 64)
    built = CacheLayout.build([close, again], num_blocks=10, address=memory.ctypes.data, device="cpu", host=memory)
    assert built.layers == (("a", "b", "c", "d"),)


def test_each_part_is_handed_over_as_soon_as_its_layers_are_computed() -> None:
    rank = Rank()
    rank.early.prepare(Plan(layers=[ORDER]))
    seen = []
    for name in LAYERS:
        rank.early.computed(name)
        seen.append(len(rank.inserted()))
    assert seen == [0, 1, 1, 2, 3]
    assert rank.inserted() == ["key#0", "key#2", "key#4"]
    pages, digest, lease, _ = rank.buffer.inserts["key#2"]
    assert ([ids.tolist() for ids in pages.block_ids], digest, lease) == ([[7, 2]] * 2, b"digest", 33.0)
    assert [region.address for region in pages.regions] == [pages.regions[0].address, pages.regions[0].address + 640]
    assert rank.told == [("key#0", "tcp://b:2"), ("key#2", "tcp://b:2"), ("key#4", "tcp://b:2")]
    assert rank.early.counters["early_parts"] == 3


def test_layers_are_complete_in_whatever_order_they_come_and_strangers_do_not_count() -> None:
    rank = Rank()
    rank.early.prepare(Plan(layers=[ORDER]))
    for name in ("l3", "l4", "drafter", "l4", "l2"):
        rank.early.computed(name)
    assert rank.inserted() == ["key#4", "key#2"]


def test_what_no_layer_was_told_of_is_handed_over_at_the_end_of_the_step_and_once() -> None:
    rank = Rank()
    rank.step(ORDER, layers=("l0", "l1", "l2"))
    assert rank.inserted() == ["key#0", "key#2", "key#4"]
    assert rank.early.counters["late_parts"] == 2
    rank.buffer.inserts.clear()
    for name in LAYERS:  # as of a model that drafts after it
        rank.early.computed(name)
    assert rank.inserted() == []
    rank.step(layers=LAYERS)  # another request's step
    assert rank.inserted() == []


def test_a_request_that_has_ended_is_sent_when_all_its_parts_are_and_not_inserted_again() -> None:
    rank = Rank()
    rank.step(ORDER)
    rank.half.begin(Plan(saves=[SAVE]))
    assert len(rank.inserted()) == 3
    rank.free("key#0", "key#4")
    assert rank.sent() == set()
    rank.free("key#2")
    assert rank.sent() == {"p"}
    assert rank.half.counters["saves"] == 1


def test_a_part_that_fails_costs_the_hand_over_and_frees_the_request() -> None:
    rank = Rank()
    rank.step(ORDER)
    rank.free("key#0")
    rank.buffer.inserts["key#2"][3].fail(CapacityError("no room"))
    rank.half.begin(Plan(saves=[SAVE]))
    assert [transfer.cancels for _, _, _, transfer in rank.buffer.inserts.values()] == [0, 0, 1]
    assert [key.id for key in rank.buffer.dropped] == ["key#0"]  # it was copied: its memory is free, its value is not
    assert rank.sent() == {"p"}
    assert rank.half.counters["failed_saves"] == 1


def test_a_request_without_an_order_is_inserted_when_it_has_ended() -> None:
    rank = Rank()
    rank.step()
    rank.half.begin(Plan(saves=[SAVE]))
    assert rank.inserted() == ["key#0", "key#2", "key#4"]
    assert rank.told == [("key#0", "tcp://b:2"), ("key#2", "tcp://b:2"), ("key#4", "tcp://b:2")]
    rank.free()
    assert rank.sent() == {"p"}


def test_an_order_of_blocks_that_cannot_be_leaves_it_to_the_end() -> None:
    rank = Rank()
    rank.step(SaveOrder("p", "key", b"digest", (7, 99)))
    assert rank.inserted() == []


def test_a_request_that_is_withdrawn_is_sent_when_nobody_reads_its_blocks() -> None:
    rank = Rank()
    rank.step(ORDER)
    rank.early.prepare(Plan(withdrawals=["p", "unknown"]))
    assert [key.id for key in rank.buffer.dropped] == ["key#0", "key#2", "key#4"]
    assert rank.sent() == {"unknown"}
    rank.free()
    assert rank.sent() == {"p"}
    assert rank.sent() == set()


@pytest.mark.parametrize("withdrawn", [False, True])
def test_a_step_waits_until_nobody_reads_blocks_that_it_may_write_to(withdrawn: bool) -> None:
    rank = Rank(obedient=False)
    rank.step(ORDER)
    drop = rank.buffer.drop

    def free(keys: Any) -> None:
        drop(keys)
        rank.free()

    rank.buffer.drop = free  # type: ignore[method-assign]
    rank.early.prepare(Plan(fences=["p", "unknown"], withdrawals=["p"] if withdrawn else []))
    assert [key.id for key in rank.buffer.dropped] == ["key#0", "key#2", "key#4"]
    assert rank.early.counters["layer_fences"] == 1
    assert rank.sent() == ({"p"} if withdrawn else set())


def test_a_step_that_would_write_under_a_readers_eyes_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layerwise, "FENCE_TIMEOUT", 0.05)
    rank = Rank(obedient=False)
    rank.step(ORDER)
    with pytest.raises(TransferTimeoutError, match="wrong tokens"):
        rank.early.prepare(Plan(fences=["p"]))


def test_a_request_that_is_preempted_and_computed_again_has_another_value() -> None:
    rank = Rank()
    rank.step(ORDER)
    rank.free()
    again = SaveOrder("p", "key2", b"digest", (3, 4))
    rank.early.prepare(Plan(fences=["p"], layers=[again]))
    for name in LAYERS:
        rank.early.computed(name)
    rank.early.finish()
    assert rank.inserted()[3:] == ["key2#0", "key2#2", "key2#4"]
    rank.half.begin(Plan(saves=[SaveOrder("p", "key2", b"digest", (3, 4))]))
    assert rank.sent() == set()
    rank.free()
    assert rank.sent() == {"p"}


def test_a_part_that_fails_costs_the_others_also_where_layers_came_in_another_order() -> None:
    rank = Rank(obedient=False)
    rank.step(ORDER, layers=("l4", "l2", "l3", "l0", "l1"))
    assert rank.inserted() == ["key#4", "key#2", "key#0"]
    rank.free("key#0")
    rank.buffer.inserts["key#4"][3].fail(CapacityError("no room"))
    rank.buffer.inserts["key#2"][3].fail(CapacityError("no room"))
    rank.half.begin(Plan(saves=[SAVE]))
    assert [key.id for key in rank.buffer.dropped] == ["key#0"]


# -- a GPU, which computes later what is queued now -----------------------------------------------------------


@pytest.fixture
def gpu() -> FakeQueue:
    return FakeQueue()


@pytest.fixture
def rank(gpu: FakeQueue) -> Iterator[Rank]:
    made = Rank(gpu=gpu)
    yield made
    made.half.close()
    assert made.buffer.closed == 1
    assert "kvbridge-computing" not in [thread.name for thread in threading.enumerate()]


def test_a_part_is_handed_over_when_the_gpu_has_computed_it_and_not_when_it_is_queued(
    gpu: FakeQueue, rank: Rank
) -> None:
    rank.step(ORDER)
    rank.half.begin(Plan(saves=[SAVE]))
    gpu.seen(2)
    assert rank.inserted() == []
    gpu.compute(1)
    gpu.wait_for(lambda: rank.inserted() == ["key#0"])
    gpu.compute(1)
    gpu.wait_for(lambda: rank.told == [("key#0", "tcp://b:2"), ("key#2", "tcp://b:2")])
    gpu.seen(2)
    rank.free()
    assert rank.sent() == set()
    gpu.compute(1)
    gpu.wait_for(lambda: len(rank.inserted()) == 3)
    rank.free()
    gpu.wait_for(lambda: rank.sent() == {"p"})
    assert rank.half.counters["saves"] == 1


def test_layers_whose_end_was_not_told_wait_for_the_end_of_the_step(gpu: FakeQueue, rank: Rank) -> None:
    rank.step(ORDER, layers=("l0", "l1"))
    gpu.compute(1)
    gpu.wait_for(lambda: rank.inserted() == ["key#0"])
    gpu.seen(2)
    assert rank.inserted() == ["key#0"]
    gpu.compute(2)
    gpu.wait_for(lambda: len(rank.inserted()) == 3)


@pytest.mark.parametrize("end", ["withdrawals", "fences"])
def test_parts_that_are_not_computed_yet_are_not_inserted_when_the_request_is_given_up(
    gpu: FakeQueue, rank: Rank, end: str
) -> None:
    rank.step(ORDER)
    gpu.compute(1)
    gpu.wait_for(lambda: rank.inserted() == ["key#0"])
    rank.free()
    rank.early.prepare(Plan(**{end: ["p"]}))  # does not wait for the GPU
    gpu.compute(2)
    rank.early.prepare(Plan(layers=[SaveOrder("q", "other", b"digest", (3,), ("tcp://a:1", "tcp://b:2"))]))
    for name in LAYERS:
        rank.early.computed(name)
    gpu.compute(3)
    gpu.wait_for(lambda: len(rank.inserted()) == 4)
    assert rank.inserted() == ["key#0", "other#0", "other#2", "other#4"]
    assert [key.id for key in rank.buffer.dropped] == ["key#0", "key#2", "key#4"]
    assert rank.sent() == ({"p"} if end == "withdrawals" else set())


def test_a_gpu_that_fails_costs_the_hand_over(gpu: FakeQueue, rank: Rank) -> None:
    gpu.broken = 1
    rank.step(ORDER)
    rank.half.begin(Plan(saves=[SAVE]))
    gpu.compute(3)
    gpu.wait_for(lambda: rank.sent() == {"p"})
    assert rank.half.counters["failed_saves"] == 1


# -- scheduler ------------------------------------------------------------------------------------------------


def test_the_order_and_what_the_client_is_told_name_one_key() -> None:
    half = prefill(ranks=1)
    request = view("p", 2 * BLOCK + 1, DECODE)
    half.computing(request, BLOCKS)
    (order,) = half.plan().layers
    assert (order.request_id, order.digest, order.block_ids, order.to) == ("p", DIGEST, (1, 2, 3), ())
    needed, params = half.finished(request, BLOCKS, completed=True)
    (save,) = half.plan().saves
    assert needed
    assert params["kvbridge"]["key"] == save.key == order.key


@pytest.mark.parametrize("params", [None, {"do_remote_decode": False}])
def test_what_is_not_for_another_engine_is_not_ordered(params: Any) -> None:
    half = prefill()
    half.computing(view("p", 20, params), BLOCKS)
    half.computing(view("q", 20, DECODE), [])
    assert half.idle
    assert half.finished(view("q", 20, DECODE), [], completed=False) == (False, None)


def test_a_request_that_ends_otherwise_is_withdrawn_and_its_blocks_wait_for_that() -> None:
    half = prefill()
    half.computing(view("p", 20, DECODE), BLOCKS)
    half.plan()
    assert half.finished(view("p", 20, DECODE), BLOCKS, completed=False) == (True, None)
    assert half.plan().withdrawals == ["p"]
    assert half.finished(view("p", 20, DECODE), BLOCKS, completed=False) == (False, None)


def test_a_preempted_request_is_fenced_and_has_no_value_any_more() -> None:
    half = prefill()
    half.preempted("p")
    assert half.idle
    half.computing(view("p", 20, DECODE), BLOCKS)
    half.plan()
    half.preempted("p")
    assert half.plan().fences == ["p"]
    assert half.finished(view("p", 20, DECODE), [], completed=False) == (False, None)


def test_a_request_that_was_preempted_and_ended_before_the_step_is_fenced_too() -> None:
    half = prefill()
    half.computing(view("p", 20, DECODE), BLOCKS)
    half.plan()
    assert half.finished(view("p", 20, DECODE), [], completed=False) == (True, None)
    half.preempted("p")
    plan = half.plan()
    assert (plan.withdrawals, plan.fences) == (["p"], ["p"])
