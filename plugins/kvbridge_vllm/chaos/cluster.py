"""`Cluster`: two prefill and two decode engines and a router, and what can be done to each of them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbridge_vllm.chaos.rules import OPTION, write_rules
from kvbridge_vllm.chaos.schedule import DECODE, ENGINES, PREFILL
from kvbridge_vllm.launch import Engine, EngineSpec, Router
from kvbridge_vllm.launch.process import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import ExitStack

    from kvbridge_vllm.chaos.rules import Rule

LEASE = 15.0
"""Seconds for which KV waits for its decode request: short, for what is stranded has to be given back in the run."""

OPTIONS = {"lease": LEASE, "claim_timeout": 3.0, "peer_timeout": 3.0, "transfer_timeout": 8.0}
"""Time-outs of kvbridge, shorter than by default: faults are to be longer and shorter than they are."""

ENGINE_ARGS = ("--max-num-batched-tokens", "128", "--enable-chunked-prefill", "--enable-prefix-caching")
"""Long prompts are prefilled in chunks, on every engine alike: another chunking rounds differently."""

READY_TIMEOUT = 900.0
"""Seconds that an engine may take to start, where four start at one time on a busy machine."""

SHOWN = 200
"""Characters of an error's text that are shown."""

_ID = re.compile(r"\b[\w-]*[0-9a-f]{12,}[\w-]*\b")

SHM = "/dev/shm/"  # noqa: S108 - looked at, not written to


class Cluster:
    """The engines by name, on ports that they keep.

    Args:
        backend: Which moves KV.
        options: The backend's.
        policy: vLLM's `kv_load_failure_policy`.
        model: Folder of the checkpoint.
        logs: Folder for logs and for the files with rules.
    """

    def __init__(self, backend: str, options: Mapping[str, Any], policy: str, model: Path, logs: Path) -> None:
        self._logs = logs
        self._cores = sorted(os.sched_getaffinity(0))
        self._specs = {
            name: self._spec(name, {"backend": backend, "options": dict(options)}, policy, model) for name in ENGINES
        }
        self._engines: dict[str, Engine] = {}
        self._stopped: set[str] = set()
        self.router: Router | None = None
        self.pids: dict[int, str] = {}
        self.shared: set[str] = set()

    def _spec(self, name: str, moves: Mapping[str, Any], policy: str, model: Path) -> EngineSpec:
        core = self._cores[ENGINES.index(name) % len(self._cores)]
        config = {
            "kv_connector": "ChaosConnector",
            "kv_connector_module_path": "kvbridge_vllm.chaos.connector",
            "kv_role": "kv_producer" if name in PREFILL else "kv_consumer",
            "kv_load_failure_policy": policy,
            "engine_id": name,
            "kv_connector_extra_config": {**moves, **OPTIONS, OPTION: {"rules": str(self._rules(name))}},
        }
        return EngineSpec(
            name, model, kv_transfer_config=config, cpus=str(core), extra_args=ENGINE_ARGS, port=free_port()
        )

    def _rules(self, name: str) -> Path:
        return self._logs / f"{name}.rules.json"

    # -- life ---------------------------------------------------------------------------------------------------

    def start_all(self, stack: ExitStack, tell: Callable[[str], None]) -> None:
        """Start everything and wait for it; `stack` stops it.

        Raises:
            StartError: One of them did not start.
        """
        stack.callback(self.close)
        for name in ENGINES:
            self.start(name)
        for name in ENGINES:
            self._engines[name].wait_ready(READY_TIMEOUT, progress=lambda what, name=name: tell(f"{name}: {what}"))  # type: ignore[misc]
        self.router = Router(
            [self.url(name) for name in PREFILL],
            [self.url(name) for name in DECODE],
            self._logs,
            extra_args=("--health-check-interval-secs", "5"),
        )
        self.router.wait_ready(READY_TIMEOUT)

    def start(self, name: str) -> None:
        """Start an engine on its port, and do not wait for it."""
        self._engines[name] = Engine(self._specs[name], self._logs)

    def kill(self, name: str) -> None:
        """End every process of an engine at once."""
        self._engines[name].kill()
        self._stopped.discard(name)

    def stop(self, name: str) -> None:
        """Stop every process of an engine until `go_on`."""
        self._stopped.add(name)
        self._signal(name, signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        """Let an engine go on."""
        self._signal(name, signal.SIGCONT)
        self._stopped.discard(name)

    def _signal(self, name: str, number: signal.Signals) -> None:
        for pid in self._engines[name].processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def rule(self, name: str, rules: Sequence[Rule]) -> None:
        """Let these rules, and no others, stand for what an engine hears."""
        write_rules(self._rules(name), rules)

    def close(self) -> None:
        """Stop everything, the router first: it answers to clients. Idempotent."""
        for name in list(self._stopped):
            self.go_on(name)
        self.look()
        with contextlib.ExitStack() as stack:  # whatever happens to one of them, the others are stopped
            for engine in self._engines.values():
                stack.callback(engine.stop)
            if self.router is not None:
                stack.callback(self.router.stop)

    # -- to look at -----------------------------------------------------------------------------------------------

    def url(self, name: str) -> str:
        """Return an engine's address, which it keeps."""
        return f"http://127.0.0.1:{self._specs[name].port}"

    def names_in(self, text: str) -> list[str]:
        """Return the engines that a text names, or whose address: a router writes both into a request's id."""
        return [name for name in ENGINES if name in self.named(text)]

    def named(self, text: str) -> str:
        """Put the names of engines in place of their addresses."""
        for name in ENGINES:
            port = self._specs[name].port
            text = text.replace(f"http://127.0.0.1:{port}", name).replace(f"127.0.0.1:{port}", name)
        return text

    def engine(self, name: str) -> Engine:
        """Return an engine."""
        return self._engines[name]

    def alive(self, name: str) -> bool:
        """Whether an engine's process is there."""
        return self._engines[name].alive()

    def logs_of(self, name: str) -> str:
        """Return what all lives of an engine have printed."""
        return "".join(path.read_text(errors="replace") for path in sorted(self._logs.glob(f"{name}*.log")))

    def look(self) -> None:
        """Take down which processes there are, and which files in /dev/shm they have."""
        servers = [*self._engines.items(), *([("router", self.router)] if self.router is not None else [])]
        for name, server in servers:
            for pid in server.processes():
                self.pids[pid] = f"{name} {_started(pid)}"
                self.shared |= _shared_files(pid)

    def left(self, seconds: float) -> list[str]:
        """Say which of the processes and files that were seen are still there; they get `seconds` to go."""
        deadline = time.monotonic() + seconds
        while True:
            found = [
                f"process {pid} of {name.partition(' ')[0]} is left"
                for pid, name in self.pids.items()
                if _started(pid) and name.endswith(f" {_started(pid)}")
            ]
            found += [f"the file {name} is left" for name in sorted(self.shared) if Path(name).exists()]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.2)


def _started(pid: int) -> str:
    """Return when a process began, which tells it from a later one of the same number; empty if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _shared_files(pid: int) -> set[str]:
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
            found.update([SHM + line.partition(SHM)[2]] if SHM in line else [])
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(str(link.readlink()))
    return {name for name in found if name.startswith(SHM) and not name.endswith(" (deleted)")}


def describe(answer: Any) -> str:
    """Return the text of an error's answer, without what is different each time."""
    if isinstance(answer, dict):
        error = answer.get("error", answer)
        answer = error.get("message", error) if isinstance(error, dict) else error
    return _ID.sub("ID", " ".join(str(answer).split()))
