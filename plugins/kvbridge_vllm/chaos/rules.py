"""Rules by which control messages are lost or late, in a file that the run writes and an engine reads."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

import msgspec

from kvbridge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

OPTION = "chaos"
"""Name of the connector's option that says where the file is."""

LOOK = 0.05
"""Seconds between two looks at the file."""


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What happens to messages that an engine receives.

    Attributes:
        kind: `"drop"`, or `"delay"`.
        until: When it ends, by the clock that all processes of the host have in common (`time.monotonic`).
        share: Of a drop: the share of messages that are lost.
        seconds: Of a delay: by how much messages are late at most.
        sender: Beginning of the name of whose messages are meant; empty for everybody's.
    """

    kind: Literal["drop", "delay"]
    until: float
    share: float = 1.0
    seconds: float = 0.0
    sender: str = ""


def write_rules(path: Path, rules: Sequence[Rule]) -> None:
    """Replace the rules in a file, in one step."""
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.json.encode(list(rules)))
    partial.replace(path)


class RulesFile:
    """The rules in a file, read again when it was replaced. Belongs to one thread.

    Args:
        path: The file. It may be missing: no rules.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rules: tuple[Rule, ...] = ()
        self._seen = (0, 0)
        self._looked = 0.0

    def standing(self, now: float | None = None) -> tuple[Rule, ...]:
        """Return the rules that stand.

        Raises:
            ConfigError: The file holds something else.
        """
        now = time.monotonic() if now is None else now
        if now - self._looked >= LOOK:
            self._looked = now
            self._read()
        return tuple(rule for rule in self._rules if now < rule.until)

    def _read(self) -> None:
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_ino)
            if seen == self._seen:
                return
            self._seen = seen
            self._rules = tuple(msgspec.json.decode(self._path.read_bytes(), type=list[Rule]))
        except FileNotFoundError:
            self._rules = ()
        except msgspec.DecodeError as error:
            raise ConfigError(f"{self._path} holds no rules: {error}; `write_rules` writes them") from error
