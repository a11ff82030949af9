"""Mooncake: loaded once a process, with the settings under which it is safe; what it lacks is said in a sentence."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
from importlib import metadata
from typing import TYPE_CHECKING, Any

from kvbridge.errors import BackendUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

PACKAGES = ("mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine", "mooncake-transfer-engine-cuda13")
"""Builds of the library: the same module, of which one is installed at a time."""

SYSTEM = {"libibverbs.so.1": "libibverbs1", "libnuma.so.1": "libnuma1", "libcurl.so.4": "libcurl4"}
"""What the library needs and does not bring, and the Debian packages that do."""

DEFAULTS = {
    "MC_LOG_LEVEL": "ERROR",
    "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": "65535",
    "MC_RPC_TIMEOUT_MS": "2000",
    "MC_RPC_CONNECT_TIMEOUT_MS": "1000",
}
"""Environment that is set unless it is there. With the library's own limit transfers beyond a thousand are refused."""

HARMFUL = "MC_LOG_DIR"
"""Setting with which making a second engine ends the process."""

_forked = False
_pid = os.getpid()


def package() -> str | None:
    """Return the distribution that is installed, if one is."""
    for name in PACKAGES:
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        return name
    return None


def version() -> str:
    """Return the library's version, as far as peers have to agree."""
    name = package()
    return "unknown" if name is None else ".".join(metadata.version(name).split(".")[:2])


def missing() -> str:
    """Say what keeps the library from being loaded; empty if nothing does."""
    name = package()
    if name is None or importlib.util.find_spec("mooncake") is None:
        return "the library is not installed: pip install 'kvbridge[mooncake]'"
    lacking = [debian for library, debian in SYSTEM.items() if not _loads(library)]
    if lacking:
        return (
            f"it lacks system libraries: install {', '.join(lacking)} (Debian, Ubuntu: apt install {' '.join(lacking)})"
        )
    if os.environ.get(HARMFUL):
        return f"the environment has {HARMFUL}, with which the library ends its process: unset it"
    if is_orphan():
        return "this process was forked from one that uses Mooncake: spawn it instead"
    return ""


def is_orphan() -> bool:
    """Whether this process is a forked child of one that had loaded the library: it would hang here."""
    return _forked and os.getpid() != _pid


def load(name: str, environment: Mapping[str, str]) -> Any:
    """Load a module of the library: `"engine"` or `"store"`.

    Args:
        name: The module.
        environment: Settings, which count if this is the first time.

    Raises:
        BackendUnavailableError: It cannot be loaded.
    """
    global _forked  # noqa: PLW0603 - a fact of the process
    why = missing()
    if why:
        raise BackendUnavailableError(why)
    for key, value in {**DEFAULTS, **environment}.items():
        os.environ.setdefault(key, value)
    try:
        found = importlib.import_module(f"mooncake.{name}")
    except ImportError as error:
        raise BackendUnavailableError(f"Mooncake cannot be loaded: {error}") from error
    _forked = True
    return found


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
