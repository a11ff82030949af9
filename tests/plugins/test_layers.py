"""Which prompts are handed over layer by layer in a step of vLLM's scheduler. Without engines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from kvbridge.config import ConnectorConfig, HandoffConfig
from kvbridge.memory import Region
from kvbridge.memory.layout import CacheLayout
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


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_what_is_handed_over_by_layers_waits_for_the_gpu_that_computes_it(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    from kvbridge_vllm import handoff_rank

    waits_for: list[Any] = []
    monkeypatch.setattr(handoff_rank, "Computing", waits_for.append)
    monkeypatch.setattr(handoff_rank, "Mark", lambda where: f"a mark in the queue of {where}")
    monkeypatch.setattr(handoff_rank, "fingerprint", lambda *_: {})
    monkeypatch.setattr(handoff_rank, "create_backend", MagicMock())
    config = ConnectorConfig(backend="made up", layers=1)
    engine = MagicMock()
    engine.parallel_config.use_ubatching = False
    rank = handoff_rank.HandoffRank(config, HandoffConfig(backend="made up"), engine, None, MagicMock(), MagicMock())
    region = Region(0x1000, page_bytes=64, block_stride=64, num_blocks=8, device=device)
    rank.register(CacheLayout((region,), groups=((0,),), layers=(("layer 0",),)), 0)
    assert [mark and mark() for mark in waits_for] == [None if device == "cpu" else "a mark in the queue of cuda:1"]
