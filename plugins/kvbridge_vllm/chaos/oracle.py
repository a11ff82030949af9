"""The right answers: from an engine without connector, before anything happens."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kvbridge_vllm.chaos.clients import ANSWER
from kvbridge_vllm.chaos.cluster import ENGINE_ARGS, READY_TIMEOUT
from kvbridge_vllm.launch import Engine, EngineSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

MARGIN = 0.02
"""Least distance in log-probability between the first and the second choice of each token of an answer. A prompt
whose answer is closer is replaced: engines that compute it in other chunks, or with others, round differently."""

ATTEMPTS = 20
"""Prompts of which one has an answer that is clear enough; about one in ten has not."""

AT_A_TIME = 4
"""Prompts that the engine computes at a time."""

Known = tuple[list[int], list[int]]
"""A prompt and the tokens that are the right answer."""


@contextmanager
def plain_engine(model: Path, logs: Path, tell: Callable[[str], None]) -> Iterator[Engine]:
    """Start an engine without connector, and stop it in the end.

    Raises:
        StartError: It did not start.
    """
    with Engine(EngineSpec("oracle", model, extra_args=ENGINE_ARGS), logs) as engine:
        engine.wait_ready(READY_TIMEOUT, progress=lambda what: tell(f"oracle: {what}"))
        yield engine


def right_answers(engine: Engine, wanted: Sequence[Callable[[int], list[int]]]) -> list[Known]:
    """Find a prompt with a clear answer for each who makes prompts by the number of the attempt.

    Args:
        engine: Has no connector, and otherwise the settings of the engines whose answers are judged.
        wanted: Makers of prompts.
    """
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return list(pool.map(lambda make: _clear(engine, make), wanted))


def _clear(engine: Engine, make: Callable[[int], list[int]]) -> Known:
    for attempt in range(ATTEMPTS):
        prompt = make(attempt)
        answer = engine.complete(prompt, max_tokens=ANSWER, logprobs=2, return_token_ids=True)
        choice = answer["choices"][0]
        if margin(choice) >= MARGIN:
            break
    return prompt, list(choice["token_ids"])


def margin(choice: dict[str, Any]) -> float:
    """Return the least distance between the first and the second choice of a token."""
    found = []
    for candidates in choice["logprobs"]["top_logprobs"]:
        first, second = sorted(candidates.values(), reverse=True)[:2]
        found.append(first - second)
    return float(min(found))
