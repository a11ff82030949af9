"""Finding eviction policies: entry points of the group `kvbridge.policies`, the same door for everybody."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from kvbridge.config import nearest
from kvbridge.errors import BackendConflictError, ConfigError
from kvbridge.registry import list_entries, load_entry

if TYPE_CHECKING:
    from kvbridge.abc.policy import Policy

GROUP = "kvbridge.policies"


def list_policies() -> list[str]:
    """List the names of installed policies, in order, without importing any."""
    return sorted({entry.name for entry in list_entries(GROUP)})


def load_policy(name: str) -> type[Policy]:
    """Import the class of one policy.

    Raises:
        ConfigError: There is none of this name; the message has the nearest and all that are installed.
        BackendConflictError: Two distributions bring it, or it is not a policy.
        BackendImportError: It cannot be imported; the original error is the cause.
    """
    from kvbridge.abc.policy import Policy  # noqa: PLC0415 - not needed for listing

    found = [entry for entry in list_entries(GROUP) if entry.name == name]
    if not found:
        raise ConfigError(f"no installed package brings a policy {name!r}; {nearest(name, list_policies())}")
    if len(found) > 1:
        both = " and ".join(f"{entry.distribution} {entry.version} ({entry.target})" for entry in found)
        raise BackendConflictError(f"the policy {name!r} comes from {both}: uninstall one of them")
    where = f"the policy {name!r} of {found[0].distribution} {found[0].version} ({found[0].target})"
    cls = load_entry(GROUP, name, where)
    if not (isinstance(cls, type) and issubclass(cls, Policy)):
        raise BackendConflictError(f"{where} is {cls!r}, expected a subclass of kvbridge.abc.policy.Policy")
    if getattr(cls, "name", None) != name:
        raise BackendConflictError(f"{where} calls itself {getattr(cls, 'name', None)!r}: the names must be equal")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise BackendConflictError(f"{where} lacks methods of the contract: {missing}")
    return cls


def create_policy(name: str, capacity: int) -> Policy:
    """Make a policy for a tier.

    Args:
        name: Its name; `list_policies` has those that are installed.
        capacity: Keys that the tier holds at most.

    Raises:
        ConfigError: There is none of this name, or the capacity is below 1.
        BackendConflictError: See `load_policy`.
    """
    if capacity < 1:
        raise ConfigError(f"policy {name!r}: found a capacity of {capacity} keys, expected at least 1")
    return load_policy(name)(capacity)
