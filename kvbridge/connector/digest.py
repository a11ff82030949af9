"""The digest that binds a value to what it is KV of: two prompts have one digest only if their KV is the same."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

DIGEST_BYTES = 32


def prompt_digest(tokens: Sequence[int], extra: Sequence[tuple[str, str]] = ()) -> bytes:
    """Digest a prompt.

    Args:
        tokens: The prompt's token ids.
        extra: Everything else that its KV depends on, as `(dimension, value)`: salt, adapter, multimodal hashes.

    Returns:
        32 bytes (BLAKE2b).
    """
    state = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for dimension, value in sorted(extra):
        for text in (dimension, value):
            raw = text.encode()
            state.update(len(raw).to_bytes(8, "little"))
            state.update(raw)
    state.update(b"tokens")
    state.update(np.asarray(tokens, dtype="<i8").tobytes())
    return state.digest()
