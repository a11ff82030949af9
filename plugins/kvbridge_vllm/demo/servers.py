"""The demos' servers: how they are started, and the lines that show it while they start."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table

from kvbridge_vllm.launch import Engine, EngineSpec, Router

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from rich.console import Console

    from kvbridge_vllm.launch.process import ServerProcess

_START_TIMEOUT_S = 300.0  # two engines need 60 s on two idle cores
_POLL_S = 0.25
_GPU_SHARE = "0.3"  # two engines share one GPU, and each must leave the other its part


class Launcher:
    """Starts engines of one model, each on a core of its own where there are enough."""

    def __init__(self, model: Path, log_dir: Path, stack: ExitStack) -> None:
        """Keeps what the servers have in common; `stack` stops them."""
        self._model = model
        self._log_dir = log_dir
        self._stack = stack
        self._cores = sorted(os.sched_getaffinity(0))
        self._gpu = _has_gpu()

    def engine(
        self,
        name: str,
        core: int,
        kv_transfer_config: dict[str, Any] | None = None,
        *,
        max_model_len: int = 2048,
        extra_args: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> Engine:
        """Starts an engine and does not wait for it.

        Args:
            name: for its line and its log.
            core: on which it computes, where there is no GPU; counted again from 0 where there are fewer.
            kv_transfer_config: the KV connector's configuration; none by default.
            max_model_len: longest prompt plus answer, in tokens.
            extra_args: more arguments for the server.
            env: more environment variables.
        """
        spec = EngineSpec(
            name=name,
            model=self._model,
            kv_transfer_config=kv_transfer_config,
            max_model_len=max_model_len,
            dtype="auto" if self._gpu else "float32",
            cpus=None if self._gpu else str(self._cores[core % len(self._cores)]),
            extra_args=(*(("--gpu-memory-utilization", _GPU_SHARE) if self._gpu else ()), *extra_args),
            env=env or {},
        )
        return self._stack.enter_context(Engine(spec, self._log_dir))

    def router(self, prefill: Engine, decode: Engine) -> Router:
        """Starts a router between two engines and does not wait for it."""
        return self._stack.enter_context(Router([prefill.url], [decode.url], self._log_dir))


def kv_transfer_config(backend: str, role: str) -> dict[str, Any]:
    """Returns vLLM's KV connector configuration for a role, ``kv_producer`` or ``kv_consumer``."""
    return {
        "kv_connector": "KVBridgeConnector",
        "kv_role": role,
        "kv_connector_extra_config": {"backend": backend},
    }


def wait_ready(console: Console, servers: Sequence[ServerProcess]) -> None:
    """Waits until all are ready, with a line for each that shows what it does and for how long.

    Raises:
        StartError: one of them ended, or was not ready in time.
    """
    start = time.monotonic()
    lines = _Lines(servers, start)
    live = Live(lines, console=console, refresh_per_second=8) if console.is_terminal else nullcontext()
    with live:
        while waiting := [server for server in servers if server.name not in lines.ready]:
            for server in waiting:
                if server.healthy():
                    lines.ready[server.name] = time.monotonic() - start
                elif not server.alive() or time.monotonic() - start > _START_TIMEOUT_S:
                    server.wait_ready(0)  # raises with the reason
                if lines.update(server) and not console.is_terminal:  # a file gets a line per change
                    console.print(f"{time.monotonic() - start:5.1f} s  {server.name}: {lines.phases[server.name]}")
            time.sleep(_POLL_S)


class _Lines:
    """The renderable: one line per server."""

    def __init__(self, servers: Sequence[ServerProcess], start: float) -> None:
        self.phases = {server.name: "" for server in servers}
        self.ready: dict[str, float] = {}
        self._start = start
        self._spinner = Spinner("dots")

    def update(self, server: ServerProcess) -> bool:
        """Reads what the server does and tells whether that is new."""
        before = self.phases[server.name]
        self.phases[server.name] = "ready" if server.name in self.ready else server.phase()
        return self.phases[server.name] != before

    def __rich__(self) -> Table:
        grid = Table.grid(padding=(0, 2))
        for name, phase in self.phases.items():
            seconds = self.ready.get(name, time.monotonic() - self._start)
            mark = "[green]✓" if name in self.ready else self._spinner
            grid.add_row(mark, f"[bold]{name}", f"{seconds:5.1f} s", phase)
        return grid


def _has_gpu() -> bool:
    program = shutil.which("nvidia-smi")
    if program is None:
        return False
    listed = subprocess.run([program, "-L"], capture_output=True, timeout=30, check=False)  # noqa: S603 - no user input
    return listed.returncode == 0
