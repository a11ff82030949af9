"""The model that is measured with: much KV and little else, so that what is measured is what happens to the KV."""

from __future__ import annotations

from typing import Any

LAYERS, KV_HEADS, HEAD_SIZE = 8, 8, 128

MODEL: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": KV_HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_SIZE,
    "vocab_size": 2048,
    "max_position_embeddings": 16384,
}

ELEMENT = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of an element, by dtype."""


def kv_bytes(dtype: str) -> int:
    """Return the bytes of KV of one token."""
    return LAYERS * 2 * KV_HEADS * HEAD_SIZE * ELEMENT[dtype]
