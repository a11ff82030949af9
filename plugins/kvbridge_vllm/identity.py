"""What vLLM's block hashes leave out: which weights an engine has, and which adapter a request really uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, get_none_hash_seed

from kvbridge_vllm.layout import fingerprint
from kvbridge_vllm.weights import weights_digest

DIMENSION_OF = {"lora": "adapter", "mm": "multimodal", "cache_salt": "cache_salt"}
"""What vLLM's tags of a block hash's extra keys are called in a key. Others are refused by name."""


def reuse_facts(vllm_config: Any, kv_cache_config: Any, model_id: str) -> dict[str, str]:
    """List everything that all KV of an engine depends on, the same in every process that computes the same KV."""
    model = vllm_config.model_config
    facts = fingerprint(vllm_config, kv_cache_config, 0, model_id)
    del facts["rank"]
    facts["weights"] = weights_digest(Path(model.model)) if Path(model.model).is_dir() else str(model.revision)
    load_format = str(vllm_config.load_config.load_format)
    facts["load_format"] = load_format if load_format != "dummy" else f"dummy {model.seed}"
    facts["hash"] = f"{vllm_config.cache_config.prefix_caching_hash_algo} {get_none_hash_seed()}"
    return facts


def reuse_dimensions(request: Any) -> list[tuple[str, str]]:
    """List what a request's KV depends on beside its tokens, by the names of `kvbridge.reuse.keys`.

    vLLM's own hash covers salt, adapter name and path, and multimodal items, block by block. Named here is which of
    them there are, so that one that is unknown is refused, and which version of the adapter was there.
    """
    keys, _ = generate_block_hash_extra_keys(request, 0, request.num_prompt_tokens, 0)
    found = sorted({DIMENSION_OF.get(str(key[0]), str(key[0])) for key in keys or ()})
    return [(name, _adapter_version(request.lora_request) if name == "adapter" else "") for name in found]


def _adapter_version(adapter: Any) -> str:
    """Tell an adapter from another one that was put in its place under the same name and path."""
    folder = Path(adapter.lora_path)
    try:
        stats = [(one.name, one.stat()) for one in sorted(folder.iterdir()) if one.is_file()]
    except OSError:
        return f"{adapter.lora_int_id}"  # not a folder here: it was loaded by name
    return " ".join(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats)
