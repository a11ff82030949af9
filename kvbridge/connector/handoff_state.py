"""What the scheduler half of a hand-over knows of its engine, and of each decode request."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvbridge.connector.plan import RemoteKey

FEWEST = 2
"""Fewer tokens than this are never fetched: the last one is computed in any case."""


class State(enum.Enum):
    """Where a decode request stands."""

    CLAIMING = "claiming"
    CLAIMED = "claimed"
    LOADING = "loading"
    OVER = "over"


@dataclass
class Wanted:
    """A decode request."""

    state: State
    tokens: int = 0
    key: RemoteKey | None = None
    claim: int = -1
    deadline: float = 0.0
    granted: int = 0


@dataclass(frozen=True)
class HandoffSettings:
    """What the scheduler half has to know of its engine.

    Attributes:
        engine_id: The engine's id, for the response.
        block_size: Tokens of a block.
        ranks: Number of workers.
        produces: Whether this engine prefills for others.
        consumes: Whether it decodes what others prefilled.
        claim_timeout: Seconds that the prefill engine may take to answer.
        min_tokens: Fewer missing tokens than this are computed rather than fetched.
        pushes: Whether values are pushed to the decode engine that a request's id names.
    """

    engine_id: str
    block_size: int
    ranks: int
    produces: bool
    consumes: bool
    claim_timeout: float
    min_tokens: int = FEWEST
    pushes: bool = False
