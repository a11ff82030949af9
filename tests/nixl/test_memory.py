"""What the library knows of memory, and what it gets wrong unless it is told with care."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest

from kvbridge.abc import Key
from kvbridge.errors import ConfigError
from kvbridge.memory import Pages, Region
from kvbridge_nixl import library, memory, peers, spans
from kvbridge_nixl.spans import joined, merged

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.conformance.node import Node

MIB = 1 << 20
SOON = 20


def _bytes(seed: int, nbytes: int) -> Any:
    return np.frombuffer(np.random.default_rng(seed).bytes(nbytes), dtype=np.uint8).copy()


class Both:
    """A producer and a consumer in this process, and keys that are never used twice."""

    def __init__(self, node: Callable[..., Node], **settings: Any) -> None:
        self.producer, self.consumer = node(name="producer", **settings), node(name="consumer", **settings)
        self._turns = 0

    def insert(self, payload: Any) -> str:
        self._turns += 1
        self.producer.buffer.insert(Key(f"k{self._turns}"), payload)
        return f"k{self._turns}"

    def take(self, name: str, out: Any) -> None:
        self.consumer.buffer.select(Key(name, *self.producer.where()), out).wait(SOON)

    def drop(self, name: str) -> None:
        self.producer.buffer.drop([Key(name)])
        self.producer.flush()

    def hand_over(self, payload: Any, out: Any) -> None:
        name = self.insert(payload)
        self.take(name, out)
        self.drop(name)

    def mover(self) -> str:
        """Name of the one agent that is not closed and begins transfers, on whichever side that is."""
        movers = self.producer.backend.movers.living() + self.consumer.backend.movers.living()  # type: ignore[attr-defined]
        (found,) = [agent.name for agent in movers]
        return found


@pytest.fixture(params=["write", "read"])
def both(node: Callable[..., Node], request: pytest.FixtureRequest) -> Both:
    return Both(node, options={"direction": request.param})


def test_one_tensor_under_two_keys_is_there_until_the_second_is_dropped(both: Both) -> None:
    tensor = _bytes(1, 9 * MIB)
    names = [both.insert(tensor), both.insert(tensor), both.insert(tensor[: 8 * MIB])]
    outs = [np.zeros(9 * MIB, np.uint8), np.zeros(9 * MIB, np.uint8), np.zeros(8 * MIB, np.uint8)]
    for name, out in zip(names, outs, strict=True):
        both.take(name, out)
        assert (out == tensor[: out.nbytes]).all()
    for name, other in ((names[0], 1), (names[2], 1)):
        both.drop(name)
        outs[other][:] = 0
        both.take(names[other], outs[other])
        assert (outs[other] == tensor).all()


def test_tensors_at_addresses_that_were_used_before(both: Both) -> None:
    """Their ends cut through each other: what the library learned of the earlier ones must not be in the way."""
    rng = np.random.default_rng(1)
    source, target = _bytes(2, 16 * MIB), np.zeros(16 * MIB, np.uint8)
    before = ""
    for turn in range(60):
        nbytes = int(rng.choice([1, 100, 5000, MIB, 4 * MIB, 6 * MIB + 1, 12 * MIB]))
        start, to = (int(rng.integers(0, 16 * MIB - nbytes + 1)) for _ in range(2))
        target[:] = 0
        both.hand_over(source[start : start + nbytes], target[to : to + nbytes])
        assert (target[to : to + nbytes] == source[start : start + nbytes]).all(), turn
        assert not target[:to].any(), turn
        assert not target[to + nbytes :].any(), turn
        before = before or both.mover()
    assert both.mover() == before, "no agent was needed anew"


def test_a_cache_where_tensors_have_been(both: Both) -> None:
    """Remote pages are looked up from their region's start: a tensor that lay in it earlier can be in the way."""
    source, target = _bytes(3, 4 * MIB), np.zeros(4 * MIB, np.uint8)
    for start in (0, MIB, 2 * MIB + 77):
        both.hand_over(source[start : start + 5000], target[start : start + 5000])
    two = [Region.over(target[first : first + 2 * MIB], 4096) for first in (0, 2 * MIB)]
    both.consumer.backend.register(two)
    mine = [Region.over(source[first : first + 2 * MIB], 4096) for first in (0, 2 * MIB)]
    both.producer.backend.register(mine)
    ids = np.random.default_rng(4).permutation(512)[:100].astype(np.int64)
    both.hand_over(Pages.of(mine, ids), Pages.of(two, ids[::-1].copy()))
    for ours, theirs in zip(mine, two, strict=True):
        assert (theirs.rows()[ids[::-1]] == ours.rows()[ids]).all()


