"""vLLM's KV cache as regions, and the fingerprint of everything that gives its bytes their meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import vllm

from kvbridge.errors import ConfigError
from kvbridge.memory.layout import CacheLayout, Placement

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np

KINDS = {"FullAttentionSpec", "MLAAttentionSpec"}
"""Kinds of cache whose blocks hold the KV of their tokens as long as the request lives, and nothing else."""

NULL_BLOCKS = 1
"""Block 0 is vLLM's null block: it is never moved."""


def refuse_unsupported(vllm_config: Any, kv_cache_config: Any) -> None:
    """Check that this engine's parallelism and cache are of a kind that can be handed over.

    Raises:
        ConfigError: They are not; the message says which and what to do.
    """
    parallel = vllm_config.parallel_config
    for name in ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise ConfigError(
                f"KVBridgeConnector does not hand over KV with {name}={getattr(parallel, name)}: set it to 1"
            )
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        kinds = sorted({type(group.kv_cache_spec).__name__ for group in groups})
        raise ConfigError(
            f"KVBridgeConnector hands over one KV cache group, this model has {len(groups)} ({', '.join(kinds)}): "
            "start vLLM with --disable-hybrid-kv-cache-manager, or serve this model without disaggregation"
        )
    spec = groups[0].kv_cache_spec
    kinds = sorted({type(one).__name__ for one in getattr(spec, "kv_cache_specs", {"": spec}).values()} - KINDS)
    if kinds:
        raise ConfigError(
            f"KVBridgeConnector is for KV of full attention, this model has {', '.join(kinds)}: its blocks are given "
            "up while its requests run, or hold no KV of single tokens; serve this model without the connector"
        )


def refuse_micro_batches(vllm_config: Any) -> None:
    """Check that the end of a layer is one moment: with micro-batches each of them has its own.

    Raises:
        ConfigError: It is not.
    """
    if getattr(vllm_config.parallel_config, "use_ubatching", False):
        raise ConfigError(
            "kv_connector_extra_config.layers: this engine computes a step in micro-batches (enable_dbo, ubatch_size); "
            "leave one of the two out"
        )


def placements(kv_cache_config: Any) -> list[Placement]:
    """Translate `kv_cache_config.kv_cache_tensors`."""
    group_of = {
        name: index for index, group in enumerate(kv_cache_config.kv_cache_groups) for name in group.layer_names
    }
    found: list[Placement] = []
    for tensor in kv_cache_config.kv_cache_tensors:
        if getattr(tensor, "host_resident", False):
            raise ConfigError("this model keeps part of its KV cache in host memory: KVBridgeConnector cannot move it")
        layers = [name for name in tensor.layers if name in group_of]
        if not layers:
            continue
        group = group_of[layers[0]]
        sizes = {_page_bytes(kv_cache_config.kv_cache_groups[group].kv_cache_spec, name) for name in layers}
        if len(sizes) != 1 or len(layers) != len(tensor.layers):
            raise ConfigError(f"the layers {tensor.layers} share memory but not one page size: found {sizes}")
        found.append(
            Placement(tuple(layers), group, tensor.offset, tensor.layer_stride, tensor.block_stride, sizes.pop())
        )
    return found


def _page_bytes(spec: Any, layer: str) -> int:
    specs = getattr(spec, "kv_cache_specs", None)
    return int((specs[layer] if specs else spec).page_size_bytes)


def cache_layout(kv_cache_config: Any, kv_caches: Mapping[str, torch.Tensor]) -> CacheLayout:
    """Compute the regions of a worker's cache from its configuration and the memory behind its tensors.

    Raises:
        ConfigError: The tensors do not share one allocation.
    """
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in kv_caches.values()}
    if len(storages) != 1:
        raise ConfigError(
            f"the KV cache lies in {len(storages)} allocations, expected one: this vLLM version "
            f"({vllm.__version__}) is not supported, use 0.32"
        )
    address, tensor = storages.popitem()
    host: np.ndarray[Any, np.dtype[np.uint8]] | None = None
    if tensor.device.type == "cpu":
        flat = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
        host = flat.numpy()
    return CacheLayout.build(
        placements(kv_cache_config),
        num_blocks=kv_cache_config.num_blocks,
        address=address,
        device=str(tensor.device),
        host=host,
        first_block=NULL_BLOCKS,
    )


def fingerprint(vllm_config: Any, kv_cache_config: Any, rank: int, model_id: str) -> dict[str, str]:
    """List everything that gives a worker's KV bytes their meaning. Two workers exchange KV only if all is equal."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    parallel = vllm_config.parallel_config
    spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
    facts: dict[str, Any] = {
        "vllm": ".".join(vllm.__version__.split("+")[0].split(".")[:2]),
        "model": model_id or model.model,
        "revision": model.revision,
        "architecture": ",".join(getattr(model.hf_config, "architectures", None) or ()),
        "dtype": model.dtype,
        "cache_dtype": cache.cache_dtype,
        "block_size": spec.block_size,
        "layout": _layout_name(cache),
        "page_bytes": ",".join(str(size) for size in _page_sizes(kv_cache_config)),
        "layers": sum(len(tensor.layers) for tensor in kv_cache_config.kv_cache_tensors),
        "kv_heads_per_rank": model.get_num_kv_heads(parallel),
        "head_size": model.get_head_size(),
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "rank": rank,
        "sliding_window": getattr(spec, "sliding_window", None),
        "quantization": model.quantization,
        "attention": _attention(vllm_config, spec),
    }
    return {name: str(value).removeprefix("torch.") for name, value in facts.items()}


def _page_sizes(kv_cache_config: Any) -> list[int]:
    return sorted({placement.page_bytes for placement in placements(kv_cache_config)})


def _layout_name(cache: Any) -> str:
    resolved = cache.get_resolved_kv_cache_layout()
    if not resolved.is_block_compact:
        raise ConfigError(
            f"the KV cache layout {resolved.name} scatters a page's bytes: set VLLM_KV_CACHE_LAYOUT=LBHNC"
        )
    return str(resolved.name)


def _attention(vllm_config: Any, spec: Any) -> str:
    """Name the attention backend; on a CPU with its instruction set, by which it packs the bytes of a page."""
    from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backend  # noqa: PLC0415

    backend = get_current_attn_backend(vllm_config)
    name = str(backend.get_name())
    if not name.startswith("CPU"):
        return name
    from vllm.v1.attention.backends import cpu_attn  # noqa: PLC0415 - exists in CPU builds

    isa = cpu_attn._get_attn_isa(  # noqa: SLF001 - no public name
        vllm_config.model_config.dtype, spec.block_size, vllm_config.model_config.get_head_size()
    )
    return f"{name}/{isa}"
