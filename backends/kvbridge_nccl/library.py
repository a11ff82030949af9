"""torch.distributed: loaded when an instance is made, its groups and stores, its errors mapped once."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import socket
import sys
from datetime import timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, TypeVar

from kvbridge.errors import BackendUnavailableError, PeerLostError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

TAG = 0
"""Of all messages: they come in the order in which they were sent."""


def missing() -> str:
    """Say what is missing; nothing where all is there. Loads nothing."""
    if not sys.platform.startswith("linux"):
        return "it needs Linux"
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    return ""


def load() -> Any:
    """Return torch, with its distributed part.

    Raises:
        BackendUnavailableError: It cannot be loaded, or was built without gloo.
    """
    try:
        torch = importlib.import_module("torch")
        distributed = importlib.import_module("torch.distributed")
    except (ImportError, OSError) as error:
        raise BackendUnavailableError(f"torch cannot be loaded: {error}") from error
    if not distributed.is_available() or not distributed.is_gloo_available():
        raise BackendUnavailableError(f"torch {torch.__version__} was built without gloo")
    return torch


def called(what: str, call: Callable[[], T]) -> T:
    """Call the library; what it raises becomes kvbridge's.

    Raises:
        PeerLostError: The other side does not answer, or broke the connection.
        TransportError: Anything else.
    """
    try:
        return call()
    except (RuntimeError, ValueError, OSError) as error:
        why = " ".join(str(error).split())[:300]
        lost = any(
            word in why.lower() for word in ("timed out", "timeout", "closed", "reset", "refused", "broken pipe")
        )
        raise (PeerLostError if lost else TransportError)(f"{what} failed: {why}") from error


def listen(host: str) -> socket.socket:
    """Listen on a port that the system chooses.

    Raises:
        TransportError: It is no address of this machine's that peers can be told.
    """
    try:
        if ip_address(host).is_unspecified:
            raise TransportError(f"options.host is {host!r}: name the one address at which peers reach this machine")
        return socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, ValueError) as error:
        raise TransportError(f"options.host is {host!r}, expected an IP address of this machine: {error}") from error


def make_store(host: str, timeout: float) -> tuple[Any, int]:
    """Make a store that listens at an address alone: by itself the library listens on every one.

    Returns:
        The store, and its port. It ends with its last reference.
    """
    distributed = load().distributed
    with listen(host) as server:
        port = server.getsockname()[1]
        descriptor = server.detach()  # the store closes it
    store = called(
        "making a store",
        lambda: distributed.TCPStore(
            host,
            port,
            None,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=descriptor,
            timeout=timedelta(seconds=timeout),
        ),
    )
    return store, port


def join_store(host: str, port: int, timeout: float) -> Any:
    """Connect to a peer's store."""
    distributed = load().distributed
    return called(
        f"connecting to the store at {host}:{port}",
        lambda: distributed.TCPStore(
            host, port, None, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout)
        ),
    )


class Group:
    """Two processes. The producer is rank 0. Made by both at one time; that blocks.

    What is in host memory goes over gloo, what is in GPU memory over NCCL. What one side sends the other receives, in
    the same order. One thread uses it; `end` is for any.

    Args:
        store: Where the two find each other.
        name: Of the group: it comes before all keys.
        rank: 0 or 1.
        host: Address on which gloo listens.
        connect_timeout: Seconds for making it.
        stall_timeout: Seconds for which a transfer may not go on.

    Raises:
        PeerLostError: The other side did not come.
        TransportError: It cannot be made.
    """

    def __init__(
        self, store: Any, name: str, rank: int, host: str, connect_timeout: float, stall_timeout: float
    ) -> None:
        self._torch = load()
        distributed = self._torch.distributed
        self._store = distributed.PrefixStore(name, store)
        self._rank = rank
        self._timeout = timedelta(seconds=stall_timeout)
        options = distributed.ProcessGroupGloo._Options()  # noqa: SLF001 - there is no public name for it
        options._timeout = timedelta(seconds=connect_timeout)  # noqa: SLF001
        options._threads = 1  # noqa: SLF001
        options._devices = [  # noqa: SLF001
            called("opening a device", lambda: distributed.ProcessGroupGloo.create_device(hostname=host))
        ]
        self._gloo = called(
            "making a group with the peer",
            lambda: distributed.ProcessGroupGloo(distributed.PrefixStore("gloo", self._store), rank, 2, options),
        )
        self._nccl: Any = None

    def send(self, tensor: Any) -> Any:
        """Begin to send; returns what `wait` takes. The tensor stays as it is until then."""
        return called("sending", lambda: self._of(tensor).send([tensor], 1 - self._rank, TAG))

    def receive(self, tensor: Any) -> Any:
        """Begin to receive; returns what `wait` takes. Over gloo, what comes may be shorter."""
        return called("receiving", lambda: self._of(tensor).recv([tensor], 1 - self._rank, TAG))

    def wait(self, work: Any) -> None:
        """Wait until something was sent or received. A failure ends the group.

        Raises:
            PeerLostError: The peer is gone, or nothing came in time, or the group was ended.
        """
        called("a transfer", lambda: work.wait(self._timeout))

    def end(self) -> None:
        """Make every call that waits fail, here and at the peer. Idempotent.

        gloo has no call for it: but one that runs out of time ends all others of its group.
        """
        with contextlib.suppress(RuntimeError, ValueError):
            scrap = self._torch.empty(1, dtype=self._torch.uint8)
            self._gloo.recv([scrap], 1 - self._rank, TAG + 1).wait(timedelta(milliseconds=1))
        if self._nccl is not None:
            with contextlib.suppress(RuntimeError):
                self._nccl.abort()

    def _of(self, tensor: Any) -> Any:
        if not tensor.is_cuda:
            return self._gloo
        if self._nccl is None:
            distributed = self._torch.distributed
            options = distributed.ProcessGroupNCCL.Options()
            options._timeout = self._timeout  # noqa: SLF001
            self._nccl = called(
                "making an NCCL group with the peer",
                lambda: distributed.ProcessGroupNCCL(
                    distributed.PrefixStore("nccl", self._store), self._rank, 2, options
                ),
            )
        return self._nccl
