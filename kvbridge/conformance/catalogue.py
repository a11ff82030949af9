"""Every requirement of the contract, found in the modules of the suite."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from kvbridge.conformance import suite
from kvbridge.conformance.requirement import Requirement, requirement_of
from kvbridge.errors import KVBridgeError

if TYPE_CHECKING:
    from collections.abc import Callable


def catalogue() -> dict[str, tuple[Callable[[Any], None], Requirement]]:
    """Import the suite and return each requirement with its test, by id.

    Raises:
        KVBridgeError: Two tests have one id.
    """
    found: dict[str, tuple[Callable[[Any], None], Requirement]] = {}
    for module in pkgutil.iter_modules(suite.__path__, f"{suite.__name__}."):
        for value in vars(importlib.import_module(module.name)).values():
            requirement = requirement_of(value)
            if requirement is None:
                continue
            if requirement.id in found and found[requirement.id][0] is not value:
                raise KVBridgeError(f"two tests have the id {requirement.id}")
            found[requirement.id] = value, requirement
    return found


def requirements() -> list[Requirement]:
    """Return every requirement of the contract."""
    return [requirement for _, requirement in catalogue().values()]
