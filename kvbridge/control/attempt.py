"""Calls into a backend, whose own errors are mapped and whose bugs end one transfer, visibly, instead of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from kvbridge.errors import KVBridgeError, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.abc.backend import Backend

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
