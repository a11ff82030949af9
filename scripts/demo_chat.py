"""Asks a server the demo's questions and reads what was handed over."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvbridge_vllm.launch import client

if TYPE_CHECKING:
    from collections.abc import Callable

    from demo_questions import Question

    from kvbridge_vllm.launch import Engine

_MAX_TOKENS = 40
_ANSWER_TIMEOUT_S = 90.0
_METRICS_LAG_S = 2.0  # the engine publishes its counters after a step, so they may come a little after the answer
_METRICS_POLL_S = 0.1


@dataclass(frozen=True)
class Answer:
    """An answer and what it took.

    Attributes:
        text: the whole answer.
        prompt_tokens: length of the prompt.
        first_token_s: seconds from sending the request to the first text.
    """

    text: str
    prompt_tokens: int
    first_token_s: float


@dataclass(frozen=True)
class Handover:
    """What a decode engine loaded, from its counters: totals, or a difference of totals."""

    loads: float
    loaded_bytes: float
    seconds: float
    recomputed: float

    def since(self, earlier: Handover) -> Handover:
        """Returns the difference."""
        return Handover(
            self.loads - earlier.loads,
            self.loaded_bytes - earlier.loaded_bytes,
            self.seconds - earlier.seconds,
            self.recomputed - earlier.recomputed,
        )


def ask(url: str, model: str, question: Question, show: Callable[[str], None]) -> Answer:
    """Asks one question, greedily, and hands each piece of the answer to `show` as it arrives.

    Raises:
        EngineHTTPError: the server refused or failed.
        OSError: no connection, or no answer in time.
        http.client.HTTPException: the server broke off.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": question.messages(),
        "temperature": 0,
        "max_tokens": _MAX_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    pieces: list[str] = []
    first_token_s, prompt_tokens = 0.0, 0
    start = time.monotonic()
    for event in client.stream(f"{url}/v1/chat/completions", body, _ANSWER_TIMEOUT_S):
        if event.get("usage"):
            prompt_tokens = event["usage"]["prompt_tokens"]
        for choice in event["choices"]:
            if piece := choice["delta"].get("content"):
                first_token_s = first_token_s or time.monotonic() - start
                pieces.append(piece)
                show(piece)
            if choice.get("finish_reason") == "length":
                show(" …")
    return Answer("".join(pieces), prompt_tokens, first_token_s)


def totals(decode: Engine) -> Handover:
    """Reads the decode engine's counters."""
    metrics = decode.metrics()

    def total(name: str) -> float:
        return client.metric_sum(metrics, f"vllm:kvbridge_{name}")

    return Handover(
        total("loads_total"), total("loaded_bytes_total"), total("load_seconds_sum"), total("recomputed_total")
    )


def handover_since(decode: Engine, earlier: Handover) -> Handover:
    """Returns what was loaded since `earlier`, after waiting a little for the counters to move."""
    deadline = time.monotonic() + _METRICS_LAG_S
    while True:
        found = totals(decode).since(earlier)
        if (found.loads and found.loaded_bytes) or found.recomputed or time.monotonic() > deadline:
            return found
        time.sleep(_METRICS_POLL_S)