@pytest.mark.parametrize("stale", [False, True])
def test_regions_that_interleave(both: Both, *, stale: bool) -> None:
    """K and V of a layer in one tensor: each region's span covers nearly all of the other's.

    Where a tensor lay between the two starts, the second region is not found: an agent that knows nothing of it does.
    """
    page, blocks = 4096, 40

    def regions(memory: Any) -> list[Region]:
        stride = {"page_bytes": page, "block_stride": 2 * page, "num_blocks": blocks}
        return [Region(address=memory.ctypes.data + start, host=memory[start:], **stride) for start in (0, page)]

    source, target = _bytes(5, 2 * page * blocks), np.zeros(2 * page * blocks, np.uint8)
    mine, theirs = regions(source), regions(target)
    first = ""
    if stale:
        both.hand_over(source[10:110], target[10:110])
        both.producer.await_stats(bytes=0)  # until the tensor is not held any more
        target[:] = 0
        first = both.mover()
    both.producer.backend.register(mine)
    both.consumer.backend.register(theirs)
    ids = np.array([39, 0, 1, 2, 20, 7], dtype=np.int64)
    both.hand_over(Pages.of(mine, ids), Pages.of(theirs, ids))
    found, expected = target.reshape(blocks, -1), source.reshape(blocks, -1)
    assert (found[ids] == expected[ids]).all()
    assert not np.delete(found, ids, axis=0).any()
    assert both.mover() != first


def test_pages_of_regions_that_nobody_registered(both: Both) -> None:
    for turn in range(3):
        source, target = _bytes(turn, MIB), np.zeros(MIB, np.uint8)
        mine, theirs = Region.over(source, 1024), Region.over(target, 1024)
        both.hand_over(Pages.of([mine], [5, 4, 900]), Pages.of([theirs], [1, 2, 3]))
        assert (theirs.rows()[[1, 2, 3]] == mine.rows()[[5, 4, 900]]).all()
    for one in (both.producer, both.consumer):
        assert not one.backend.main.memory.spans._users  # type: ignore[attr-defined]


def test_regions_that_lie_partly_in_earlier_ones_are_refused(both: Both) -> None:
    whole = np.zeros(64 << 10, np.uint8)
    backend = both.producer.backend
    backend.register([Region.over(whole[: 32 << 10], 4096)])
    backend.register([Region.over(whole[: 32 << 10], 4096), Region.over(whole[4096:8192], 1024)])  # within: fine
    with pytest.raises(ConfigError, match="in one call"):
        backend.register([Region.over(whole[16 << 10 :], 4096)])


def test_a_large_tensor_has_few_pieces(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "PIECE", 1000)
    monkeypatch.setattr(memory, "MAX_PIECES", 7)
    source, target = _bytes(6, 100_001), np.zeros(100_001, np.uint8)
    both.hand_over(source, target)
    assert (source == target).all()


def test_what_was_learned_of_a_peer_does_not_grow_without_end(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MAX_LEARNED", 10)
    names = set()
    for turn in range(35):
        source, target = _bytes(turn, 1000 + turn), np.zeros(1000 + turn, np.uint8)
        both.hand_over(source, target)
        assert (source == target).all()
        names.add(both.mover())
    assert len(names) == 4


def test_more_tables_than_are_kept_prepared(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MAX_TABLES", 2)
    tensors = [_bytes(turn, 10 * MIB) for turn in range(6)]
    outs = [np.zeros(10 * MIB, np.uint8) for _ in tensors]
    names = [both.insert(tensor) for tensor in tensors]
    home = both.producer.where()
    flying = [both.consumer.buffer.select(Key(name, *home), out) for name, out in zip(names, outs, strict=True)]
    for transfer, tensor, out in zip(flying, tensors, outs, strict=True):
        transfer.wait(SOON)
        assert (out == tensor).all()


def test_spans_are_merged_where_they_overlap() -> None:
    assert merged([(10, 5, 0), (12, 10, 0), (22, 3, 0), (11, 2, 0), (10, 5, 1)]) == [
        (10, 12, 0),
        (22, 3, 0),
        (10, 5, 1),
    ]
    assert joined([(0, 100, 0)], [(10, 20, 0), (10, 20, 1), (200, 5, 0)]) == [(200, 5, 0), (10, 20, 1)]


def test_a_span_is_registered_once_and_forgotten_with_its_last_user() -> None:
    calls: list[tuple[str, Any]] = []

    class Lib:
        def register_memory(self, described: Any, kind: str) -> None:
            calls.append(("register", described))

        def get_reg_descs(self, described: Any, kind: str) -> Any:
            return described

        def deregister_memory(self, described: Any) -> None:
            calls.append(("deregister", described))

    class Owner:
        lib = Lib()

    known = spans.Spans(Owner())  # type: ignore[arg-type]
    known.add("DRAM", [(1, 2, 0), (1, 2, 0), (5, 5, 0)])
    known.add("DRAM", [(1, 2, 0)])
    known.remove("DRAM", [(1, 2, 0), (5, 5, 0)])
    known.remove("DRAM", [(1, 2, 0)])
    assert calls == [("register", [(1, 2, 0, ""), (5, 5, 0, "")]), ("deregister", [(5, 5, 0, "")])]
    known.remove("DRAM", [(1, 2, 0)])
    assert calls[-1] == ("deregister", [(1, 2, 0, "")])


def test_a_gpu_is_made_current_once_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU here: a stand-in for torch sees what it would be told."""
    fake_torch = mock.Mock()
    monkeypatch.setitem(sys.modules, "torch", fake_torch)

    def work() -> None:
        for number in (1, 1, 0):
            library.use_gpu(number)

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(5)
    assert [call.args for call in fake_torch.cuda.set_device.call_args_list] == [(1,), (0,), (1,), (0,)]
