"""Which process is meant, and whether it still lives: a process id alone may mean another one a moment later."""

from __future__ import annotations

import os
from pathlib import Path

DEAD = b"ZXx"
"""States of a process that runs no more."""


def process_start(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; 0 if there is none, or it runs no more."""
    try:
        # The name, in brackets, may hold anything; after it: state, then 18 more fields, then the start.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in DEAD else int(fields[19])


def this_process() -> tuple[int, int]:
    """Return this process's id and start."""
    return os.getpid(), process_start(os.getpid())


def lives(pid: int, start: int) -> bool:
    """Whether the process with this id and start still runs."""
    return start != 0 and process_start(pid) == start
