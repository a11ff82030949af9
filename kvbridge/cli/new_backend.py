"""`kvbridge new-backend NAME`: a complete project of a new backend that passes the conformance suite as it is.

The templates are projects themselves: those of two backends whose names are replaced.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kvbridge.errors import ConfigError
from kvbridge.registry import list_backends

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind = Literal["transport", "store"]

EXAMPLES: dict[Kind, str] = {"transport": "example_tcp", "store": "example_folder"}
"""Name of the backend that is the template of each kind."""

TEMPLATES = Path(__file__).parents[1] / "scaffold"

CACHES = {"__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
"""Folders that tools leave in a template."""

USAGE = 2

LONGEST = 24
"""Characters of a name: with more the generated lines would be too long."""

NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", re.ASCII)


def run(name: str, kind: Kind, to: str | None) -> int:
    """Write a project, say what was written and what to type next. Returns the exit code."""
    target = Path(to if to is not None else f"kvbridge-{name.replace('_', '-')}")
    try:
        written = create(name, kind, target)
    except (ConfigError, OSError) as error:
        print(error, file=sys.stderr)
        return USAGE
    print(f"{target}: the {kind} {name!r}, which passes the conformance suite as it is")
    for path in written:
        print(f"  {path}")
    print("\nType next:")
    for line in (
        f"cd {shlex.quote(str(target))}",
        "pip install -e '.[dev]'",
        f"python -m pytest --kvbridge-backend={name}",
    ):
        print(f"  {line}")
    return 0


def create(name: str, kind: Kind, target: Path) -> list[Path]:
    """Write the project of a new backend.

    Args:
        name: Name of the backend.
        kind: What it is.
        target: The project's folder: a new one, or one that is empty.

    Returns:
        The files that were written, relative to `target`.

    Raises:
        ConfigError: The name cannot be used or is taken, or the folder is not empty.
        OSError: A file cannot be written.
    """
    check_name(name)
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        what = "is not empty" if target.is_dir() else "is no folder"
        raise ConfigError(f"{target} {what}: nothing was written; name a new folder with --to")
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for path, content in _project(name, kind):
        place = target / path
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("x", encoding="utf-8") as file:
            file.write(content)
        written.append(path)
    return written


def check_name(name: str) -> None:
    """Check the name of a new backend.

    Raises:
        ConfigError: It cannot be used, or is taken.
    """
    if not NAME.fullmatch(name) or keyword.iskeyword(name) or len(name) > LONGEST:
        raise ConfigError(
            f"the name is {name!r}, expected up to {LONGEST} lower-case letters, digits and single underscores that "
            "start with a letter and are no keyword of Python, such as 'my_transport'"
        )
    taken = [entry for entry in list_backends() if entry.name == name]
    if taken:
        brings = f"{taken[0].distribution} {taken[0].version}".strip()
        raise ConfigError(f"{brings} brings a backend {name!r} already: choose another name, or uninstall it")
    found = importlib.util.find_spec(f"kvbridge_{name}")
    if found is not None:
        raise ConfigError(f"there is a package kvbridge_{name} already ({found.origin}): choose another name")


def _project(name: str, kind: Kind) -> Iterator[tuple[Path, str]]:
    """Yield the path and the content of each file."""
    template = TEMPLATES / kind
    words = dict(zip(_forms(EXAMPLES[kind]), _forms(name), strict=True))
    for path in sorted(template.rglob("*")):
        inner = path.relative_to(template)
        if path.is_file() and not CACHES.intersection(inner.parts):
            yield Path(_replaced(str(inner), words)), _replaced(path.read_text(encoding="utf-8"), words)


def _forms(name: str) -> tuple[str, str, str]:
    """Return the forms of a name: of the backend and its package, of the distribution, of its classes."""
    return name, name.replace("_", "-"), "".join(part.capitalize() for part in name.split("_"))


def _replaced(text: str, words: dict[str, str]) -> str:
    """Replace all words at one time: none is looked for in what was put in."""
    return re.sub("|".join(map(re.escape, words)), lambda found: words[found[0]], text)
