"""What can be checked of kvbridge on a machine with a GPU, in a few minutes: run it on the day one is at hand.

It prints one JSON object: the machine, what is installed, which backends work, their conformance, the speed of pages
between two processes beside a plain copy on the device, and two vLLM engines that hand KV over on the GPU. It ends
within `--minutes`: what did not fit is said. What is known is in FILE after each part. Safe to run twice.

    python scripts/gpu_check.py [--backends nixl ...] [--out FILE] [--minutes 6] [--conformance PREFIX ...]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kvbridge.abc import Key
from kvbridge.conformance.node import Node
from kvbridge.conformance.peers import Host, RemoteNode
from kvbridge.conformance.values import Geometry, PagesValue
from kvbridge.errors import KVBridgeError
from kvbridge.layers.packing import SLICE
from kvbridge.memory import Pages, Region
from kvbridge.memory.cuda import device_slices

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGES = ("torch", "numpy", "pyzmq", "msgspec", "nixl-cu12", "nixl-cu13", "mooncake-transfer-engine", "vllm")
PAGE = 64 << 10
SIZES = (1, 64, 1024, 4096)
ROUNDS = 5

QUICK = ["backend", "pipe/0", "buffer/0", "buffer/1", "fault/20", "fault/21"]
"""What is run of the suite unless something else is asked for."""

SPARE = 10
"""Seconds for the end of the last part."""


def machine() -> dict[str, Any]:
    """Describe the machine."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {"python": platform.python_version(), "gpus": gpus, "cuda": torch.version.cuda, "versions": versions}


def conformance(backend: str, prefixes: list[str], seconds: float) -> dict[str, Any]:
    """Run the suite; return what became of each requirement that did not simply pass."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        command = [sys.executable, "-m", "kvbridge.cli.main", "conformance", backend, *prefixes, "--json", str(out)]
        started = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        if not out.exists():
            return {"exit_code": done.returncode, "said": (done.stdout + done.stderr)[-2000:]}
        report = json.loads(out.read_text())
    others = {r["id"]: f"{r['outcome']}: {r.get('reason', '')}" for r in report["results"] if r["outcome"] != "passed"}
    return {
        "exit_code": done.returncode,
        "seconds": round(time.monotonic() - started, 1),
        "passed": sum(r["outcome"] == "passed" for r in report["results"]),
        "others": others,
        "capabilities": report["capabilities"],
    }


def plain_copy(nbytes: int) -> float:
    """Return the seconds of a copy of so many bytes on the device."""
    source = torch.zeros(nbytes, dtype=torch.uint8, device="cuda:0")
    target = torch.empty_like(source)
    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        started = time.monotonic()
        target.copy_(source)
        torch.cuda.synchronize()
        times.append(time.monotonic() - started)
    return statistics.median(times)


def speed(backend: str, device: str) -> list[dict[str, Any]]:
    """Hand pages over between two processes."""
    host = Host(tempfile.mkdtemp(prefix="kvbridge-"))
    producer = Node(backend, {}, name="producer")
    try:
        consumer = RemoteNode(host, backend, {}, {"name": "consumer"})
        geometry = Geometry((PAGE,), num_blocks=max(SIZES), device=device)
        rows = []
        for blocks in SIZES:
            value = PagesValue(seed=blocks, ids=tuple(range(blocks)), geometry=geometry)
            times = []
            for turn in range(ROUNDS):
                name = f"{device}.{blocks}.{turn}"
                consumer.begin("s", "drop_select", Key(name, *producer.where()), value, timeout=30)
                payload = producer.source(value)
                started = time.monotonic()
                inserted = producer.buffer.insert(Key(name), payload)
                inserted.wait(30)
                times.append(time.monotonic() - started)
                consumer.end("s")  # every byte is checked
            seconds = statistics.median(times[1:])
            nbytes = blocks * PAGE
            rows.append({"device": device, "bytes": nbytes, "seconds": seconds, "gb_per_s": nbytes / seconds / 1e9})
            if device != "cpu":
                rows[-1]["plain_copy_gb_per_s"] = nbytes / plain_copy(nbytes) / 1e9
        return rows
    finally:
        producer.close()
        host.end()


def packing(device: str) -> dict[str, Any]:
    """Gather pages of the GPU into packed host memory and scatter them back elsewhere, as pushing does."""
    blocks = 2 * SIZES[-1]
    memory = torch.randint(0, 256, (blocks, PAGE), dtype=torch.uint8, device=device)
    region = Region(memory.data_ptr(), PAGE, PAGE, blocks, device=device)
    ids = torch.randperm(blocks)
    source, target = ids[: blocks // 2].numpy(), ids[blocks // 2 :].numpy()
    packed = np.empty(len(source) * PAGE, dtype=np.uint8)
    torch.cuda.synchronize()
    started = time.monotonic()
    for part in device_slices(Pages.of([region], source), SLICE):
        part.gather(packed)
    gathered = time.monotonic()
    for part in device_slices(Pages.of([region], target), SLICE):
        part.scatter(packed)
    scattered = time.monotonic()
    moved = memory.cpu()
    return {
        "gathered_right": bool((packed.reshape(-1, PAGE) == moved[source].numpy()).all()),
        "scattered_right": bool((moved[source] == moved[target]).all()),
        "gather_gb_per_s": packed.nbytes / (gathered - started) / 1e9,
        "scatter_gb_per_s": packed.nbytes / (scattered - gathered) / 1e9,
    }


def hand_over(backend: str, seconds: float) -> dict[str, Any]:
    """Let two engines and a router answer three questions, beside an engine that does so alone."""
    command = [sys.executable, str(Path(__file__).parent / "demo.py"), "--backend", backend]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    took = round(time.monotonic() - started, 1)
    return {"exit_code": done.returncode, "seconds": took, "said": (done.stdout + done.stderr)[-3000:]}


def attempt(call: Any, *arguments: Any) -> Any:
    """Make a part of the check; a failure is a finding, and the other parts go on."""
    try:
        return call(*arguments)
    except (KVBridgeError, RuntimeError, OSError, subprocess.SubprocessError, ValueError):
        return {"failed": traceback.format_exc()[-3000:]}
    except Exception:
        return {"failed": traceback.format_exc()[-3000:]}


def parts(backends: list[str], prefixes: list[str]) -> Iterator[tuple[str, float, Any]]:
    """Name each part, the seconds that it takes at least, and what it calls with the seconds that are left."""
    yield "packing cuda:0", 5, lambda _: packing("cuda:0")
    for backend in backends:
        for device in ("cuda:0", "cpu"):
            yield f"speed {backend} {device}", 20, lambda _, b=backend, d=device: speed(b, d)
    for backend in backends:
        yield f"conformance {backend}", 30, lambda left, b=backend: conformance(b, prefixes, min(left, 90))
    for backend in backends:
        yield f"hand-over {backend}", 90, lambda left, b=backend: hand_over(b, left)


def main() -> None:
    """Run all parts, as far as the time goes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backends", nargs="*", default=["nixl", "nccl", "mooncake", "cpu"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--conformance", nargs="*", default=QUICK)
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes - SPARE
    found: dict[str, Any] = {"machine": machine()}
    backends = [sys.executable, "-m", "kvbridge.cli.main", "backends", "--json"]
    found["backends"] = json.loads(subprocess.run(backends, capture_output=True, text=True, check=False).stdout or "[]")
    for name, least, call in parts(arguments.backends, arguments.conformance):
        left = end - time.monotonic()
        found[name] = attempt(call, left) if left >= least else f"left out: {left:.0f} s were left"
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(found, indent=2))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
