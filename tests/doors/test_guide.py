"""The guide for authors: its code is the templates' code, its commands exist, its names are those of kvbridge."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import shutil
import textwrap
from typing import TYPE_CHECKING, Any

import click
import pytest

from kvbridge import errors
from kvbridge.abc import MoveState
from kvbridge.capabilities import Capabilities
from kvbridge.cli.main import main
from kvbridge.conformance.run import all_requirements
from kvbridge.pytest_plugin import pytest_addoption
from tests.doors.author import EXAMPLE, ROOT, TEMPLATES, Author, texts

if TYPE_CHECKING:
    from pathlib import Path

GUIDE = (ROOT / "docs/writing-a-backend.md").read_text()
PROJECTS = {folder / path: text for folder in (EXAMPLE, TEMPLATES / "store") for path, text in texts(folder).items()}
READMES = "".join(text for path, text in PROJECTS.items() if path.name == "README.md")
TOOLS = {"cd", "pip", "python", "twine"}
"""Commands of others: nothing is known of their options here."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)


def files() -> dict[str, str]:
    """The files of the backend that the guide shows as a whole, by name."""
    return dict(re.findall(r'^```python title="([^"]+)"\n(.*?)^```$', GUIDE, re.DOTALL | re.MULTILINE))


def imports(code: str) -> tuple[dict[str, str], str]:
    """The lines that a piece of code begins with and that import names, by name, and what comes after them."""
    lines = code.splitlines(keepends=True)
    count = next(n for n, line in enumerate(lines) if not re.match(r"import |from |\s*$", line))
    return imported("".join(lines[:count])), "".join(lines[count:])


def imported(code: str) -> dict[str, str]:
    """What a piece of code imports, wherever in it: where each name is from."""
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def commands() -> list[list[str]]:
    """The commands that readers of the guide, or of a template's README, are told to type."""
    lines = "".join(blocks("console")).replace("\n    ", " ").splitlines()  # a long one goes on, indented
    assert all(line.startswith("$ ") for line in lines)
    lines += re.findall(r"^    ((?:kvbridge|pytest|python|pip) ?.*)$", READMES, re.MULTILINE)
    lines += re.findall(r"`(kvbridge [^`]*)`", GUIDE + READMES)
    return [shlex.split(line.removeprefix("$ ")) for line in dict.fromkeys(lines)]


def pytest_options() -> set[str]:
    found: set[str] = set()

    class Group:
        def addoption(self, name: str, **_: Any) -> None:
            found.add(name)

        def getgroup(self, *_: str) -> Group:
            return self

    pytest_addoption(Group())  # type: ignore[arg-type]
    return found


def click_options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts} | {"--help"}


