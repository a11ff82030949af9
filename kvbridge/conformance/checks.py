"""What tests of requirements say when they find a fault. Not `assert`: that vanishes under `python -O`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from kvbridge.errors import KVBridgeError
from kvbridge.threads import call_within

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)


class RequirementError(Exception):
    """A requirement is not met. The message says what was found and what was expected."""


def require(holds: object, otherwise: str) -> None:
    """Fail with a sentence unless something holds."""
    if not holds:
        raise RequirementError(otherwise)


def require_equal(found: object, expected: object, what: str) -> None:
    """Fail unless two things are equal."""
    if found != expected:
        raise RequirementError(f"{what}: found {found!r}, expected {expected!r}")


def require_raises(kind: type[E] | tuple[type[E], ...], call: Callable[[], Any], what: str) -> E:
    """Fail unless a call raises an error of a kind; return the error."""
    names = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
    try:
        found = call()
    except kind as error:
        return error
    except KVBridgeError as error:
        raise RequirementError(f"{what}: raised {type(error).__name__} ({error}), expected {names}") from error
    raise RequirementError(f"{what}: returned {found!r}, expected {names}")


def eventually(holds: Callable[[], object], timeout: float, otherwise: Callable[[], str]) -> None:
    """Wait until something holds, at most `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not holds():
        if time.monotonic() > deadline:
            raise RequirementError(f"after {timeout:g} s: {otherwise()}")
        time.sleep(0.005)


def within(seconds: float, call: Callable[[], T], what: str) -> T:
    """Run a call on a thread of its own and wait; fail if it has not returned after some seconds."""
    ended, value = call_within(what.replace(" ", "-"), call, seconds)
    if not ended:
        raise RequirementError(f"{what} did not return within {seconds:g} s")
    return value  # type: ignore[return-value]
