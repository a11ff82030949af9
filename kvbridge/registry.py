"""Finding backends: entry points of the group `kvbridge.backends`, the same door for everybody.

Listing imports no backend. stevedore selects and loads one by name; its disk cache of entry points is bypassed,
because it goes stale for two minutes after a reinstall and forgets which distribution an entry point is from.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import msgspec

from kvbridge.capabilities import Capabilities, Probe
from kvbridge.config import convert, nearest
from kvbridge.errors import BackendConflictError, BackendImportError, BackendNotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvbridge.abc import Backend

GROUP = "kvbridge.backends"

ANSWER = "kvbridge-probe:"
"""Start of the line in which a probing child answers; a vendor's library may print others around it."""

PROBE_TIMEOUT = 60.0
"""Seconds that a backend's probe in a child process may take: importing a vendor's library can be slow."""


@dataclass(frozen=True)
class Entry:
    """An installed backend, not imported.

    Attributes:
        name: Its name.
        target: `module:class`.
        distribution: Name of the distribution that brings it.
        version: Version of that distribution.
    """

    name: str
    target: str
    distribution: str
    version: str


class Probed(msgspec.Struct, frozen=True):
    """What a backend says of itself on this machine.

    Attributes:
        probe: Whether it works here, and why not.
        capabilities: Flags and limits with the given options; None where it does not work.
        fault: Code of the error that kept it from saying so itself: `"config"` for wrong options, `"backend-import"`
            where it cannot be imported, `"broken"` where its own code raised; empty where its probe answered.
    """

    probe: Probe
    capabilities: Capabilities | None = None
    fault: str = ""


def _points(group: str = GROUP) -> list[metadata.EntryPoint]:
    """Read entry points; one distribution that is found twice on the path counts once."""
    seen: dict[tuple[str, str, str], metadata.EntryPoint] = {}
    for point in metadata.entry_points(group=group):
        seen.setdefault((point.name, point.value, point.dist.name if point.dist else ""), point)
    return list(seen.values())


def list_backends() -> list[Entry]:
    """List installed backends by name, without importing any."""
    return list_entries(GROUP)


def list_entries(group: str) -> list[Entry]:
    """List the entry points of a group by name, without importing any."""
    return sorted(
        (
            Entry(
                point.name,
                point.value,
                point.dist.name if point.dist else "(unknown)",
                point.dist.version if point.dist else "",
            )
            for point in _points(group)
        ),
        key=lambda entry: (entry.name, entry.distribution),
    )


def find_backend(name: str) -> Entry:
    """Find one backend.

    Raises:
        BackendNotFoundError: There is none; the message has the nearest name and all that are installed.
        BackendConflictError: Two distributions bring it; the message names both.
    """
    found = find_entry(GROUP, "backend", name)
    if found is None:
        known = {entry.name for entry in list_backends()}
        raise BackendNotFoundError(
            f"no installed package brings a backend {name!r}; {nearest(name, known)}. Install the package that does"
        )
    return found


def find_entry(group: str, kind: str, name: str) -> Entry | None:
    """Find the one entry point of a name; None if there is none.

    Args:
        group: Group of the entry point.
        kind: What it names, for the error.
        name: Its name.

    Raises:
        BackendConflictError: Two distributions bring it; the message names both.
    """
    found = [entry for entry in list_entries(group) if entry.name == name]
    if len(found) > 1:
        both = " and ".join(f"{entry.distribution} {entry.version} ({entry.target})" for entry in found)
        raise BackendConflictError(f"the {kind} {name!r} comes from {both}: uninstall one of them")
    return found[0] if found else None