def kvbridge_command(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that is meant, and what is left of the words."""
    command: click.Command = main
    while isinstance(command, click.Group):
        command, words = command.commands[words[0]], words[1:]
    return command, words


def test_the_guide_has_code() -> None:
    assert len(blocks("python")) > 15
    assert len(commands()) > 15


@pytest.mark.parametrize("block", blocks("python") + blocks("toml") + blocks("yaml"), ids=lambda block: block[:40])
def test_every_piece_of_code_is_a_piece_of_a_template(block: str) -> None:
    """Word for word, but for its imports and how far all of it is indented: the templates are run by the suite."""
    _, piece = imports(block)
    assert templates_with(piece), f"no file of the templates has this:\n{piece}"


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block[:40])
def test_every_piece_of_code_shows_its_imports(block: str) -> None:
    """All that it uses, and nothing else, from where the template has it."""
    shown, piece = imports(block)
    used = {node.id for node in ast.walk(ast.parse(piece)) if isinstance(node, ast.Name)}
    path = templates_with(piece)[0]
    wanted = {name: where for name, where in imported(PROJECTS[path]).items() if name in used}
    assert shown == wanted, path


def templates_with(piece: str) -> list[Path]:
    indented = ["\n" + one_blank_line(textwrap.indent(piece, " " * spaces)) for spaces in (0, 4, 8)]
    return [path for path, text in PROJECTS.items() if any(one in "\n" + one_blank_line(text) for one in indented)]


def one_blank_line(text: str) -> str:
    """Two between functions become one: the formatter sees the methods of the guide without their class."""
    return re.sub(r"\n{3,}", "\n\n", text)


def test_the_backend_that_is_shown_as_a_whole_conforms(tmp_path: Path) -> None:
    """As the guide says: two files of a new project replaced, four deleted."""
    author = Author(tmp_path)
    assert author.kvbridge("new-backend", "staged").returncode == 0
    project = author.home / "kvbridge-staged"
    code = project / "src/kvbridge_staged"
    for name, text in files().items():
        assert (code / name).exists()
        (code / name).write_text(text)
    for name in ("card.py", "moves.py", "server.py"):
        assert f"`{name}`" in GUIDE
        (code / name).unlink()
    shutil.rmtree(project / "tests")
    author.install(project)
    wanted = ["backend", "pipe/05", "pipe/10", "buffer/1", "buffer/32", "fault/20", "fault/22", "fault/25", "fault/30"]
    done = author.kvbridge("conformance", "staged", *wanted, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "buffer/12-detached" in done.stdout


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_exists_with_its_options(words: list[str]) -> None:
    if words[:3] == ["python", "-m", "pytest"]:
        words = words[2:]
    program, *rest = words
    options = {word.partition("=")[0] for word in rest if word.startswith("--")}
    if program == "pytest":
        assert options <= pytest_options()
        return
    if program != "kvbridge":
        assert program in TOOLS
        return
    command, _ = kvbridge_command(rest)
    assert options <= click_options(command)


def test_every_option_that_is_named_exists() -> None:
    known = pytest_options() | click_options(main.commands["conformance"]) | click_options(main.commands["new-backend"])
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", GUIDE + READMES)) <= known


def test_every_option_of_the_doors_is_named() -> None:
    wanted = click_options(main.commands["conformance"]) | pytest_options()
    assert {name for name in wanted if name not in GUIDE} == {"--help", "--kvbridge-journal"}


def test_every_requirement_that_is_named_exists() -> None:
    known = [requirement.id for requirement in all_requirements()]
    prefixes = set(
        re.findall(r"(?<![\w/-])(?:backend|pipe|buffer|connector|slots|fault|perf)/\d[\w-]*", GUIDE + READMES)
    )
    assert len(prefixes) > 4
    for prefix in prefixes:
        assert any(name.startswith(prefix) for name in known), prefix


def test_every_name_of_kvbridge_can_be_imported() -> None:
    names = set(re.findall(r"`(kvbridge\.[a-zA-Z_.]+)", GUIDE))
    assert {
        "kvbridge.abc.Store",
        "kvbridge.abc.Transport",
        "kvbridge.layers.faulty",
        "kvbridge.memory.copying.slices",
        "kvbridge.memory.tensors.tensor_bytes",
        "kvbridge.threads.Loop",
        "kvbridge.transfer.cancelled",
    } <= names
    for name in names:
        module, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(module), last) or importlib.import_module(name), name


def test_every_flag_state_and_error_is_explained_and_exists() -> None:
    assert [flag for flag in Capabilities.__struct_fields__ if f"`{flag}`" not in GUIDE] == []
    assert [state.name for state in MoveState if f"- `{state.name}`: " not in GUIDE] == []
    assert [name for name in re.findall(r"`([A-Z]\w+Error)`", GUIDE) if not hasattr(errors, name)] == []


def test_the_tree_of_files_is_that_of_the_example() -> None:
    (tree,) = [block for block in blocks("text") if "├" in block]
    assert {line[4:] for line in tree.splitlines()[1:]} == set(texts(EXAMPLE))


def test_every_link_leads_somewhere() -> None:
    titles = [title.lower() for title in re.findall(r"^#+ (.*)$", GUIDE, re.MULTILINE)]
    headings = {re.sub(r"[^a-z0-9 -]", "", title).replace(" ", "-") for title in titles}
    for target in re.findall(r"\]\(([^)]+)\)", GUIDE):
        assert target.removeprefix("#") in headings if target.startswith("#") else (ROOT / "docs" / target).exists()
