"""`python -m kvbridge.cli.probe NAME OPTIONS`: probe one backend in this process and print the result as JSON.

Run by `kvbridge.registry.probe_backend` as a child, so that whatever importing a backend does, it does here.
"""

from __future__ import annotations

import contextlib
import json
import sys

import msgspec

from kvbridge.capabilities import Probe
from kvbridge.config import convert
from kvbridge.errors import KVBridgeError
from kvbridge.registry import ANSWER, Probed, load_backend


def probe(name: str, options: str) -> Probed:
    """Import a backend, ask its probe, and if it can work ask an instance for its capabilities."""
    try:
        cls = load_backend(name)
        typed = convert(cls.Options, json.loads(options), "options")
        found = cls.probe(typed)
        if not found.ok:
            return Probed(found)
        backend = cls(typed)
        try:
            return Probed(found, backend.capabilities)
        finally:
            backend.close()
    except KVBridgeError as error:
        return Probed(Probe(ok=False, reason=str(error)), fault=error.code)
    except (Exception, SystemExit) as error:  # a finding about a plugin, whatever it is
        return Probed(Probe(ok=False, reason=f"{error}" or repr(error)), fault="broken")


def main() -> None:
    """Print one line of JSON on standard output; what a plugin prints goes to standard error."""
    with contextlib.redirect_stdout(sys.stderr):
        result = probe(sys.argv[1], sys.argv[2])
    sys.stdout.write("\n" + ANSWER + msgspec.json.encode(result).decode() + "\n")


if __name__ == "__main__":
    main()
