"""Asks an engine one question, and measures how long its first token takes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvbridge_vllm.launch import client

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbridge_vllm.launch import Engine

_MAX_TOKENS = 40
_ANSWER_TIMEOUT_S = 180.0  # a document of some thousand tokens on one core


@dataclass(frozen=True)
class Answer:
    """An answer and what it took.

    Attributes:
        text: the whole answer.
        prompt_tokens: length of the prompt.
        cached_tokens: how many of them were not computed.
        first_token_s: seconds from sending the request to the first text.
    """

    text: str
    prompt_tokens: int
    cached_tokens: int
    first_token_s: float


def ask(engine: Engine, messages: Sequence[dict[str, str]], show: Callable[[str], None]) -> Answer:
    """Asks greedily, and hands each piece of the answer to `show` as it arrives.

    Raises:
        EngineHTTPError: the server refused or failed.
        OSError: no connection, or no answer in time.
        http.client.HTTPException: the server broke off.
    """
    body: dict[str, Any] = {
        "model": engine.spec.model.name,
        "messages": list(messages),
        "temperature": 0,
        "max_tokens": _MAX_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    pieces: list[str] = []
    usage: dict[str, Any] = {}
    first_token_s = 0.0
    start = time.monotonic()
    for event in client.stream(f"{engine.url}/v1/chat/completions", body, _ANSWER_TIMEOUT_S):
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            if piece := choice["delta"].get("content"):
                first_token_s = first_token_s or time.monotonic() - start
                pieces.append(piece)
                show(piece)
            if choice.get("finish_reason") == "length":
                show(" …")
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Answer("".join(pieces), usage.get("prompt_tokens", 0), cached, first_token_s)
