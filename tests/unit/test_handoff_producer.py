"""The prefill side of the scheduler half: what is handed over, under which name, and what is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvbridge.connector.params import parse_handoff
from kvbridge.connector.plan import Report
from tests.requests import BLOCK, DIGEST, asked, scheduler, view

DECODE = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_host": None}
BLOCKS = list(range(1, 9))


def prefill(**changes: Any) -> Any:
    half = scheduler(engine_id="prefill", **changes)
    ranks = changes.get("ranks", 1)
    half.set_directory([f"tcp://10.0.0.{r}:{6000 + r}" for r in range(ranks)], [50 + r for r in range(ranks)])
    return half


@pytest.mark.parametrize("tokens", [1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK])
def test_a_completed_prefill_is_saved_and_its_params_are_those_that_a_decode_engine_takes(tokens: int) -> None:
    half = prefill(ranks=2)
    needed, params = half.finished(view("p", tokens, DECODE), BLOCKS, completed=True)
    assert needed
    (save,) = half.plan().saves
    assert (save.request_id, save.digest, save.block_ids) == ("p", DIGEST, tuple(range(1, 1 + -(-tokens // BLOCK))))
    sent = json.loads(json.dumps(params))
    handoff = parse_handoff(sent)
    assert (handoff.key, handoff.tokens, handoff.block_size) == (save.key, tokens, BLOCK)
    assert handoff.addresses == ("tcp://10.0.0.0:6000", "tcp://10.0.0.1:6001")
    assert handoff.generations == (50, 51)
    assert handoff.digest_bytes == DIGEST
    assert (sent["do_remote_prefill"], sent["do_remote_decode"]) == (True, False)
    assert (sent["remote_engine_id"], sent["remote_request_id"]) == ("prefill", "p")
    assert (sent["remote_host"], sent["remote_port"], sent["tp_size"]) == ("10.0.0.0", 6000, 2)
    assert sent["remote_block_ids"] == list(save.block_ids)
    decode = scheduler(ranks=2)
    assert decode.matched(view("d", tokens, sent), 0) == (None if tokens > 1 else 0)


def test_two_prefills_of_one_prompt_have_two_keys_and_neither_is_the_requests_id() -> None:
    half = prefill()
    keys = {half.finished(view("p", 20, DECODE), BLOCKS, completed=True)[1]["kvbridge"]["key"] for _ in range(50)}
    assert len(keys) == 50
    assert "p" not in keys


def test_what_was_not_completed_is_not_handed_over() -> None:
    half = prefill()
    assert half.finished(view("p", 20, DECODE), BLOCKS, completed=False) == (False, None)
    assert half.idle


@pytest.mark.parametrize("params", [None, {}, {"do_remote_decode": False}, {"do_remote_decode": 1}, [1], "x"])
def test_what_was_not_asked_for_is_not_handed_over(params: Any) -> None:
    half = prefill()
    assert half.finished(view("p", 20, params), BLOCKS, completed=True) == (False, None)
    assert half.idle


def test_a_prompt_of_embeddings_is_not_handed_over() -> None:
    half = prefill()
    assert half.finished(view("p", 20, DECODE, plain=False), BLOCKS, completed=True) == (False, None)
    assert half.idle


def test_an_engine_that_only_decodes_hands_nothing_over() -> None:
    half = prefill(produces=False)
    assert half.finished(view("p", 20, DECODE), BLOCKS, completed=True) == (False, None)
    assert half.idle


@pytest.mark.parametrize(("tokens", "blocks"), [(20, []), (20, [1]), (200, BLOCKS), (0, BLOCKS)])
def test_a_prompt_without_all_its_blocks_is_not_handed_over_and_counted(tokens: int, blocks: list[int]) -> None:
    half = prefill()
    assert half.finished(view("p", tokens, DECODE), blocks, completed=True) == (False, None)
    assert half.idle
    assert half.counters["not_handed_over"] == 1


def test_before_the_workers_can_be_reached_nothing_is_handed_over() -> None:
    half = scheduler()
    assert half.finished(view("p", 20, DECODE), BLOCKS, completed=True) == (False, None)
    assert half.idle


def test_a_request_that_was_loaded_can_be_handed_on() -> None:
    half = prefill()
    request = asked("r")
    both = view("r", 100, {**request.params, "do_remote_decode": True})
    assert half.matched(both, 0) is None
    (order,) = half.plan().claims
    half.absorb(Report(granted={order.claim: 1}))
    assert half.matched(both, 0) == 100
    half.allocated(both, BLOCKS, 0, 100)
    half.received("r", failed=False)
    needed, params = half.finished(both, BLOCKS, completed=True)
    assert needed
    assert params is not None
    assert params["kvbridge"]["key"] != "key"


def test_a_plan_is_returned_once() -> None:
    half = prefill()
    half.finished(view("p", 20, DECODE), BLOCKS, completed=True)
    assert not half.idle
    assert not half.plan().empty
    assert half.plan().empty
