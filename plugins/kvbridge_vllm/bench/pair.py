"""`Pair`: the prefill and the decode engine of one contender, and the two legs of a request."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbridge_vllm.launch import Engine, EngineSpec
from kvbridge_vllm.launch.client import stream
from kvbridge_vllm.launch.process import free_port

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge_vllm.bench.contenders import Contender

PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What a router sends with the prefill leg."""

LEG = 180.0
"""Seconds that one leg may take."""


class Pair:
    """Two engines, one core each where there are two.

    Args:
        contender: The connector.
        model: Folder of the checkpoint.
        logs: Folder for the engines' logs.
        dtype: Of weights and KV.
        longest: Longest prompt and answer, in tokens.
        cache_gib: Size of each engine's KV cache.
    """

    def __init__(
        self, contender: Contender, model: Path, logs: Path, *, dtype: str, longest: int, cache_gib: int
    ) -> None:
        self.contender = contender
        self._engines: list[Engine] = []
        cores = sorted(os.sched_getaffinity(0))
        for index, (name, role) in enumerate((("prefill", "kv_producer"), ("decode", "kv_consumer"))):
            # What a decode engine has computed or loaded it must load again for the next request.
            caching = "--enable-prefix-caching" if name == "prefill" else "--no-enable-prefix-caching"
            spec = EngineSpec(
                f"{contender.name.replace(':', '-')}-{name}",
                model,
                kv_transfer_config=contender.config(role),
                max_model_len=longest,
                dtype=dtype,
                cpus=str(cores[index % len(cores)]),
                kv_cache_gib=cache_gib,
                extra_args=(caching,),
                env={contender.port_variable: str(free_port())} if contender.port_variable else {},
            )
            self._engines.append(Engine(spec, logs))

    @property
    def prefill(self) -> Engine:
        """The engine that computes prompts, and keeps their KV."""
        return self._engines[0]

    @property
    def decode(self) -> Engine:
        """The engine that takes KV over, and keeps none."""
        return self._engines[1]

    def wait_ready(self, progress: Callable[[str], None]) -> None:
        """Wait until both engines serve."""
        for engine in self._engines:
            engine.wait_ready(progress=progress)

    def stop(self) -> None:
        """Stop the processes of both engines until `go_on`."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for engine in self._engines:
            for pid in engine.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def cpu_seconds(self) -> float:
        """Seconds of processor time that both engines have used."""
        ticks = 0
        for engine in self._engines:
            for pid in engine.processes():
                with contextlib.suppress(OSError):
                    fields = (
                        Path(f"/proc/{pid}/stat")
                        .read_text(encoding="ascii", errors="replace")
                        .rpartition(")")[2]
                        .split()
                    )
                    ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def compute(self, prompt: list[int]) -> Any:
        """Run the prefill leg; return what the decode leg is to be told."""
        answer = self.prefill.complete(prompt, max_tokens=1, timeout=LEG, kv_transfer_params=PREFILL)
        return answer.get("kv_transfer_params")

    def answer(self, engine: Engine, prompt: list[int], tokens: int, params: Any = None) -> tuple[list[float], str]:
        """Stream an answer; return the seconds at which its tokens came, and what they are."""
        body = {
            "model": engine.spec.model.name,
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        if params is not None:
            body["kv_transfer_params"] = params
        start = time.perf_counter()
        times, text = [], ""
        for event in stream(f"{engine.url}/v1/completions", body, LEG):
            piece = event["choices"][0]["text"] if event["choices"] else ""
            if piece:
                times.append(time.perf_counter() - start)
                text += piece
        return times, text

    def close(self) -> None:
        """Stop the engines for good."""
        self.go_on()
        for engine in self._engines:
            engine.stop()
