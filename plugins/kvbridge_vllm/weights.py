"""A digest of a checkpoint's weights, by which engines know that they have the same. It needs no vLLM."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
"""Endings of files with weights."""

SAMPLES = 64
"""Places at which each file of weights is read."""

SAMPLE_BYTES = 4096
"""Bytes that are read there. Weights that were trained further differ nearly everywhere."""


def weights_digest(folder: Path) -> str:
    """Digest a checkpoint's weights by samples: a checkpoint of some gigabytes takes some ten milliseconds."""
    state = hashlib.blake2b(digest_size=16)
    for path in sorted(one for one in folder.iterdir() if one.suffix in WEIGHTS):
        for part in _samples(path):
            state.update(part)
    return state.hexdigest()


def _samples(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    yield f"{path.name}\0{size}\0".encode()
    with path.open("rb") as file:
        for index in range(SAMPLES):
            file.seek(max(0, (size - SAMPLE_BYTES) * index // (SAMPLES - 1)))
            yield file.read(SAMPLE_BYTES)
