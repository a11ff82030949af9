"""`Clients`: sends requests as routers and their clients do, and says what became of each."""

from __future__ import annotations

import time
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

from kvbridge_vllm.bench.pair import PREFILL
from kvbridge_vllm.chaos.cluster import SHOWN, describe
from kvbridge_vllm.chaos.outcomes import Outcome, judge
from kvbridge_vllm.launch import client

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvbridge_vllm.chaos.cluster import Cluster
    from kvbridge_vllm.chaos.outcomes import Result
    from kvbridge_vllm.chaos.schedule import Request

ANSWER = 8
"""Tokens of an answer."""

LONG_ANSWER = 160
"""Tokens of an answer that a client does not wait for."""

DEADLINE = 120.0
"""Seconds without an answer that count as a hang: many times the longest fault and every time-out of kvbridge."""

_OK = 200
_TOLD = ("error", "abort")


class _ToldError(Exception):
    """The client was told that there is no answer."""


class Clients:
    """Sends requests. Its methods may be called from several threads.

    Args:
        cluster: Whom it asks.
        model: Name of the model.
        clock: Seconds since the beginning.
    """

    def __init__(self, cluster: Cluster, model: str, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._model = model
        self._clock = clock

    def send(self, request: Request, prompt: list[int], expected: Sequence[int]) -> Outcome:
        """Send one request by its way and wait for what becomes of it."""
        if request.way == "router":
            engines: tuple[str, ...] = ()
            return self._tried(request, engines, lambda: self._routed(prompt, expected))
        if request.way == "leave":
            return self._tried(request, (), lambda: self._leave(prompt, expected, request.patience))
        if request.way == "strand":
            engines = (request.prefill,)
            return self._tried(request, engines, lambda: self._strand(prompt, request.prefill))
        seconds = (request.second,) if request.way == "again" else ()
        decodes = (request.decode, *seconds)
        engines = tuple(dict.fromkeys((request.prefill, *decodes)))
        return self._tried(request, engines, lambda: self._direct(prompt, expected, request.prefill, decodes))

    def probe(self, prompt: list[int], expected: Sequence[int], prefill: str, decode: str) -> Outcome:
        """Hand one prompt over between two engines."""
        started = self._clock()
        what = lambda: self._direct(prompt, expected, prefill, (decode,))  # noqa: E731 - as above
        result, detail, _ = self._caught(what)
        return Outcome(-1, "probe", started, self._clock(), result, detail, (prefill, decode))

    # -- ways -----------------------------------------------------------------------------------------------------

    def _routed(self, prompt: list[int], expected: Sequence[int]) -> tuple[Result, str, str]:
        answer = self._ask(self._router_url, prompt, DEADLINE)
        return *_judged(answer, expected), str(answer.get("id"))

    def _leave(self, prompt: list[int], expected: Sequence[int], patience: float) -> tuple[Result, str, str]:
        try:
            answer = self._ask(self._router_url, prompt, patience, max_tokens=LONG_ANSWER)
        except TimeoutError:
            return "left", "", ""
        return *_judged(answer, expected), str(answer.get("id"))

    def _strand(self, prompt: list[int], prefill: str) -> tuple[Result, str, str]:
        self._ask(self._cluster.url(prefill), prompt, DEADLINE, max_tokens=1, kv_transfer_params=PREFILL)
        return "stranded", "", ""

    def _direct(
        self, prompt: list[int], expected: Sequence[int], prefill: str, decodes: Sequence[str]
    ) -> tuple[Result, str, str]:
        first = self._ask(self._cluster.url(prefill), prompt, DEADLINE, max_tokens=1, kv_transfer_params=PREFILL)
        params = first.get("kv_transfer_params")
        found: tuple[Result, str] = ("right", "")
        for decode in decodes:
            answer = self._ask(self._cluster.url(decode), prompt, DEADLINE, kv_transfer_params=params)
            found = _judged(answer, expected)
            if found[0] != "right":
                break
        return *found, ""

    # -- inside ---------------------------------------------------------------------------------------------------

    @property
    def _router_url(self) -> str:
        return self._cluster.router.url if self._cluster.router is not None else ""

    def _ask(self, url: str, prompt: list[int], timeout: float, **fields: Any) -> Mapping[str, Any]:
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": ANSWER,
            "temperature": 0,
            "return_token_ids": True,
            **fields,
        }
        status, answer = client.request("POST", f"{url}/v1/completions", body, timeout)
        if status != _OK or not isinstance(answer, dict):
            who = "router" if url == self._router_url else self._cluster.named(url)
            raise _ToldError(f"{who}: HTTP {status}: {self._cluster.named(describe(answer))[:SHOWN]}")
        return answer

    def _tried(
        self, request: Request, engines: tuple[str, ...], send: Callable[[], tuple[Result, str, str]]
    ) -> Outcome:
        started = self._clock()
        result, detail, said = self._caught(send)
        named = engines or tuple(self._cluster.names_in(said + detail))
        return Outcome(request.number, request.way, started, self._clock(), result, detail, named)

    def _caught(self, send: Callable[[], tuple[Result, str, str]]) -> tuple[Result, str, str]:
        started = time.monotonic()
        try:
            return send()
        except _ToldError as error:
            return "error", str(error), ""
        except TimeoutError:
            return "hang", f"no answer after {time.monotonic() - started:.0f} s", ""
        except (OSError, HTTPException) as error:
            return "error", f"broken connection: {type(error).__name__}", ""


def _judged(answer: Mapping[str, Any], expected: Sequence[int]) -> tuple[Result, str]:
    choice = (answer.get("choices") or [{}])[0]
    if choice.get("finish_reason") in _TOLD:
        return "error", f"HTTP 200, finish_reason {choice['finish_reason']!r}"
    return judge(choice.get("token_ids") or [], expected)
