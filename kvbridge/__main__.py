"""`python -m kvbridge`: the command `kvbridge`."""

from __future__ import annotations

from kvbridge.cli.main import main

if __name__ == "__main__":
    main()
