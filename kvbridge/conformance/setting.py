"""`Setting`: the backend under test, its rig running, its capabilities known."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, TypeVar

from kvbridge.conformance.peers import Hosts
from kvbridge.conformance.rig import Rig, load_rig
from kvbridge.conformance.world import Subject
from kvbridge.errors import BackendImportError, BackendUnavailableError, ConfigError, KVBridgeError
from kvbridge.registry import find_backend, probe_backend

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.capabilities import Capabilities
    from kvbridge.conformance.configuration import SuiteConfig

T = TypeVar("T")


class UnavailableError(KVBridgeError):
    """The backend cannot be tested on this machine."""


class BrokenError(KVBridgeError):
    """The backend cannot even say what it can do: it fails before its first test."""


BROKEN = "backend/01-made failed, and with it everything: the backend cannot be made"
"""What is said of such a backend."""


class Setting:
    """The surroundings of a run.

    Attributes:
        subject: The backend under test.
        distribution: Name and version of what brings it.
    """

    def __init__(self, subject: Subject, distribution: str, rig: Rig) -> None:
        self.subject = subject
        self.distribution = distribution
        self._rig: Rig | None = rig

    @classmethod
    def enter(cls, config: SuiteConfig) -> Setting:
        """Start the rig and ask the backend what it claims.

        Raises:
            UnavailableError: The backend or its rig cannot work here.
            ConfigError: The options are wrong, or process peers are asked of a backend that claims none.
            BrokenError: It, or its rig, raises where it may not.
            BackendNotFoundError, BackendConflictError: There is no such backend, or a wrong one.
        """
        entry = find_backend(config.backend)
        rig = _rig(config)
        _of_rig("environment", lambda: os.environ.update(rig.environment))
        _of_rig("start", rig.start)
        try:
            subject = _subject(config, {**_of_rig("options", lambda: _json_object(rig.options())), **config.options})
        except BaseException:
            rig.stop()
            raise
        return cls(subject, f"{entry.distribution} {entry.version}".strip(), rig)

    def leave(self) -> str:
        """End every peer and stop the rig. Idempotent.

        Returns:
            What went wrong with it; empty where nothing did.
        """
        rig, self._rig = self._rig, None
        if rig is None:
            return ""
        try:
            self.subject.hosts.close()
        finally:
            try:
                _of_rig("stop", rig.stop)
                said = ""
            except KVBridgeError as error:
                said = str(error)
        return said


def _rig(config: SuiteConfig) -> Rig:
    """Make the rig. Where it cannot be imported, that is most often because its backend cannot."""
    try:
        return _of_rig("constructor", lambda: load_rig(config.backend))
    except BackendImportError as error:
        found = probe_backend(config.backend, config.options)
        why = found.probe.reason if found.fault == BackendImportError.code else str(error)
        raise UnavailableError(why) from error


def _of_rig(name: str, call: Callable[[], T]) -> T:
    """Do something of a rig, which is the author's code: whatever it raises is told from a fault of ours."""
    try:
        return call()
    except BackendUnavailableError as error:
        raise UnavailableError(str(error)) from error
    except (KVBridgeError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise BrokenError(f"the backend's rig raised {type(error).__name__} in its {name}: {error}") from error


def _json_object(options: dict[str, Any]) -> dict[str, Any]:
    """Return options as they come to a peer in another process."""
    return dict(json.loads(json.dumps(dict(options))))


def _subject(config: SuiteConfig, options: dict[str, Any]) -> Subject:
    capabilities = _capabilities(config.backend, options)
    if config.peers == "process" and not capabilities.cross_process:
        raise ConfigError(f"{config.backend!r} does not claim cross_process: its peers can be threads only")
    processes = capabilities.cross_process and config.peers != "thread"
    return Subject(config.backend, options, capabilities, processes, Hosts())


def _capabilities(name: str, options: dict[str, Any]) -> Capabilities:
    found = probe_backend(name, options)
    if found.capabilities is not None:
        return found.capabilities
    if found.fault == ConfigError.code:
        raise ConfigError(found.probe.reason)
    if found.fault in ("", BackendImportError.code):
        raise UnavailableError(found.probe.reason or "its probe says so, without a reason")
    raise BrokenError(f"{BROKEN}: {found.probe.reason}")
