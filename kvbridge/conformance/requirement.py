"""Requirements: each is a sentence of the contract and the function that tests it, under one id."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kvbridge.errors import KVBridgeError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbridge.capabilities import Capabilities
    from kvbridge.conformance.results import Level

PARTS = ("backend", "pipe", "buffer", "connector", "slots", "fault", "perf")
"""Parts of the contract, in its order."""

F = TypeVar("F", bound="Callable[..., None]")

_MARK = "kvbridge_requirement"
_ID = re.compile(rf"(?:{'|'.join(PARTS)})/\d\d-[a-z0-9-]+")


@dataclass(frozen=True)
class Requirement:
    """A sentence of the contract.

    Attributes:
        id: `part/number-name`.
        level: MUST or SHOULD.
        sentence: What has to hold.
        needs: Capability flags that it is about: it applies where all of them are claimed.
        lacks: Capability flags without which it applies: that the operation is refused then.
        processes: Whether it needs peers in processes of their own, such as to kill one.
        transport: Whether it is about transports only: it looks at `hold` and `land`.
    """

    id: str
    level: Level
    sentence: str
    needs: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    processes: bool = False
    transport: bool = False

    @property
    def flags(self) -> tuple[str, ...]:
        """The capability flags that a run of its test covers."""
        return (*self.needs, "cross_process") if self.processes else self.needs

    def unclaimed(self, capabilities: Capabilities) -> str | None:
        """Say why this requirement is not about a backend with these capabilities; None if it is."""
        missing = [flag for flag in self.needs if not getattr(capabilities, flag)]
        claimed = [flag for flag in self.lacks if getattr(capabilities, flag)]
        if missing:
            return f"not claimed: {', '.join(missing)}"
        if claimed:
            return f"about backends without {', '.join(claimed)}"
        return None

    def selected(self, prefixes: Sequence[str]) -> bool:
        """Whether one of the prefixes names this requirement; no prefix names all."""
        return not prefixes or any(self.id.startswith(prefix) for prefix in prefixes)


def must(
    requirement_id: str,
    *,
    needs: Sequence[str] = (),
    lacks: Sequence[str] = (),
    processes: bool = False,
    transport: bool = False,
) -> Callable[[F], F]:
    """Make a test of a sentence with MUST; the sentence is the function's docstring."""
    return _decorator("MUST", requirement_id, needs, lacks, processes=processes, transport=transport)


def should(
    requirement_id: str,
    *,
    needs: Sequence[str] = (),
    lacks: Sequence[str] = (),
    processes: bool = False,
    transport: bool = False,
) -> Callable[[F], F]:
    """Make a test of a sentence with SHOULD; the sentence is the function's docstring."""
    return _decorator("SHOULD", requirement_id, needs, lacks, processes=processes, transport=transport)


def requirement_of(function: object) -> Requirement | None:
    """Return the requirement that a function tests; None if it tests none."""
    found = getattr(function, _MARK, None)
    return found if isinstance(found, Requirement) else None


def order(requirement: Requirement) -> tuple[int, str]:
    """Return what sorts requirements into the contract's order."""
    return PARTS.index(requirement.id.partition("/")[0]), requirement.id


def _decorator(
    level: Level, name: str, needs: Sequence[str], lacks: Sequence[str], *, processes: bool, transport: bool
) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        sentence = " ".join((function.__doc__ or "").split())
        if not _ID.fullmatch(name) or not sentence:
            raise KVBridgeError(f"{function.__name__}: {name!r} is no id of a requirement, or its sentence is missing")
        found = Requirement(name, level, sentence, tuple(needs), tuple(lacks), processes, transport)
        setattr(function, _MARK, found)
        return function

    return decorate
