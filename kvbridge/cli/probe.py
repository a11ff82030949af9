"""`python -m kvbridge.cli.probe NAME OPTIONS`: probe one backend in this process and print the result as JSON.

Run by `kvbridge.registry.probe_backend` as a child, so that whatever importing a backend does, it does here.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING

import msgspec

from kvbridge.capabilities import Capabilities, Probe
from kvbridge.config import convert
from kvbridge.errors import KVBridgeError
from kvbridge.registry import ANSWER, Probed, load_backend

if TYPE_CHECKING:
    from collections.abc import Callable


def probe(name: str, options: str, tell: Callable[[Probed], None]) -> None:
    """Import a backend, ask its probe, and if it can work ask an instance for its capabilities.

    Args:
        name: The backend.
        options: Its options, as JSON.
        tell: Takes the finding, before the instance is closed: closing may hang.
    """
    try:
        cls = load_backend(name)
        typed = convert(cls.Options, json.loads(options), "options")
        found = cls.probe(typed)
        if not found.ok:
            tell(Probed(found))
            return
        backend = cls(typed)
        tell(Probed(found, msgspec.convert(msgspec.to_builtins(backend.capabilities), Capabilities)))
        backend.close()
    except KVBridgeError as error:
        tell(Probed(Probe(ok=False, reason=str(error)), fault=error.code))
    except (Exception, SystemExit) as error:  # a finding about a plugin, whatever it is
        tell(Probed(Probe(ok=False, reason=f"{type(error).__name__}: {error}"), fault="broken"))


def main() -> None:
    """Print lines of JSON on standard output, the first one counts; what a plugin prints goes to standard error."""
    output = sys.stdout

    def tell(result: Probed) -> None:
        output.write("\n" + ANSWER + msgspec.json.encode(result).decode() + "\n")
        output.flush()

    with contextlib.redirect_stdout(sys.stderr):
        probe(sys.argv[1], sys.argv[2], tell)


if __name__ == "__main__":
    main()
