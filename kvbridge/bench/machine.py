"""What a benchmark says of the machine that it ran on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import numpy as np


def describe_machine() -> dict[str, Any]:
    """Name the processor, the cores that this process may use, and what copies."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {"processor": model, "cores": len(os.sched_getaffinity(0)), "numpy": np.__version__}