def load_class(group: str, kind: str, entry: Entry, base: type[Any], called: str) -> tuple[type[Any], str]:
    """Import the class that an entry point names.

    Args:
        group: Group of the entry point.
        kind: What it names, for errors.
        entry: The entry point; there is one of its name.
        base: What it has to be a subclass of.
        called: How an author imports that, for errors.

    Returns:
        The class, and what it is and where it comes from, for errors.

    Raises:
        BackendConflictError: It is something else.
        BackendImportError: See `load_entry`.
    """
    where = f"the {kind} {entry.name!r} of {entry.distribution} {entry.version} ({entry.target})"
    cls = load_entry(group, entry.name, where)
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise BackendConflictError(f"{where} is {cls!r}, expected a subclass of {called}")
    return cls, where


def check_class(cls: type[Any], name: str, where: str) -> None:
    """Check that a class is complete, and calls itself what its entry point does.

    Raises:
        BackendConflictError: It does not.
    """
    if getattr(cls, "name", None) != name:
        raise BackendConflictError(f"{where} calls itself {getattr(cls, 'name', None)!r}: the names must be equal")
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise BackendConflictError(f"{where} lacks methods of the contract: {missing}")


def load_backend(name: str) -> type[Backend[Any]]:
    """Import the class of one backend.

    Raises:
        BackendNotFoundError, BackendConflictError: See `find_backend`; also if it is not a backend.
        BackendImportError: See `load_entry`.
    """
    from kvbridge.abc import Backend  # noqa: PLC0415 - not needed for listing

    cls, where = load_class(GROUP, "backend", find_backend(name), Backend, "kvbridge.abc.Backend")
    check_class(cls, name, where)
    options = getattr(cls, "Options", None)
    if not (isinstance(options, type) and issubclass(options, msgspec.Struct)):
        raise BackendConflictError(f"{where} has Options = {options!r}, expected a msgspec.Struct type")
    return cls


def load_entry(group: str, name: str, where: str) -> Any:
    """Import what an entry point names, without the disk cache.

    Args:
        group: Group of the entry point.
        name: Its name; there is one of it.
        where: What it is and where it comes from, for the error.

    Raises:
        BackendImportError: It cannot be imported; the original error is the cause.
    """
    from stevedore.driver import DriverManager  # noqa: PLC0415 - not needed for listing

    class Manager(DriverManager):  # type: ignore[misc, unused-ignore]
        """Selects by name."""

        def list_entry_points(self) -> list[metadata.EntryPoint]:
            return _points(group)

    try:
        return Manager(group, name, invoke_on_load=False).driver
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a plugin does while it is imported, SystemExit included
        raise BackendImportError(f"{where} cannot be imported: {type(error).__name__}: {error}") from error


def create_backend(name: str, options: Mapping[str, Any], path: str = "options") -> Backend[Any]:
    """Make a backend from its name and raw options.

    Raises:
        ConfigError: The options are not usable.
        BackendUnavailableError: It cannot work here.
        KVBridgeError: See `load_backend`.
    """
    cls = load_backend(name)
    return cls(convert(cls.Options, options, path))


def probe_backend(name: str, options: Mapping[str, Any] | None = None) -> Probed:
    """Probe a backend in a child process, so that nothing of it is imported here and a crash is only a finding."""
    command = [sys.executable, "-m", "kvbridge.cli.probe", name, json.dumps(dict(options or {}))]
    ended = ""
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and module
            command, capture_output=True, text=True, errors="replace", timeout=PROBE_TIMEOUT, check=False
        )
        output, said = done.stdout, done.stderr or done.stdout
        code = done.returncode
        ended = (
            f"its probe was ended by {signal.Signals(-code).name}" if code < 0 else f"its probe ended with code {code}"
        )
    except subprocess.TimeoutExpired as error:
        output = said = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else error.stdout or ""
        ended = f"its probe did not end within {PROBE_TIMEOUT:g} s"
    for line in output.splitlines():
        if line.startswith(ANSWER):
            with contextlib.suppress(msgspec.MsgspecError):
                return msgspec.json.decode(line.removeprefix(ANSWER), type=Probed)
    tail = said.strip().splitlines()[-1:] or ["no output"]
    return Probed(Probe(ok=False, reason=f"{ended}: {tail[0]}"), fault="broken")
