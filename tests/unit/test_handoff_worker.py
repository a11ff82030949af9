"""The worker half: every outcome is reported exactly once, and nothing is filled that was refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvbridge.connector.handoff_worker import HandoffWorker
from kvbridge.connector.plan import ClaimOrder, LoadOrder, Plan, RemoteKey, SaveOrder
from kvbridge.errors import BusyError, KeyConsumedError, PeerLostError, SpecMismatchError, TransportError
from kvbridge.memory.layout import CacheLayout, Placement
from kvbridge.transfer import Transfer
from tests.fakes import FakeBuffer, FakeClaim

KEY = RemoteKey("k", ("tcp://a:1", "tcp://b:2"), (5, 6), b"digest")
CLAIM = ClaimOrder(1, KEY)
LOAD = LoadOrder("r", 1, (3, 4, 5), 2)
SAVE = SaveOrder("p", "key", b"digest", (7, 2))


def layout() -> CacheLayout:
    memory = np.zeros(10 * 128, dtype=np.uint8)
    place = Placement(("a", "b"), 0, 0, 64, 128, 64)
    return CacheLayout.build([place], num_blocks=10, address=memory.ctypes.data, device="cpu", host=memory)


def worker(buffer: FakeBuffer, rank: int = 0) -> HandoffWorker:
    return HandoffWorker(buffer, layout(), rank=rank, claim_timeout=4.0, lease=33.0)


def told(half: HandoffWorker) -> tuple[set[str], set[str], set[str]]:
    outcome = half.poll()
    return outcome.sent, outcome.received, outcome.failed


NOTHING: tuple[set[str], set[str], set[str]] = (set(), set(), set())


def test_a_save_inserts_the_blocks_and_is_reported_once_when_they_are_free() -> None:
    buffer = FakeBuffer()
    half = worker(buffer)
    half.begin(Plan(saves=[SAVE]))
    pages, digest, lease, transfer = buffer.inserts["key"]
    assert ([ids.tolist() for ids in pages.block_ids], digest, lease) == ([[7, 2]], b"digest", 33.0)
    assert told(half) == NOTHING
    transfer.resolve(None)
    assert told(half) == ({"p"}, set(), set())
    assert told(half) == NOTHING
    assert (half.counters["saves"], half.counters["saved_bytes"]) == (1, 2 * 128)


def test_the_consumer_of_a_save_is_told_by_its_own_rank_once_the_value_is_there() -> None:
    buffer, told_of = FakeBuffer(), []

    def announce(key: Any, pages: Any, digest: bytes, to: str) -> None:
        told_of.append((key.id in buffer.inserts, key.id, pages.block_ids[0].tolist(), digest, to))

    half = HandoffWorker(buffer, layout(), rank=1, claim_timeout=4.0, lease=33.0, announce=announce)
    half.begin(Plan(saves=[SaveOrder("p", "key", b"digest", (7, 2), ("tcp://a:1", "tcp://b:2")), SAVE]))
    assert told_of == [(True, "key", [7, 2], b"digest", "tcp://b:2")]


@pytest.mark.parametrize("blocks", [(7, 0), (7, 10), (-1,)])
def test_a_save_of_the_null_block_or_of_no_block_of_the_cache_inserts_nothing_and_frees_the_request(
    blocks: tuple[int, ...],
) -> None:
    buffer = FakeBuffer()
    half = worker(buffer)
    half.begin(Plan(saves=[SaveOrder("p", "key", b"", blocks)]))
    assert buffer.inserts == {}
    assert told(half) == ({"p"}, set(), set())
    assert told(half) == NOTHING
    assert half.counters["failed_saves"] == 1


def test_a_save_that_fails_frees_the_request_all_the_same() -> None:
    buffer = FakeBuffer()
    half = worker(buffer)
    half.begin(Plan(saves=[SAVE]))
    buffer.inserts["key"][3].fail(TransportError("vendor code 5"))
    assert told(half) == ({"p"}, set(), set())
    assert told(half) == NOTHING
    assert (half.counters["saves"], half.counters["failed_saves"]) == (0, 1)


def test_a_claim_asks_the_same_rank_of_the_other_engine_and_its_grant_is_reported_once() -> None:
    buffer = FakeBuffer()
    half = worker(buffer, rank=1)
    half.begin(Plan(claims=[CLAIM]))
    key, digest, timeout, _ = buffer.claims[0]
    assert (key.id, key.home, key.generation, digest, timeout) == ("k", "tcp://b:2", 6, b"digest", 4.0)
    assert (told(half), half.report()) == (NOTHING, None)
    buffer.grant()
    assert told(half) == NOTHING
    report = half.report()
    assert report is not None
    assert (report.granted, report.refused) == ({1: 1}, {})
    assert half.report() is None


def test_a_claim_that_is_lost_before_its_load_is_reported_as_refused_and_given_back() -> None:
    buffer = FakeBuffer()
    half = worker(buffer, rank=1)
    half.begin(Plan(claims=[CLAIM]))
    claim = buffer.grant()
    half.poll()
    half.report()
    claim.gone = PeerLostError("it died")
    half.poll()
    report = half.report()
    assert report is not None
    assert (report.granted, report.refused) == ({}, {1: ("peer-lost", "rank 1: it died")})
    assert claim.releases == 1
    half.poll()
    assert half.report() is None


def test_a_refused_claim_is_reported_once_with_rank_and_reason_and_nothing_is_filled() -> None:
    buffer = FakeBuffer()
    half = worker(buffer, rank=1)
    half.begin(Plan(claims=[CLAIM]))
    buffer.claims[0][3].fail(KeyConsumedError("it was taken"))
    half.poll()
    report = half.report()
    assert report is not None
    assert (report.granted, report.refused) == ({}, {1: ("consumed", "rank 1: it was taken")})
    assert half.report() is None
    half.begin(Plan(loads=[LOAD]))  # a confused scheduler: the load fails, visibly
    assert told(half) == (set(), {"r"}, {"r"})
    assert told(half) == NOTHING
    assert buffer.given == []


def granted(half: HandoffWorker, buffer: FakeBuffer, claim: FakeClaim | None = None) -> FakeClaim:
    half.begin(Plan(claims=[CLAIM]))
    given = buffer.grant(claim=claim)
    half.poll()
    return given


def test_a_load_fills_the_blocks_of_its_claim_and_is_reported_once() -> None:
    buffer = FakeBuffer()
    half = worker(buffer)
    claim = granted(half, buffer)
    half.begin(Plan(loads=[LOAD]))
    ((pages, skip, transfer),) = claim.fills
    assert ([ids.tolist() for ids in pages.block_ids], skip) == ([[3, 4, 5]], 2)
    assert told(half) == NOTHING
    transfer.resolve(None)
    transfer.fail(TransportError("a late and contrary completion"))
    assert told(half) == (set(), {"r"}, set())
    assert told(half) == NOTHING
    assert (half.counters["loads"], half.counters["loaded_bytes"]) == (1, 3 * 128)
    assert claim.releases == 0


def test_a_load_that_fails_is_reported_as_failed_once_and_lets_go_of_its_claim() -> None:
    buffer = FakeBuffer()
    half = worker(buffer)
    claim = granted(half, buffer)
    half.begin(Plan(loads=[LOAD]))
    claim.fills[0][2].fail(TransportError("vendor code 5"))
    assert told(half) == (set(), {"r"}, {"r"})
    assert told(half) == NOTHING
    assert claim.releases == 1
    assert (half.counters["loads"], half.counters["failed_loads"]) == (0, 1)


def test_a_second_load_of_one_claim_fails_and_the_first_goes_on() -> None:
    buffer = FakeBuffer()
    half = worker(buffer)
    claim = granted(half, buffer)
    half.begin(Plan(loads=[LOAD, LoadOrder("other", 1, (6,), 0)]))
    assert told(half) == (set(), {"other"}, {"other"})
    claim.fills[0][2].resolve(None)
    assert told(half) == (set(), {"r"}, set())
    assert len(claim.fills) == 1


@pytest.mark.parametrize("blocks", [(3, 0, 5), (3, 99)])
def test_a_load_into_the_null_block_or_out_of_the_cache_touches_nothing(blocks: tuple[int, ...]) -> None:
    buffer = FakeBuffer()
    half = worker(buffer)
    claim = granted(half, buffer)
    half.begin(Plan(loads=[LoadOrder("r", 1, blocks, 0)]))
    assert told(half) == (set(), {"r"}, {"r"})
    assert (claim.fills, claim.releases) == ([], 1)


@pytest.mark.parametrize("raises", [True, False])
def test_a_fill_that_is_refused_at_once_is_a_failed_load(raises: bool) -> None:
    def refuse() -> Transfer[Any]:
        error = SpecMismatchError("it does not fit")
        if raises:
            raise error
        transfer: Transfer[Any] = Transfer("filling")
        transfer.fail(error)
        return transfer

    buffer = FakeBuffer()
    half = worker(buffer)
    claim = granted(half, buffer, FakeClaim(refuse=refuse))
    half.begin(Plan(loads=[LOAD]))
    assert told(half) == (set(), {"r"}, {"r"})
    assert claim.releases == 1


def test_a_cancelled_load_is_reported_only_when_its_memory_is_safe() -> None:
    buffer = FakeBuffer(obedient=False)
    half = worker(buffer)
    claim = granted(half, buffer)
    half.begin(Plan(loads=[LOAD]))
    half.begin(Plan(cancels=["r", "unknown"]))
    half.begin(Plan(cancels=["r"]))
    transfer = claim.fills[0][2]
    assert transfer.cancels == 1
    assert told(half) == NOTHING
    transfer.resolve(None)  # the library could not stop and finished
    assert told(half) == (set(), {"r"}, set())
    assert told(half) == NOTHING


def test_a_load_that_is_cancelled_in_the_same_plan_is_reported() -> None:
    buffer = FakeBuffer()
    half = worker(buffer)
    granted(half, buffer)
    half.begin(Plan(loads=[LOAD], cancels=["r"]))
    assert told(half) == (set(), {"r"}, {"r"})


def test_a_granted_claim_that_is_released_is_given_back_once() -> None:
    buffer = FakeBuffer()
    half = worker(buffer)
    claim = granted(half, buffer)
    half.begin(Plan(releases=[1]))
    half.begin(Plan(releases=[1, 77]))
    assert claim.releases == 1
    half.begin(Plan(loads=[LOAD]))
    assert claim.fills == []


def test_a_claim_under_way_that_is_released_is_cancelled_and_not_reported() -> None:
    buffer = FakeBuffer()
    half = worker(buffer)
    half.begin(Plan(claims=[CLAIM]))
    half.begin(Plan(releases=[1]))
    assert buffer.claims[0][3].cancels == 1
    half.poll()
    assert half.report() is None


def test_a_claim_that_is_granted_although_it_was_released_is_given_back() -> None:
    buffer = FakeBuffer(obedient=False)
    half = worker(buffer)
    half.begin(Plan(claims=[CLAIM]))
    half.begin(Plan(releases=[1]))
    assert buffer.grant().releases == 1
    half.poll()
    assert half.report() is None


def test_a_claim_that_is_released_in_the_same_plan_is_not_held() -> None:
    buffer = FakeBuffer(obedient=False)
    half = worker(buffer)
    half.begin(Plan(claims=[CLAIM], releases=[1]))
    if buffer.claims:
        assert buffer.grant().releases == 1
    half.poll()
    assert half.report() is None


def test_a_release_between_grant_and_poll_is_given_back() -> None:
    buffer = FakeBuffer()
    half = worker(buffer)
    half.begin(Plan(claims=[CLAIM]))
    claim = buffer.grant()
    half.begin(Plan(releases=[1]))
    half.poll()
    assert claim.releases == 1


def test_drops_go_to_this_ranks_peer_and_to_nobody_where_there_is_none() -> None:
    buffer = FakeBuffer()
    half = worker(buffer, rank=1)
    half.begin(Plan(drops=[KEY, RemoteKey("short", ("tcp://a:1",), (5,), b"")]))
    assert [(key.id, key.home, key.generation) for key in buffer.dropped] == [("k", "tcp://b:2", 6)]


def test_closing_cancels_what_is_under_way_and_closes_the_buffer() -> None:
    buffer = FakeBuffer()
    half = worker(buffer)
    claim = granted(half, buffer)
    half.begin(Plan(loads=[LOAD], claims=[ClaimOrder(2, KEY)]))
    half.close()
    half.close()
    assert claim.fills[0][2].cancels == 1
    assert buffer.claims[1][3].cancels == 1
    assert buffer.closed >= 1
    assert told(half) == (set(), {"r"}, {"r"})


def test_a_buffer_that_refuses_a_claim_by_raising_is_a_refused_claim() -> None:
    class Raising(FakeBuffer):
        def claim(self, *args: Any, **options: Any) -> Any:
            raise BusyError("not now")

        def drop(self, keys: Any) -> None:
            raise BusyError("not now")

    half = worker(Raising())
    half.begin(Plan(claims=[CLAIM], drops=[KEY]))
    half.poll()
    report = half.report()
    assert report is not None
    assert report.refused[1][0] == "busy"
