"""Makes small random checkpoints whose answers depend on the KV cache.

A tiny model with near-zero weights (as vLLM's ``load_format="dummy"`` gives) answers the same tokens whatever
its KV cache holds, so a test on it cannot see wrong KV. The weights here are large: embedding standard
deviation 1, every other matrix 3/sqrt(fan_in).
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

_GAIN = 3.0

_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    # No end token: an answer always has the length that the test asked for.
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "torch_dtype": "float32",
}


def make_checkpoint(folder: Path, seed: int = 0, **overrides: Any) -> Path:
    """Writes a random LlamaForCausalLM in float32 with a tokenizer, unless the folder holds it already.

    The tokenizer's words are ``t1``, ``t2`` and so on, separated by blanks: text works as well as token ids.

    Args:
        folder: where; another content there is replaced.
        seed: of the weights.
        **overrides: fields of the model's configuration.

    Returns:
        The folder.
    """
    config = {**_CONFIG, **overrides}
    recipe = json.dumps({"seed": seed, "gain": _GAIN, "config": config}, sort_keys=True)
    if (folder / "recipe.json").is_file() and (folder / "recipe.json").read_text() == recipe:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch) / "model"
        made.mkdir()
        from safetensors.numpy import save_file  # noqa: PLC0415 - comes with vLLM, a peer

        save_file(_weights(config, seed), made / "model.safetensors", metadata={"format": "pt"})
        (made / "config.json").write_text(json.dumps(config, indent=2))
        _write_tokenizer(made, config["vocab_size"])
        (made / "recipe.json").write_text(recipe)
        shutil.rmtree(folder, ignore_errors=True)
        made.replace(folder)
    return folder


def _weights(config: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]

    def matrix(rows: int, columns: int) -> np.ndarray:
        return random.standard_normal((rows, columns), dtype=np.float32) * np.float32(_GAIN / columns**0.5)

    norm = np.ones(hidden, dtype=np.float32)
    weights = {"model.embed_tokens.weight": random.standard_normal((vocab, hidden), dtype=np.float32)}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        weights[at + "self_attn.q_proj.weight"] = matrix(queries, hidden)
        weights[at + "self_attn.k_proj.weight"] = matrix(keys, hidden)
        weights[at + "self_attn.v_proj.weight"] = matrix(keys, hidden)
        weights[at + "self_attn.o_proj.weight"] = matrix(hidden, queries)
        weights[at + "mlp.gate_proj.weight"] = matrix(inner, hidden)
        weights[at + "mlp.up_proj.weight"] = matrix(inner, hidden)
        weights[at + "mlp.down_proj.weight"] = matrix(hidden, inner)
        weights[at + "input_layernorm.weight"] = norm.copy()
        weights[at + "post_attention_layernorm.weight"] = norm.copy()
    weights["model.norm.weight"] = norm.copy()
    weights["lm_head.weight"] = matrix(vocab, hidden)
    return weights


def _write_tokenizer(folder: Path, vocab_size: int) -> None:
    vocabulary = {"<unk>": 0, **{f"t{number}": number for number in range(1, vocab_size)}}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
