"""What the tests of reuse on real engines share."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kvbridge_vllm.launch import client
from kvbridge_vllm.launch.process import ServerProcess, child_environment, free_port
from tests.plugins.engines import ENGINE_ARGS, counter, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvbridge_vllm.launch import Engine
    from tests.plugins.kv_events import Events

BLOCK_BYTES = 4 * 16384
DETAILS = (*ENGINE_ARGS, "--enable-prompt-tokens-details")


def config(**extra: Any) -> dict[str, Any]:
    return {"kv_connector": "KVBridgeConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def forget(engine: Engine, *, kept: bool = False) -> None:
    """Empty an engine's own cache; with `kept` what the connector keeps as well."""
    path = "/reset_prefix_cache" + ("?reset_external=true" if kept else "")
    assert eventually(lambda: engine.post(path, {}) == (200, {"success": True}))


def ask(engine: Engine, tokens: list[int], max_tokens: int = 8, **fields: Any) -> tuple[list[int], int]:
    """Return the answer and how many tokens of the prompt were not computed."""
    answer = engine.complete(tokens, max_tokens=max_tokens, return_token_ids=True, **fields)
    details = answer["usage"].get("prompt_tokens_details") or {}
    return list(answer["choices"][0]["token_ids"]), details.get("cached_tokens") or 0


@contextmanager
def kv_aware_router(
    engines: tuple[Engine, Engine], heard: tuple[Events, Events], folder: Path
) -> Iterator[ServerProcess]:
    """The production router, which sends a prompt to the engine that said it has it."""
    port = free_port()
    command = [sys.executable, "-m", "vllm_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--prometheus-port", str(free_port()), "--prometheus-host", "127.0.0.1"]
    command += ["--worker-startup-check-interval", "1", "--policy", "kv_aware", "--kv-event-block-size", "32"]
    command += ["--kv-event-model", engines[0].spec.model.name, "--worker-urls", *[engine.url for engine in engines]]
    for engine, events in zip(engines, heard, strict=True):
        command += ["--kv-event-source", f"{engine.url}={events.endpoint}"]
    router = ServerProcess("kv-aware", command, port=port, env=child_environment({}), log_dir=folder)
    try:
        router.wait_ready(120)
        time.sleep(2)  # it is ready before it hears events, and what it has not heard it does not know
        yield router
    finally:
        router.stop()


def router_answer(router: ServerProcess, model: str, tokens: list[int]) -> str:
    # Without return_token_ids: the router gives a request that asks for them to any engine.
    body = {"model": model, "prompt": tokens, "max_tokens": 8, "temperature": 0}
    status, answer = client.request("POST", f"{router.url}/v1/completions", body, 60)
    assert status == 200, answer
    return str(answer["choices"][0]["text"])


def settled(engine: Engine) -> bool:
    """Whether nothing is under way: no slot is pinned or being filled."""
    return counter(engine, "reuse_pins") == 0 and counter(engine, "reuse_used_slots") == counter(
        engine, "reuse_kept_blocks"
    )
