"""Starts, asks and stops a real vLLM OpenAI API server."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvbridge_vllm.launch import client
from kvbridge_vllm.launch.errors import EngineHTTPError, EngineStartError
from kvbridge_vllm.launch.process import ServerProcess, cache_folder, child_environment, free_port

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_OK = 200
# Lines of vLLM's log in the order in which they appear, and what they mean to somebody who waits.
_PHASES = (
    ("Resolved architecture", "starting the engine core"),
    ("Initializing a V1 LLM engine", "starting the workers"),
    ("Starting to load model", "loading the weights"),
    ("Loading weights took", "setting up the KV cache"),
    ("init engine", "opening the HTTP server"),
)


@dataclass(frozen=True)
class EngineSpec:
    """How to start an engine.

    Attributes:
        name: for the log file and messages.
        model: a folder with the checkpoint; its name is the model's name in requests.
        kv_transfer_config: the KV connector's configuration; none by default.
        block_size: tokens per KV block; on a CPU a multiple of 32.
        max_model_len: longest prompt plus answer, in tokens.
        dtype: of weights and KV cache.
        tensor_parallel_size: worker processes that share the model.
        cpus: the cores for each worker, ranks separated by ``|`` (vLLM's VLLM_CPU_OMP_THREADS_BIND); None
            leaves it to vLLM, which takes one rank per NUMA node, so more ranks on one node need it.
        kv_cache_gib: size of the KV cache on a CPU.
        extra_args: more arguments for the server.
        env: more environment variables, over the launcher's own.
        port: of the HTTP server; 0 for a free one.
    """

    name: str
    model: Path
    kv_transfer_config: Mapping[str, Any] | None = None
    block_size: int = 32
    max_model_len: int = 2048
    dtype: str = "float32"
    tensor_parallel_size: int = 1
    cpus: str | None = None
    kv_cache_gib: int = 1
    extra_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    port: int = 0

    def command(self, port: int) -> list[str]:
        """Returns the server's command line.

        The ``vllm`` script is not used: with the CPU wheel it does not find its own version.
        """
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(self.model), "--served-model-name", self.model.name]
        command += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--dtype", self.dtype]
        command += ["--block-size", str(self.block_size), "--max-model-len", str(self.max_model_len)]
        command += ["--tensor-parallel-size", str(self.tensor_parallel_size)]
        if self.kv_transfer_config is not None:
            command += ["--kv-transfer-config", json.dumps(self.kv_transfer_config)]
        return [*command, *self.extra_args]

    def environment(self) -> dict[str, str]:
        """Returns the server's environment."""
        own = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_HOST_IP": "127.0.0.1",  # else the workers talk over the first address of the machine
            "VLLM_CPU_KVCACHE_SPACE": str(self.kv_cache_gib),
            # kept between engines: torch compiles a few small kernels, for up to a minute where nothing is cached
            "TORCHINDUCTOR_CACHE_DIR": str(cache_folder() / "torchinductor"),
            "UCX_MODULES": "^ib",  # UCX's InfiniBand module may hang where the devices cannot be opened
        }
        if self.cpus is not None:
            own["VLLM_CPU_OMP_THREADS_BIND"] = self.cpus
        return child_environment({**own, **self.env})


class Engine(ServerProcess):
    """A running vLLM server; see `ServerProcess` for its life.

    Attributes:
        spec: what it was started from.
    """

    start_error = EngineStartError

    def __init__(self, spec: EngineSpec, log_dir: Path) -> None:
        """Starts the server on a free loopback port and does not wait for it.

        Args:
            spec: how to start it.
            log_dir: for ``NAME.log``.

        Raises:
            EngineStartError: the process could not be started.
        """
        self.spec = spec
        port = spec.port or free_port()
        super().__init__(spec.name, spec.command(port), port=port, env=spec.environment(), log_dir=log_dir)

    def phase(self) -> str:
        """Says in a few words what the starting server does, read from its log."""
        log = self.log_text()
        return next((words for mark, words in reversed(_PHASES) if mark in log), "importing vLLM")

    def post(self, path: str, body: Mapping[str, Any], timeout: float = 120) -> tuple[int, Any]:
        """Posts JSON to a path of the server.

        Returns:
            The status, and the body: parsed if it is JSON, else as text.

        Raises:
            OSError: no connection, or no answer within `timeout` seconds.
            http.client.HTTPException: the server broke off its answer.
        """
        return client.request("POST", self.url + path, body, timeout)

    def complete(
        self,
        prompt: str | list[int] | list[list[int]],
        *,
        max_tokens: int = 8,
        timeout: float = 120,
        **fields: Any,
    ) -> dict[str, Any]:
        """Asks ``/v1/completions`` for a greedy completion.

        Args:
            prompt: a text, token ids, or a batch of lists of token ids.
            max_tokens: length of the answer.
            timeout: seconds.
            **fields: more fields of the request, over the ones set here.

        Returns:
            The parsed answer.

        Raises:
            EngineHTTPError: the status was not 200.
            OSError: no connection, or no answer in time.
        """
        body = {"model": self.spec.model.name, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        status, answer = self.post("/v1/completions", {**body, **fields}, timeout)
        if status != _OK:
            raise EngineHTTPError(status, answer)
        return dict(answer)

    def metrics(self) -> dict[str, float]:
        """Reads ``/metrics``: the series as written (``name{labels}``) to its value.

        Raises:
            EngineHTTPError: the status was not 200.
            OSError: no connection, or no answer in time.
        """
        status, text = client.request("GET", f"{self.url}/metrics")
        if status != _OK:
            raise EngineHTTPError(status, text)
        return client.parse_metrics(str(text))
