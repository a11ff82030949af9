"""The names under which blocks are kept: one name, one KV, in whichever process and at whatever time.

An engine's hash of a block covers its tokens and those before it, and some of what else its KV depends on. What it
leaves out is added here: the model and its weights, the layout of the bytes, the adapter that was really loaded. Who
asks with anything different asks for another name.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from kvbridge.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

KEY_BYTES = 16
"""Bytes of a key. With 2**64 blocks two are equal with even odds: nobody has so many."""

DIMENSIONS = frozenset({"adapter", "cache_salt", "multimodal"})
"""What a request's KV may depend on beside its tokens and its engine."""


def namespace(facts: Mapping[str, str], epoch: str) -> bytes:
    """Digest everything that all blocks of an engine have in common.

    Args:
        facts: What gives the bytes their meaning, by name: model, weights, dtype, layout, parallelism.
        epoch: One life of the weights; another one after they may have been changed.

    Returns:
        32 bytes, for `Names`.
    """
    state = hashlib.blake2b(digest_size=32, person=b"kvbridge reuse 1")
    for name, value in (*sorted(facts.items()), ("epoch", epoch)):
        for text in (name, value):
            raw = text.encode()
            state.update(len(raw).to_bytes(8, "little") + raw)
    return state.digest()


def narrowed(space: bytes, dimensions: Sequence[tuple[str, str]]) -> bytes:
    """Narrow a namespace to the requests that depend on the same things beside their tokens.

    Args:
        space: The engine's namespace.
        dimensions: `(dimension, value)` for each thing that the engine's own block hash does not cover, or not wholly.

    Raises:
        UnsupportedError: A dimension is unknown here: two different KVs could get one name.
    """
    unknown = sorted({name for name, _ in dimensions} - DIMENSIONS)
    if unknown:
        raise UnsupportedError(
            f"the KV of this request depends on {', '.join(unknown)}, which no key covers; known are "
            f"{', '.join(sorted(DIMENSIONS))}: it is neither kept nor looked up",
            flag="reuse",
        )
    if not dimensions:
        return space
    return namespace({f"{index} {name}": value for index, (name, value) in enumerate(dimensions)}, space.hex())


def block_keys(space: bytes, hashes: Iterable[bytes]) -> list[bytes]:
    """Make the keys of blocks from an engine's hashes of them.

    Args:
        space: The request's namespace.
        hashes: For each block the engine's hash of its tokens and all tokens before it.
    """
    start = hashlib.blake2b(space, digest_size=KEY_BYTES)
    keys = []
    for found in hashes:
        state = start.copy()
        state.update(found)
        keys.append(state.digest())
    return keys
