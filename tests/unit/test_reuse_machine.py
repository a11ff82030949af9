"""Reuse against a model engine: whatever happens, what is loaded is what was computed, and everything comes back.

The model does what an engine does: it gives blocks to requests, takes them away, computes in steps, and lets the two
halves speak to each other. A block's bytes are a function of its tokens, the weights and the rank, so that bytes of
anything else in a loaded block are found. Copies advance by a block each time that somebody looks at them.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvbridge.abc.backend import Move, MoveState
from kvbridge.abc.pool import SlotPool
from kvbridge.connector.reuse_plan import ReuseReport
from kvbridge.connector.reuse_scheduler import ReuseScheduler
from kvbridge.connector.reuse_view import Progress, ReusableRequest, ReuseSettings
from kvbridge.connector.reuse_worker import ReuseWorker
from kvbridge.errors import TransportError
from kvbridge.memory import Region
from kvbridge.memory.layout import CacheLayout
from kvbridge.policies import create_policy
from kvbridge.reuse.own_catalog import OwnCatalog
from kvbridge.transfer import cancelled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvbridge.memory import Pages

SIZE = 4
BLOCKS = 14
SLOTS = 6
RANKS = 2
PAGE = 16


def content(name: bytes, weights: int, rank: int) -> bytes:
    return hashlib.blake2b(name + bytes([weights, rank]), digest_size=PAGE).digest()


def hashes(tokens: Sequence[int]) -> list[bytes]:
    found, parent = [], b""
    for start in range(0, len(tokens) // SIZE * SIZE, SIZE):
        parent = hashlib.blake2b(parent + bytes(tokens[start : start + SIZE]), digest_size=8).digest()
        found.append(parent)
    return found


class SlowMove(Move):
    """Copies one block each time that it is looked at, or every third time. Some cannot be stopped."""

    def __init__(self, source: Pages, target: Pages, *, fails: bool, pace: int, stubborn: bool) -> None:
        self.pace, self.stubborn, self.looks = pace, stubborn, 0
        self.left = deque(zip(source.block_ids[0].tolist(), target.block_ids[0].tolist(), strict=True))
        self.source, self.target = source.regions[0].rows(), target.regions[0].rows()
        self.fails = fails
        self.aborted = False

    def step(self) -> MoveState:
        if self.aborted and not self.stubborn:
            raise cancelled("the copy")
        self.looks += 1
        if self.looks % self.pace:
            return MoveState.WAIT
        if self.fails and len(self.left) <= 1:
            raise TransportError("broken on purpose")
        if self.left:
            begin, into = self.left.popleft()
            self.target[into] = self.source[begin]
        return MoveState.WAIT if self.left else MoveState.DONE

    def abort(self) -> None:
        self.aborted = True


class SlowPool(SlotPool):
    def __init__(self, pace: int) -> None:
        self.pace, self.made = pace, 0
        self.regions = (Region.over(np.zeros(SLOTS * PAGE, dtype=np.uint8), PAGE),)
        self.used_bytes = SLOTS * PAGE
        self.fails = 0

    def copy(self, source: Pages, target: Pages) -> Move:
        fails, self.fails = self.fails > 0, max(0, self.fails - 1)
        self.made += 1
        move = SlowMove(source, target, fails=fails, pace=self.pace, stubborn=self.made % 2 == 0)
        if self.made % 3 == 0 and not fails:  # a thread may be quick too
            while move.step() is MoveState.WAIT:
                pass
        return move

    def close(self) -> None:
        pass


@dataclass
class Rank:
    number: int
    cache: np.ndarray
    pool: SlowPool
    worker: ReuseWorker


@dataclass
class Served:
    id: str
    tokens: list[int]
    prompt: int
    view: ReusableRequest
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    loading: int = 0
    running: bool = False
    gone: bool = False


class ModelEngine:
    def __init__(self, policy: str) -> None:
        self.weights = 0
        self.free: deque[int] = deque(range(1, BLOCKS))
        self.catalog = OwnCatalog(SLOTS, create_policy(policy, SLOTS))
        self.half = ReuseScheduler(ReuseSettings(SIZE, RANKS, {"model": "m"}, waits=False), self.catalog)
        self.ranks = []
        for number in range(RANKS):
            memory = np.zeros(BLOCKS * PAGE, dtype=np.uint8)
            layout = CacheLayout((Region.over(memory, PAGE, first_block=1),), ((0,),))
            pool = SlowPool(1 + 2 * number)
            self.ranks.append(Rank(number, memory.reshape(BLOCKS, PAGE), pool, ReuseWorker(layout, pool)))
        self.requests: dict[str, Served] = {}
        self.received: dict[str, int] = {}
        self.users: Counter[int] = Counter()
        self.failed_once: set[str] = set()
        self.count = 0
        self.loaded = 0

    def arrive(self, family: int, length: int) -> None:
        self.count += 1
        chooser = random.Random(family)
        tokens = [chooser.randrange(5) for _ in range(length)]
        one = Served(f"r{self.count}", tokens, length, None)  # type: ignore[arg-type]
        one.view = ReusableRequest(one.id, lambda: len(one.tokens), one.prompt, lambda: hashes(one.tokens), lambda: ())
        self.requests[one.id] = one

    def step(self, chunk: int) -> None:
        progress, writes = [], []
        new_ones = self.admit(chunk)
        for one in list(self.requests.values()):
            if not one.running or one.loading:
                continue
            end = min(len(one.tokens), one.computed + chunk)
            new = []
            while len(one.blocks) < -(-end // SIZE) and self.free:
                new.append(self.take())
                one.blocks.append(new[-1])
            end = min(end, len(one.blocks) * SIZE)
            progress.append(Progress(one.id, one.computed, new, first=one.id in new_ones))
            writes.append((one, one.computed, end))
        self.half.step(progress)
        plan = self.half.plan()
        outcomes = []
        for rank in self.ranks:
            rank.worker.prepare(plan)
            for one, begin, end in writes:
                self.compute(rank, one, begin, end)
            rank.worker.begin(plan)
            outcomes.append(rank.worker.poll())
        for one, _, end in writes:
            one.computed = end
            if end == len(one.tokens):
                one.tokens.append(len(one.tokens) % 5)
        reports = [report for rank in self.ranks if (report := rank.worker.report()) is not None]
        report = ReuseReport()
        for found in reports:
            report.merge(found)
        self.half.absorb(report)
        self.take_in([outcome.received for outcome in outcomes], set().union(*[one.failed for one in outcomes]))

    def compute(self, rank: Rank, one: Served, begin: int, end: int) -> None:
        names = hashes(one.tokens)
        for index in range(begin // SIZE, -(-end // SIZE)):
            whole = (index + 1) * SIZE <= end
            row = content(names[index], self.weights, rank.number) if whole else bytes([index]) * PAGE
            rank.cache[one.blocks[index]] = np.frombuffer(row, dtype=np.uint8)

    def in_the_cache(self, chunk: int) -> dict[bytes, int]:
        """Blocks that a new request finds in the engine's own cache: also those that this step computes."""
        found: dict[bytes, int] = {}
        for one in self.requests.values():
            if one.running and not one.loading:
                end = min(len(one.tokens), one.computed + chunk) // SIZE
                found.update(zip(hashes(one.tokens)[:end], one.blocks[:end], strict=False))
        return found

    def admit(self, chunk: int) -> set[str]:
        new_ones = set()
        for one in list(self.requests.values()):
            if one.running or one.loading:
                continue
            there = self.in_the_cache(chunk)
            local = []
            for name in hashes(one.tokens)[: (len(one.tokens) - 1) // SIZE]:
                if name not in there:
                    break
                local.append(there[name])
            tokens = self.half.matched(one.view, len(local) * SIZE)
            assert tokens is not None
            assert tokens % SIZE == 0
            assert len(local) * SIZE + tokens < len(one.tokens)
            needed = tokens // SIZE or 1
            if len(self.free) < needed:
                continue
            one.blocks = local + [self.take() for _ in range(needed)]
            for block in local:
                self.users[block] += 1
            one.computed, one.loading, one.running = len(local) * SIZE, tokens, True
            self.half.allocated(one.view, one.blocks, one.computed, tokens)
            if not tokens:
                new_ones.add(one.id)
        return new_ones

    def take(self) -> int:
        block = self.free.popleft()
        self.users[block] = 1
        return block

    def give_back(self, blocks: list[int]) -> None:
        for block in blocks:
            self.users[block] -= 1
            if not self.users[block]:
                self.free.append(block)

    def take_in(self, received: list[set[str]], failed: set[str]) -> None:
        for name in [name for one in received for name in one]:
            self.received[name] = self.received.get(name, 0) + 1
        for name, ranks in list(self.received.items()):
            assert ranks <= RANKS, "a load was reported twice"
            if ranks < RANKS:
                continue
            del self.received[name]
            spoilt = name in failed or name in self.failed_once
            self.half.received(name, failed=spoilt)
            one = self.requests[name]
            if one.gone:
                self.give_back(one.blocks)
                del self.requests[name]
            elif spoilt:
                self.give_back(one.blocks)
                one.blocks, one.running, one.loading, one.computed = [], False, 0, 0
            else:
                self.check(one)
                one.computed, one.loading = one.computed + one.loading, 0
            self.failed_once.discard(name)
        self.failed_once |= failed & set(self.received)

    def check(self, one: Served) -> None:
        self.loaded += 1
        names = hashes(one.tokens)
        for rank in self.ranks:
            for index in range((one.computed + one.loading) // SIZE):
                found = rank.cache[one.blocks[index]].tobytes()
                assert found == content(names[index], self.weights, rank.number), "wrong bytes were loaded"

    def finish(self, choice: int) -> None:
        if not self.requests:
            return
        one = list(self.requests.values())[choice % len(self.requests)]
        if one.gone:
            return
        if self.half.finished(one.id, one.blocks, one.computed):
            assert one.loading
            one.gone = True
            return
        assert not one.loading
        self.give_back(one.blocks)
        del self.requests[one.id]

    def preempt(self, choice: int) -> None:
        running = [one for one in self.requests.values() if one.running and not one.loading and not one.gone]
        if running:
            self.put_back(running[choice % len(running)])

    def put_back(self, one: Served) -> None:
        self.give_back(one.blocks)
        one.blocks, one.running, one.computed = [], False, 0

    def new_weights(self) -> None:
        for one in list(self.requests.values()):
            if one.running and not one.loading:
                self.put_back(one)
        self.weights += 1
        self.half.reset()

    def break_a_copy(self, rank: int) -> None:
        self.ranks[rank].pool.fails += 1

    def slots_add_up(self) -> None:
        assert 0 <= self.catalog.used <= SLOTS
        assert len(self.catalog) + self.catalog.filling <= self.catalog.used

    def end(self) -> None:
        for _ in range(60):
            for choice in range(len(self.requests)):
                self.finish(choice)
            self.step(9)
            if not self.requests and self.half.idle:
                break
        assert not self.requests
        assert self.half.idle
        assert self.catalog.pinned == 0
        assert self.catalog.filling == 0
        assert self.catalog.used == len(self.catalog)
        assert sorted(self.free) == list(range(1, BLOCKS))


@pytest.mark.parametrize("policy", ["lru", "arc", "s3fifo"])
@pytest.mark.parametrize("seed", range(12))
def test_what_is_loaded_is_what_was_computed(policy: str, seed: int) -> None:
    chooser = random.Random(seed)
    engine = ModelEngine(policy)
    for _ in range(1200):
        what = chooser.random()
        if what < 0.16 and len(engine.requests) < 6:
            engine.arrive(chooser.randrange(3), chooser.randrange(1, 23))
        elif what < 0.26:
            engine.finish(chooser.randrange(100))
        elif what < 0.31:
            engine.preempt(chooser.randrange(100))
        elif what < 0.315:
            engine.new_weights()
        elif what < 0.325:
            engine.break_a_copy(chooser.randrange(RANKS))
        else:
            engine.step(chooser.randrange(1, 10))
        engine.slots_add_up()
    engine.end()
    assert engine.loaded > 1
