"""Which tests stay together when two run at a time. xdist's own groups do not work with pytest 9.2."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

TOGETHER = {
    "tests/plugins/": "engines",
    "tests/doors/": "suite",
    "tests/mutants/": "mutants",
}
"""Folders whose tests run in one process, one after the other."""


class Groups(LoadScopeScheduling):
    """Hands out tests by folder, or by file."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", maxsplit=1)[0]
        return next((group for folder, group in TOGETHER.items() if file.startswith(folder)), file)
