"""Calls into a backend, whose own errors are mapped and whose bugs end one transfer, visibly, instead of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from kvbridge.control.messages import MAX_BLOB
from kvbridge.errors import CapacityError, KVBridgeError, TransportError
from kvbridge.memory.payload import check_source
from kvbridge.transfer import run_callback

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.abc.backend import Backend, Held, Transport
    from kvbridge.memory import Payload

T = TypeVar("T")


def attempt(backend: Backend[Any], call: Callable[[], T]) -> T:
    """Call into a backend.

    Raises:
        KVBridgeError: What the backend raised; anything else that it raised as the cause of a `TransportError`.
    """
    try:
        return call()
    except KVBridgeError:
        raise
    except Exception as error:
        raise TransportError(f"the backend {backend.name!r} failed: {error!r}") from error


def hold(backend: Transport[Any], payload: Payload) -> Held:
    """Check a payload and let a transport hold it.

    Raises:
        KVBridgeError: It is not to be held, or cannot be described in one message.
    """
    check_source(payload, backend.capabilities)
    held = attempt(backend, lambda: backend.hold(payload))
    try:
        check_descriptor(backend, held.descriptor)
    except CapacityError:
        run_callback(held.release)
        raise
    return held


def check_descriptor(backend: Transport[Any], descriptor: bytes) -> None:
    """Refuse a descriptor that no peer would take.

    Raises:
        CapacityError: It is too large for a message.
    """
    if len(descriptor) > MAX_BLOB:
        raise CapacityError(
            f"the backend {backend.name!r} describes the value in {len(descriptor)} bytes, and {MAX_BLOB} fit into a "
            "message: hand it over in parts, or in blocks that are neighbours"
        )
