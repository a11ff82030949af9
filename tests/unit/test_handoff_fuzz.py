"""Whatever a client sends as transfer parameters: no exception, no load, and the request is computed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvbridge.connector.plan import Report
from tests.requests import BLOCK, DIGEST, asked, handoff, scheduler, view

WORDS = ["do_remote_prefill", "do_remote_decode", "kvbridge", "v", "key", "digest", "tokens", "addresses", ""]
ODD = st.sampled_from(["é", "\ud800", "=", "====", "QUJD", "A" * 300, "\0", "tcp://h:99999", "tcp://h:1\n", "1e999"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 1, 2**63, 2**64, 10**400, float("nan"), float("inf"), -0.0])
    | st.floats()
    | st.text(max_size=20)
    | ODD
    | st.binary(max_size=8)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS) | st.text(), inner, max_size=4),
    max_leaves=12,
)
FIELDS = sorted(handoff()["kvbridge"])


def harmless(params: Any, tokens: int = 100) -> None:
    """Drive a request with these parameters through its life, as an engine does."""
    half = scheduler()
    half.set_directory(["tcp://127.0.0.1:5"], [9])
    request = view(tokens=tokens, params=params)
    answer = half.matched(request, 0)
    assert answer in (0, None)
    if answer is None:
        (order,) = half.plan().claims
        half.absorb(Report(granted={order.claim: 1}))
        answer = half.matched(request, 0)
        assert answer == tokens
        assert order.key.digest == DIGEST  # nothing else is KV of this prompt
    half.finished(request, list(range(1, 8)), completed=True)
    half.finished(view("never scheduled", tokens, params), [], completed=False)
    half.plan()


@settings(max_examples=60, deadline=None)
@given(JSON)
def test_any_json_as_params_is_harmless(params: Any) -> None:
    harmless(params)


@settings(max_examples=60, deadline=None)
@given(JSON, st.booleans())
def test_any_json_as_the_inner_object_is_harmless(inner: Any, decode: bool) -> None:
    harmless({"do_remote_prefill": True, "do_remote_decode": decode, "kvbridge": inner})


@settings(max_examples=120, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3), st.sets(st.sampled_from(FIELDS), max_size=2))
@example({"addresses": "\ud800"}, set())
@example({"addresses": ["\ud800"]}, set())
def test_right_params_with_some_fields_changed_or_left_out_are_harmless(
    changed: dict[str, Any], left_out: set[str]
) -> None:
    params = copy.deepcopy(handoff())
    params["kvbridge"].update(changed)
    for field in left_out:
        params["kvbridge"].pop(field, None)
    harmless(params)


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"v": "1"},
        {"key": ""},
        {"key": "x" * 257},
        {"key": "\ud800"},
        {"digest": "é"},
        {"digest": "not base64!"},
        {"digest": "QUJD"},
        {"digest": ""},
        {"tokens": 99},
        {"tokens": 0},
        {"tokens": "100"},
        {"block_size": BLOCK + 1},
        {"addresses": []},
        {"addresses": ["tcp://h:1", "tcp://h:2"]},
        {"addresses": ["ipc:///tmp/x"]},
        {"addresses": ["tcp://h"]},
        {"addresses": "tcp://h:1"},
        {"generations": []},
        {"generations": [0]},
        {"generations": [2**63]},
        {"generations": [1, 2]},
    ],
)
def test_wrong_params_are_refused_counted_and_computed(change: dict[str, Any]) -> None:
    half, request = scheduler(), view(params=handoff(**change))
    assert half.matched(request, 0) == 0
    assert half.plan().claims == []
    assert half.counters == {"requests": 1, "recomputed": 1, "refused_params": 1}
    half.allocated(request, list(range(1, 8)), 0, 100)
    assert half.plan().loads == []
    half.finished(request, [], completed=True)
    assert not half._wanted


def test_params_of_another_prompt_are_refused() -> None:
    half = scheduler()
    assert half.matched(asked(digest="A" * 43 + "="), 0) == 0
    assert half.matched(view("e", params=handoff(), plain=False), 0) == 0
    assert half.counters["refused_params"] == 2


def test_unknown_fields_beside_the_known_ones_are_left_alone() -> None:
    params = handoff(note="a router's", expires=None)
    params["remote_prefill_cached_tokens"] = 5
    assert scheduler().matched(view(params=params), 0) is None


def test_an_engine_that_only_prefills_refuses_to_load() -> None:
    half = scheduler(consumes=False)
    assert half.matched(asked(), 0) == 0
    assert half.counters["refused_params"] == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.lists(st.integers(0, 200), min_size=1, max_size=6), st.integers(0, 3))
def test_the_tokens_offered_are_none_or_at_least_two_and_never_beyond_the_prompt(
    tokens: int, locals_: list[int], when: int
) -> None:
    half, request = scheduler(), asked(tokens=tokens)
    for step, local in enumerate(min(local, tokens) for local in locals_):
        if step == when:
            half.absorb(Report(granted={order.claim: 1 for order in half.plan().claims}))
        answer = half.matched(request, local)
        if answer:
            assert answer >= 2
            assert local + answer == tokens
            half.allocated(request, list(range(1, 1 + -(-tokens // BLOCK))), local, answer)
            (load,) = half.plan().loads
            assert len(load.block_ids) + load.skip == -(-tokens // BLOCK)
            assert load.block_ids
            return
