"""Which prompts are handed over layer by layer in a step of vLLM's scheduler. Without engines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.plugins.engines import PREFILL_PARAMS
from tests.unit.test_handoff_producer import prefill

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore"),  # importing vLLM warns about things that are not ours
]


def order_layers(*arguments: Any) -> None:
    from kvbridge_vllm.scheduler import SchedulerSide

    SchedulerSide._order_layers(*arguments)


def request(name: str, computed: int, prompt: int = 100) -> Any:
    return SimpleNamespace(
        request_id=name,
        num_prompt_tokens=prompt,
        num_computed_tokens=computed,
        kv_transfer_params=PREFILL_PARAMS,
        prompt_token_ids=list(range(prompt)),
        prompt_embeds=None,
        prompt_is_token_ids=None,
        cache_salt=None,
        lora_request=None,
        mm_features=None,
    )


def step(scheduled: dict[str, int], preempted: set[str] | None = None) -> Any:
    blocks = {name: [list(range(number, number + 7))] for number, name in enumerate(scheduled, 1)}
    state = SimpleNamespace(resolve_block_ids=blocks.__getitem__)
    return SimpleNamespace(num_scheduled_tokens=scheduled, preempted_req_ids=preempted, kv_connector_block_state=state)


def test_a_prompt_is_ordered_in_the_step_that_computes_the_rest_of_it_and_not_before() -> None:
    half = prefill()
    known = {"first": request("first", 0), "last": request("last", 64), "whole": request("whole", 0)}
    order_layers(half, known, step({"first": 64, "last": 36, "whole": 100, "unknown": 100}))
    assert [order.request_id for order in half.plan().layers] == ["last", "whole"]


def test_a_preempted_prompt_is_fenced_before_it_is_ordered_again() -> None:
    half = prefill()
    known = {"p": request("p", 64)}
    order_layers(half, known, step({"p": 36}))
    (before,) = half.plan().layers
    known["p"].num_computed_tokens = 0
    order_layers(half, known, step({"p": 100}, {"p", "unknown"}))
    plan = half.plan()
    assert plan.fences == ["p"]
    (after,) = plan.layers
    assert after.key != before.key
    order_layers(half, known, step({}, {"p"}))
    assert half.plan().fences == ["p"]
