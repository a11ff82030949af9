"""`Spans`: runs of memory that an agent of the library knows, each registered once, however many payloads lie in it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from kvbridge.errors import ConfigError
from kvbridge_nixl.library import call

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvbridge_nixl.agent import Agent

Kind = Literal["DRAM", "VRAM"]

Span = tuple[int, int, int]
"""Address, bytes and device."""


class Spans:
    """Registered memory of one agent.

    A span counts its users: of two registrations of the same memory the library cannot tell which one is given back,
    and would free what descriptors of the other one point to.

    The library looks an address up among spans sorted by address, and sees the one at or before it alone. So spans of
    long-lived regions may not overlap, and other memory is looked up by the very spans that it was registered in.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._users: Counter[tuple[Kind, Span]] = Counter()

    def add(self, kind: Kind, spans: Sequence[Span]) -> None:
        """Register spans that are not known yet, and count one more user for each."""
        new = [span for span in dict.fromkeys(spans) if not self._users[kind, span]]
        if new:
            call("registering memory", lambda: self._agent.lib.register_memory(_described(new), kind))
        self._users.update((kind, span) for span in spans)

    def remove(self, kind: Kind, spans: Sequence[Span]) -> None:
        """Take one user from each span, and give back what has none left."""
        self._users.subtract((kind, span) for span in spans)
        over = [span for span in dict.fromkeys(spans) if not self._users[kind, span]]
        for span in over:
            del self._users[kind, span]
        if over:
            lib = self._agent.lib
            call("forgetting memory", lambda: lib.deregister_memory(lib.get_reg_descs(_described(over), kind)))

    def metadata(self, kind: Kind, spans: Sequence[Span]) -> bytes:
        """Return what a peer's library needs to reach spans."""
        lib = self._agent.lib
        found: bytes = call(
            "describing memory",
            lambda: lib.get_partial_agent_metadata(
                lib.get_reg_descs(_described(list(dict.fromkeys(spans))), kind), inc_conn_info=True
            ),
        )
        return found


def _described(spans: Sequence[Span]) -> list[tuple[Any, ...]]:
    return [(*span, "") for span in spans]


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the least spans without overlaps that cover these: regions interleave where K and V share a tensor."""
    found: list[Span] = []
    for address, nbytes, device in sorted(spans, key=lambda span: (span[2], span[0])):
        start, length, last = found[-1] if found else (0, 0, -1)
        if device == last and address < start + length:
            found[-1] = start, max(length, address + nbytes - start), device
        else:
            found.append((address, nbytes, device))
    return found


def joined(known: Sequence[Span], spans: Iterable[Span]) -> list[Span]:
    """Return the spans that are to be registered beside known ones.

    Raises:
        ConfigError: One overlaps a known one and leaves it.
    """
    new = []
    for span in merged(spans):
        start, end = span[0], span[0] + span[1]
        others = [
            (address, address + nbytes)
            for address, nbytes, device in known
            if device == span[2] and start < address + nbytes and address < end
        ]
        if not others:
            new.append(span)
        elif not any(first <= start and end <= last for first, last in others):
            first, last = others[0]
            raise ConfigError(
                f"the regions from {start:#x} to {end:#x} lie partly in memory that was registered before, from "
                f"{first:#x} to {last:#x}: register them in one call"
            )
    return new
