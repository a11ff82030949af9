"""`Rig`: what a backend needs under test. Options, environment, services; about ten lines for most backends.

Name it in your distribution, under the name of the backend:

    [project.entry-points."kvbridge.rigs"]
    mine = "my_package.rig:MyRig"

A backend without a rig is tested with its default options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from kvbridge.registry import find_entry, load_class

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUP = "kvbridge.rigs"


class Rig:
    """Surroundings of a backend under test. Override what yours needs.

    A rig is made and started once a run, in the process that runs the suite, before anything of the backend is made.
    """

    environment: ClassVar[Mapping[str, str]] = {}
    """Environment variables of every process of the run, such as a transport's settings."""

    def start(self) -> None:
        """Start services that the backend needs, such as a metadata server, on loopback and ephemeral ports.

        Raises:
            BackendUnavailableError: They cannot be had here; the message says why.
        """

    def stop(self) -> None:
        """Stop them. Called once, also when the run fails."""

    def options(self) -> dict[str, Any]:
        """Return the options of each instance under test. Small capacities make for quick tests."""
        return {}


def load_rig(name: str) -> Rig:
    """Make the rig of a backend: its own, or one that changes nothing.

    Raises:
        BackendConflictError: Two distributions bring one, or it is no `Rig`.
        BackendImportError: It cannot be imported.
    """
    entry = find_entry(GROUP, "rig", name)
    if entry is None:
        return Rig()
    cls, _ = load_class(GROUP, "rig", entry, Rig, "kvbridge.conformance.rig.Rig")
    rig: Rig = cls()
    return rig
