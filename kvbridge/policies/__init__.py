"""Finding eviction policies: entry points of the group `kvbridge.policies`, the same door for everybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvbridge.config import nearest
from kvbridge.errors import ConfigError
from kvbridge.registry import check_class, find_entry, list_entries, load_class

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

    found = find_entry(GROUP, "policy", name)
    if found is None:
        raise ConfigError(f"no installed package brings a policy {name!r}; {nearest(name, list_policies())}")
    cls, where = load_class(GROUP, "policy", found, Policy, "kvbridge.abc.policy.Policy")
    check_class(cls, name, where)
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
