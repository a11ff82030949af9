"""One configuration for every door: what to test, how, and what is waived."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kvbridge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TIMEOUT = 60.0
"""Seconds for one requirement."""

Peers = Literal["auto", "process", "thread"]


@dataclass(frozen=True)
class SuiteConfig:
    """What a run of the suite is asked to do.

    Attributes:
        backend: Name of the backend.
        options: Its options, over those of its rig.
        peers: `"process"`, `"thread"`, or `"auto"`: processes where the backend reaches that far.
        prefixes: Prefixes of ids; none for all.
        strict: Whether a SHOULD counts, and a requirement that could not be run.
        waivers: File of waivers.
        timeout: Seconds for one requirement.
        maxfail: Failures that count after which the run ends; 0 for all.
    """

    backend: str
    options: Mapping[str, Any]
    peers: Peers = "auto"
    prefixes: tuple[str, ...] = ()
    strict: bool = False
    waivers: Path | None = None
    timeout: float = TIMEOUT
    maxfail: int = 0


def parse_options(text: str) -> dict[str, Any]:
    """Read a backend's options.

    Raises:
        ConfigError: They are not a JSON object.
    """
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise ConfigError(
            f"the backend's options are no JSON: {error}; expected such as '{{\"capacity\": 1}}'"
        ) from error
    if not isinstance(found, dict):
        raise ConfigError(f"the backend's options are a JSON {type(found).__name__}, expected an object")
    return found


def read_waivers(path: Path | None) -> dict[str, str]:
    """Read waivers: a line for each, `id: reason`. Empty lines and lines that start with # do not count.

    Raises:
        ConfigError: The file cannot be read, or a line has no reason or repeats an id.
    """
    if path is None:
        return {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the waivers: {error}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, _, reason = (part.strip() for part in text.partition(":"))
        if not name or not reason:
            raise ConfigError(f"{path}:{number}: found {text!r}, expected 'id: reason'")
        if name in found:
            raise ConfigError(f"{path}:{number}: {name!r} is waived twice")
        found[name] = reason
    return found
