"""A backend that does as it is told, and its rig. Copied into a site folder; it is the `cpu` backend but for that.

`acts` says what goes wrong where: `{"card@backend/07": "abort"}` ends the process when that requirement asks for a
card, `"init"` alone is every construction anywhere, `"hold@peer"` a step in a peer's process.
"""

from __future__ import annotations

import _thread
import atexit
import os
import re
import signal
import sys
import threading
import time
import unittest
from typing import Any, ClassVar, NoReturn

import msgspec
import pytest

from kvbridge.capabilities import Capabilities, Probe
from kvbridge.conformance.rig import Rig
from kvbridge.errors import BackendUnavailableError
from kvbridge_cpu import CpuBackend, CpuOptions


class OddOptions(CpuOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    capacity: int | str = "16MiB"
    acts: dict[str, str] = msgspec.field(default_factory=dict)
    claims: dict[str, Any] = msgspec.field(default_factory=dict)
    extra: bool = False


class Extended(Capabilities, frozen=True, kw_only=True):
    telepathy: bool = True


def zero() -> float:
    return 1 / 0


def interrupt() -> NoReturn:
    raise KeyboardInterrupt


def skip_as_unittest() -> NoReturn:
    raise unittest.SkipTest("not today")


def unavailable() -> NoReturn:
    raise BackendUnavailableError("the metadata server is not installed")


ACTS = {
    "abort": os.abort,
    "segv": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "leave": lambda: os._exit(0),
    "hang": lambda: time.sleep(1e6),
    "hold": lambda: re.match(r"(a+)+$", "a" * 40 + "b"),
    "zero": zero,
    "exit": lambda: sys.exit(0),
    "interrupt": interrupt,
    "interrupt-main": _thread.interrupt_main,
    "unavailable": unavailable,
    "skip": lambda: pytest.skip("not today"),
    "unittest-skip": skip_as_unittest,
    "pytest-exit": lambda: pytest.exit("enough", returncode=0),
    "abort-at-exit": lambda: atexit.register(os.abort),
    "hang-at-exit": lambda: atexit.register(time.sleep, 1e6),
}


def act(options: OddOptions, method: str) -> None:
    """Do what is asked for in this method, here."""
    requirement = threading.current_thread().name.removeprefix("kvbridge-conformance-")
    here = "peer" if sys.argv[0].endswith("peers.py") else requirement
    for place, what in options.acts.items():
        wanted, _, where = place.partition("@")
        if wanted == method and here.startswith(where):
            ACTS[what]()


class OddBackend(CpuBackend):
    name = "odd"
    Options = OddOptions
    options: OddOptions

    def __init__(self, options: OddOptions) -> None:
        act(options, "init")
        super().__init__(options)

    @classmethod
    def probe(cls, options: OddOptions) -> Probe:
        act(options, "probe")
        if "no" in options.acts:
            return Probe(ok=False, reason=options.acts["no"])
        return super().probe(options)

    @property
    def capabilities(self) -> Capabilities:
        found = msgspec.structs.replace(super().capabilities, **self.options.claims)
        return Extended(**msgspec.structs.asdict(found)) if self.options.extra else found

    def card(self) -> bytes:
        act(self.options, "card")
        return super().card()

    def accepts(self, card: bytes) -> str | None:
        act(self.options, "accepts")
        return super().accepts(card)

    def hold(self, payload: Any) -> Any:
        act(self.options, "hold")
        return super().hold(payload)

    def close(self) -> None:
        act(self.options, "close")
        super().close()


class OddRig(Rig):
    """Does what the variable says."""

    environment: ClassVar[dict[str, str]] = {"ODD_RIG_WAS_HERE": "1"}

    def start(self) -> None:
        if os.environ.get("ODD_RIG") in ACTS:
            ACTS[os.environ["ODD_RIG"]]()

    def stop(self) -> None:
        if os.environ.get("ODD_RIG") == "stop":
            raise ValueError("no such server")

    def options(self) -> dict[str, Any]:
        if os.environ.get("ODD_RIG") == "options":
            return {"capacity": object()}
        return {"capacity": "8MiB"}
