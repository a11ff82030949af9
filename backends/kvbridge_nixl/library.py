"""The NIXL library: loaded once a process, with the settings under which it is safe, its errors mapped once."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import logging
import os
import sys
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kvbridge.errors import BackendUnavailableError, KVBridgeError, PeerLostError, TransportError
from kvbridge.machine import has_rdma

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge_nixl.options import NixlOptions

T = TypeVar("T")

PACKAGES = ("nixl_cu12", "nixl_cu13", "nixl_rocm")
"""Builds of the library: the same interface, each with another GPU runtime. All of them move host memory."""

DEFAULTS = {
    "NIXL_LOG_LEVEL": "ERROR",
    "UCX_LOG_LEVEL": "fatal",
    "UCX_LOG_FILE": "stderr",
    "UCX_RCACHE_MAX_UNRELEASED": "1024",
}
"""Environment that is set unless it is there: the library logs on standard output, and caches without a bound."""

NO_ATTACH = 3
"""Value of Yama's `ptrace_scope` under which nobody may reach into another process."""

_forked = False
_settings: dict[str, str] = {}
_agents: list[Any] = []
_apis: list[Any] = []
_current = threading.local()


def package() -> str | None:
    """Return the name of the build that is installed: the one for torch's GPU runtime first; None for none."""
    torch = sys.modules.get("torch")
    cuda = getattr(getattr(torch, "version", None), "cuda", None) or ""
    wanted = f"nixl_cu{cuda.partition('.')[0]}"
    found = [name for name in PACKAGES if importlib.util.find_spec(name) is not None]
    return wanted if wanted in found else found[0] if found else None


def is_orphan() -> bool:
    """Whether this process was forked while agents lived: UCX then waits for a thread that is its parent's."""
    return _forked


def use_gpu(number: int) -> None:
    """Make a GPU current on this thread: UCX copies from and to GPU memory in the context that is current."""
    torch = sys.modules.get("torch")  # GPU memory is torch's
    if torch is not None and getattr(_current, "gpu", None) != number:
        torch.cuda.set_device(number)
        _current.gpu = number


def has_cma() -> bool:
    """Whether processes may reach into each other's memory here: containers and Yama can forbid it."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if scope.is_file() and int(scope.read_text(encoding="ascii")) >= NO_ATTACH:
        return False
    source, target = ctypes.create_string_buffer(1), ctypes.create_string_buffer(1)
    spans = [(ctypes.c_size_t * 2)(ctypes.addressof(one), 1) for one in (target, source)]
    read = getattr(ctypes.CDLL(None), "process_vm_readv", None)
    return read is not None and bool(read(os.getpid(), spans[0], 1, spans[1], 1, 0) == 1)


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
    return _import(name)


def _import(name: str) -> Any:
    raises = logging.raiseExceptions
    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output is the program's
            api = importlib.import_module(f"{name}._api")
    except ImportError as error:
        raise BackendUnavailableError(f"{name} cannot be loaded: {error}") from error
    finally:
        logging.raiseExceptions = raises  # the import turns it off for everybody
    for handler in logging.getLogger("nixl").handlers:
        if isinstance(handler, logging.StreamHandler) and handler.stream is sys.stdout:
            handler.setStream(sys.stderr)  # somebody else imported it
    if api not in _apis:
        _apis.append(api)
    return api


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


def forget_agent(agent: Any) -> Callable[[], bool]:
    """Destroy an agent: what it still moves ends with it. Every handle made of it has to be given back before.

    Returns:
        A function that says whether it is really gone: nothing moves after that, and anything may before.
    """
    with contextlib.suppress(ValueError):
        _agents.remove(agent)
    inner = weakref.ref(agent.agent)
    agent.agent = None
    return lambda: inner() is None


def give_back(handle: Any) -> None:
    """Give a handle of the library's back. A transfer that is under way does not end by it."""
    with contextlib.suppress(Exception):  # it may be gone with its peer: there is nothing left to give back
        handle.release()
    handle._released = True  # noqa: SLF001 - its finalizer is not to try again
    handle._agent = None  # noqa: SLF001 - it would keep its agent from being destroyed


def _leave_to_parent() -> None:
    """Keep a forked child from destroying what is its parent's when it ends: that would break it there too.

    Its locks may be held by threads that a child does not have, so that nothing of it may be called either.
    """
    global _forked  # noqa: PLW0603 - a fact of the process
    _forked = _forked or bool(_agents)
    for agent in _agents:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(agent.agent))
    _agents.clear()
    for api in _apis:
        for kind in (api.nixl_xfer_handle, api.nixl_prepped_dlist_handle):
            kind.__del__ = lambda _: None


os.register_at_fork(after_in_child=_leave_to_parent)


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
