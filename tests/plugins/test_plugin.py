"""The plugin without an engine: registration, what it refuses at start, and hooks that must not raise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvbridge.errors import ConfigError

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore"),  # importing vLLM warns about things that are not ours
]


def test_registration_is_idempotent_and_loads_the_connector_by_name() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from kvbridge_vllm import register
    from kvbridge_vllm.connector import KVBridgeConnector

    register()
    register()
    assert KVConnectorFactory.get_connector_class_by_name("KVBridgeConnector") is KVBridgeConnector


def test_the_alias_is_the_connector_under_the_name_that_routers_know() -> None:
    from kvbridge_vllm.connector import KVBridgeConnector
    from kvbridge_vllm.nixl_alias import NixlConnector

    assert issubclass(NixlConnector, KVBridgeConnector)
    assert NixlConnector.__name__ == "NixlConnector"


def _configs(groups: int = 1, spec: Any = None, **parallel: int) -> tuple[Any, Any]:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    sizes = {
        "pipeline_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        **parallel,
    }
    spec = spec or FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=32, dtype=torch.float16)
    cache = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec)] * groups)
    return SimpleNamespace(parallel_config=SimpleNamespace(**sizes)), cache


@pytest.mark.parametrize("size", ["pipeline_parallel_size", "decode_context_parallel_size"])
def test_other_parallelism_is_refused_with_a_sentence(size: str) -> None:
    from kvbridge_vllm.layout import refuse_unsupported

    with pytest.raises(ConfigError, match=f"{size}=2: set it to 1"):
        refuse_unsupported(*_configs(**{size: 2}))


def test_several_cache_groups_are_refused_with_a_sentence() -> None:
    from kvbridge_vllm.layout import refuse_unsupported

    refuse_unsupported(*_configs())
    with pytest.raises(ConfigError, match=r"this model has 3 .*disable-hybrid-kv-cache-manager"):
        refuse_unsupported(*_configs(groups=3))


def test_caches_that_give_blocks_up_early_or_hold_no_kv_of_tokens_are_refused() -> None:
    import torch
    from vllm.v1.kv_cache_interface import MambaSpec, SlidingWindowSpec, UniformTypeKVCacheSpecs

    from kvbridge_vllm.layout import refuse_unsupported

    window = SlidingWindowSpec(block_size=32, num_kv_heads=2, head_size=32, dtype=torch.float16, sliding_window=64)
    mamba = MambaSpec(block_size=4096, shapes=((4, 4),), dtypes=(torch.float16,))
    for spec in (window, mamba, UniformTypeKVCacheSpecs(block_size=32, kv_cache_specs={"layer": window})):
        with pytest.raises(ConfigError, match=r"full attention, this model has (SlidingWindow|Mamba)Spec: "):
            refuse_unsupported(*_configs(spec=spec))


def test_layers_are_refused_where_a_step_is_computed_in_micro_batches() -> None:
    from kvbridge_vllm.layout import refuse_micro_batches

    refuse_micro_batches(_configs()[0])
    refuse_micro_batches(_configs(use_ubatching=False)[0])
    with pytest.raises(ConfigError, match=r"layers: this engine .* micro-batches .* leave one of the two out"):
        refuse_micro_batches(_configs(use_ubatching=True)[0])


def test_layers_want_graphs_in_pieces_and_nothing_else_does() -> None:
    from kvbridge_vllm.connector import KVBridgeConnector

    assert KVBridgeConnector.requires_piecewise_for_cudagraph({"backend": "nccl", "layers": 2})
    assert not KVBridgeConnector.requires_piecewise_for_cudagraph({"backend": "nccl", "layers": 0})
    assert not KVBridgeConnector.requires_piecewise_for_cudagraph({"backend": "nccl"})


def test_a_hook_that_fails_inside_lets_the_engine_go_on() -> None:
    from kvbridge_vllm.connector import KVBridgeConnector

    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(f"a bug in {name}")

    connector = KVBridgeConnector.__new__(KVBridgeConnector)
    connector.hook_errors = 0
    connector._connector_metadata = None
    connector._scheduler = connector._worker = Broken()  # type: ignore[assignment]
    request = SimpleNamespace(request_id="r")
    output = SimpleNamespace(kv_connector_worker_meta=None, finished_recving=None, failed_recving=None)
    assert connector.get_num_new_matched_tokens(request, 0) == (0, False)
    assert connector.update_state_after_alloc(request, None, 0) is None
    assert connector.build_connector_meta(None).plan.empty
    assert connector.update_connector_output(output) is None
    assert connector.request_finished(request, []) == (False, None)
    assert connector.has_pending_push_work() is False
    assert connector.get_transfer_results(set()).finished_recving == set()
    assert connector.get_finished(set()) == (None, None)
    assert connector.build_connector_worker_meta() is None
    assert connector.get_kv_connector_stats() is None
    assert connector.shutdown() is None
    assert connector.hook_errors == 11


def test_metrics_add_up_over_ranks_and_steps() -> None:
    from kvbridge_vllm.metrics import Differences, KVBridgeStats

    ranks = [Differences(), Differences()]
    first = [rank.take({"loads": 2, "held_bytes": 100}) for rank in ranks]
    assert isinstance(first[0], KVBridgeStats)
    assert isinstance(first[1], KVBridgeStats)
    assert first[0].aggregate(first[1]).data == {"loads": 4, "held_bytes": 200}
    assert ranks[0].take({"loads": 2, "held_bytes": 100}) is None
    later = ranks[0].take({"loads": 3, "held_bytes": 0})
    assert later is not None
    assert later.data == {"loads": 1, "held_bytes": -100}


def test_durations_and_failures_reach_prometheus_each_one() -> None:
    from functools import partial

    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

    from kvbridge.connector.durations import Durations
    from kvbridge_vllm.metrics import Differences, KVBridgePromMetrics, KVBridgeStats, figures

    stats = KVBridgeStats(data={})
    for rank in (1, 2):
        durations = Durations()
        durations.add("load", 0.002 * rank)
        durations.add("load", 5.0 * rank)
        found = Differences().take(figures("reuse_", {"load:TransferTimeoutError": rank}, durations))
        assert found is not None
        assert durations.take() == {}
        stats.aggregate(found)
    assert stats.reduce() == {"failure:reuse_load:TransferTimeoutError": 3, "reuse_load_seconds": 15.006}

    registry = CollectorRegistry()
    types = {cls: partial(cls, registry=registry) for cls in (Counter, Gauge, Histogram)}
    prometheus = KVBridgePromMetrics(SimpleNamespace(kv_transfer_config=None), types, ["engine"], {0: ["0"]})
    prometheus.observe(stats.data)
    bucket = "vllm:kvbridge_reuse_load_seconds_bucket"
    assert [
        registry.get_sample_value(bucket, {"engine": "0", "le": le}) for le in ("0.001", "0.003", "3.0", "10.0")
    ] == [
        0,
        1,
        2,
        4,
    ]
    assert registry.get_sample_value("vllm:kvbridge_reuse_load_seconds_sum", {"engine": "0"}) == pytest.approx(15.006)
    labels = {"engine": "0", "operation": "reuse_load", "error": "TransferTimeoutError"}
    assert registry.get_sample_value("vllm:kvbridge_failures_total", labels) == 3
