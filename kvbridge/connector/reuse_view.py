"""An engine, its requests and its steps, as the scheduler half of reuse sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True)
class ReuseSettings:
    """What the scheduler half has to know of its engine.

    Attributes:
        block_size: Tokens of a block.
        ranks: Number of workers.
        facts: What gives the bytes of a block their meaning, by name.
        decoded: Whether blocks of generated tokens are kept, beside those of prompts.
        min_tokens: Fewer tokens than this are computed rather than loaded.
        waits: Whether the engine finds by itself, in its own cache, what another request has loaded.
    """

    block_size: int
    ranks: int
    facts: Mapping[str, str]
    decoded: bool = True
    min_tokens: int = 1
    waits: bool = True


@dataclass(frozen=True)
class ReusableRequest:
    """What the scheduler half needs to know of a request. Everything is as it is now, and changes as it goes on.

    Attributes:
        id: The engine's own id of the request.
        num_tokens: Tokens of the prompt and of what was generated.
        num_prompt_tokens: Tokens of the prompt.
        hashes: For each full block the engine's hash of its tokens and all before it.
        origin: The engine's own object, for an observer.
        dimensions: Lists `(dimension, value)` of what its KV depends on that `hashes` does not cover.
    """

    id: str
    num_tokens: Callable[[], int]
    num_prompt_tokens: int
    hashes: Callable[[], Sequence[bytes]]
    dimensions: Callable[[], Sequence[tuple[str, str]]]
    origin: object = None


@dataclass(frozen=True)
class Progress:
    """What a step does with a request that runs.

    Attributes:
        request_id: The request.
        computed: Tokens whose KV it has. In the first step of a request that may include blocks that another request
            computes in this very step.
        blocks: Blocks that it got, after those it had; or all, if `anew`.
        first: Whether it did not run in the step before.
        anew: Whether its blocks are others than before.
    """

    request_id: str
    computed: int
    blocks: Sequence[int]
    first: bool = False
    anew: bool = False
