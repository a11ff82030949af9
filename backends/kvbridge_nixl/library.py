"""The NIXL library: loaded once a process, with the settings under which it is safe, its errors mapped once."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kvbridge.errors import BackendUnavailableError, KVBridgeError, PeerLostError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge_nixl.options import NixlOptions

T = TypeVar("T")

PACKAGES = ("nixl_cu12", "nixl_cu13", "nixl_rocm")
"""Builds of the library: the same interface, each with another GPU runtime. All of them move host memory."""

DEFAULTS = {"NIXL_LOG_LEVEL": "ERROR", "UCX_LOG_LEVEL": "fatal", "UCX_RCACHE_MAX_UNRELEASED": "1024"}
"""Environment that is set unless it is there: the library logs on standard output, and caches without a bound."""

_settings: dict[str, str] = {}
_agents: list[Any] = []


def package() -> str | None:
    """Return the name of the build that is installed: the one for torch's GPU runtime first; None for none."""
    torch = sys.modules.get("torch")
    cuda = getattr(getattr(torch, "version", None), "cuda", None) or ""
    wanted = f"nixl_cu{cuda.partition('.')[0]}"
    found = [name for name in PACKAGES if importlib.util.find_spec(name) is not None]
    return wanted if wanted in found else found[0] if found else None


def has_rdma() -> bool:
    """Whether this machine has an RDMA device."""
    folder = Path("/sys/class/infiniband")
    return folder.is_dir() and any(folder.iterdir())


def load(options: NixlOptions) -> Any:
    """Import the library with its settings.

    Raises:
        BackendUnavailableError: It is not installed, cannot be loaded, or runs here with other settings.
    """
    name = package()
    if name is None:
        raise BackendUnavailableError("the library is not installed: pip install 'kvbridge[nixl]'")
    wanted = {"UCX_TLS": options.transports, "UCX_NET_DEVICES": options.net_devices}
    if _settings and _settings != wanted:
        raise BackendUnavailableError(
            f"this process runs NIXL with other settings ({_settings}) than asked for now ({wanted}): "
            "UCX takes them once a process"
        )
    if not _settings:
        _settings.update(wanted)
        os.environ.update({variable: value for variable, value in wanted.items() if value})
        for variable, value in DEFAULTS.items():
            os.environ.setdefault(variable, value)
        if not has_rdma():
            # Debian's RDMA libraries and the bundled ones crash each other when the process exits.
            os.environ.setdefault("UCX_MODULES", "^ib")
    raises = logging.raiseExceptions
    try:
        return importlib.import_module(f"{name}._api")
    except ImportError as error:
        raise BackendUnavailableError(f"{name} cannot be loaded: {error}") from error
    finally:
        logging.raiseExceptions = raises  # the import turns it off for everybody


def make_agent(api: Any, name: str, options: NixlOptions) -> Any:
    """Make an agent without the library's progress thread, which would spin on a core.

    Raises:
        BackendUnavailableError: The plugin cannot work here.
    """
    strict = api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
    config = api.nixl_agent_config(enable_prog_thread=False, backends=[], sync_mode=strict)
    try:
        agent = api.nixl_agent(name, config)
        agent.create_backend(options.plugin, dict(options.parameters))
    except Exception as error:  # the library's own, each a class of its own
        raise BackendUnavailableError(
            f"NIXL's plugin {options.plugin!r} cannot work here ({type(error).__name__}: {error}); transports: "
            f"{os.environ.get('UCX_TLS', 'any')}, devices: {os.environ.get('UCX_NET_DEVICES', 'any')}"
        ) from error
    _agents.append(agent)
    return agent


def forget_agent(agent: Any) -> None:
    """Let go of an agent that is being closed."""
    with contextlib.suppress(ValueError):
        _agents.remove(agent)


def _leak_in_child() -> None:
    """Keep a forked child from destroying agents when it ends: that would break its parent's."""
    for agent in _agents:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(agent.agent))


os.register_at_fork(after_in_child=_leak_in_child)


def call(what: str, function: Callable[[], T]) -> T:
    """Call into the library.

    Raises:
        PeerLostError: The peer's process is gone.
        TransportError: Anything else, with the library's own word.
    """
    try:
        return function()
    except KVBridgeError:
        raise
    except Exception as error:  # the library's own, each a class of its own
        kind = type(error).__name__
        if kind == "nixlRemoteDisconnectError":
            raise PeerLostError(f"{what}: the peer is gone (NIXL: {kind})") from error
        raise TransportError(f"{what}: NIXL reported {kind}: {error}") from error
