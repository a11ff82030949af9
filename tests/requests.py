"""Requests and their transfer parameters, as a scheduler half gets them."""

from __future__ import annotations

import base64
from typing import Any

from kvbridge.abc.connector import RequestView
from kvbridge.connector.handoff_scheduler import HandoffScheduler
from kvbridge.connector.handoff_state import HandoffSettings

BLOCK = 16
DIGEST = b"digest of the prompt, 32 bytes.."


def settings(**changes: Any) -> HandoffSettings:
    fields: dict[str, Any] = {
        "engine_id": "decode",
        "block_size": BLOCK,
        "ranks": 1,
        "produces": True,
        "consumes": True,
        "claim_timeout": 5.0,
    }
    return HandoffSettings(**{**fields, **changes})


def scheduler(**changes: Any) -> HandoffScheduler:
    return HandoffScheduler(settings(**changes))


def handoff(tokens: int = 100, ranks: int = 1, **changes: Any) -> dict[str, Any]:
    """What a client sends for a prompt that was prefilled elsewhere."""
    inner = {
        "v": 1,
        "key": "key",
        "digest": base64.b64encode(DIGEST).decode(),
        "tokens": tokens,
        "block_size": BLOCK,
        "addresses": [f"tcp://127.0.0.1:{1000 + rank}" for rank in range(ranks)],
        "generations": [7 + rank for rank in range(ranks)],
        **changes,
    }
    return {"do_remote_prefill": True, "kvbridge": inner}


def view(name: str = "r", tokens: int = 100, params: Any = None, **changes: Any) -> RequestView:
    fields: dict[str, Any] = {"id": name, "num_tokens": tokens, "params": params, "digest": lambda: DIGEST}
    return RequestView(**{**fields, **changes})


def asked(name: str = "r", tokens: int = 100, ranks: int = 1, **changes: Any) -> RequestView:
    """A decode request with right parameters."""
    return view(name, tokens, handoff(tokens, ranks, **changes))
