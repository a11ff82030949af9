"""`kvbridge new-backend`: it writes a project that conforms as it is, whatever its name, and overwrites nothing."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING, get_args

import pytest
from click.testing import CliRunner, Result

from kvbridge.cli import new_backend
from kvbridge.cli.main import main
from kvbridge.conformance.results import read_report
from tests.doors.author import EXAMPLE, ROOT, TEMPLATES, Author, texts

if TYPE_CHECKING:
    from pathlib import Path

KINDS = get_args(new_backend.Kind)
NAMES = {"transport": "mine", "store": "shelf"}
ODD_NAMES = ["x", "s3", "abc_def", "z" * new_backend.LONGEST]
"""Names that change the order and the length of lines."""


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["new-backend", *arguments])


def tool(folder: Path, *command: str) -> None:
    """Run a tool on a project, with the project's own settings."""
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def author(tmp_path_factory: pytest.TempPathFactory) -> Author:
    """Somebody who typed the command for each kind, and installed what it wrote."""
    made = Author(tmp_path_factory.mktemp("author"))
    for kind, name in NAMES.items():
        done = made.kvbridge("new-backend", name, "--kind", kind)
        assert done.returncode == 0, done.stdout + done.stderr
        made.install(made.home / f"kvbridge-{name}")
    return made


# -- what is written ------------------------------------------------------------------------------------------


def test_the_example_is_what_the_command_writes_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_backend, "check_name", lambda _: None)  # the example may be installed here
    assert call("example_tcp", "--to", str(tmp_path / "written")).exit_code == 0
    assert texts(tmp_path / "written") == texts(EXAMPLE)
    assert texts(TEMPLATES / "transport") == texts(EXAMPLE), "copy plugins/example_backend to kvbridge/scaffold"


@pytest.mark.parametrize("kind", KINDS)
def test_every_place_has_the_new_name(tmp_path: Path, kind: str) -> None:
    assert call("my_own_thing", "--kind", kind, "--to", str(tmp_path)).exit_code == 0
    written = texts(tmp_path)
    assert "src/kvbridge_my_own_thing/backend.py" in written
    assert "class MyOwnThingBackend(" in written["src/kvbridge_my_own_thing/backend.py"]
    assert 'name = "kvbridge-my-own-thing"' in written["pyproject.toml"]
    assert 'my_own_thing = "kvbridge_my_own_thing:MyOwnThingBackend"' in written["pyproject.toml"]
    for path, text in written.items():
        assert "example" not in f"{path} {text}".lower(), path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ODD_NAMES)
def test_it_is_clean_under_any_name(tmp_path: Path, kind: str, name: str) -> None:
    assert call(name, "--kind", kind, "--to", str(tmp_path)).exit_code == 0
    tool(tmp_path, "ruff", "check", "--no-cache")
    tool(tmp_path, "ruff", "format", "--check", "--no-cache")


@pytest.mark.parametrize("kind", KINDS)
def test_its_types_are_right(tmp_path: Path, kind: str) -> None:
    assert call("mine", "--kind", kind, "--to", str(tmp_path)).exit_code == 0
    tool(tmp_path, "mypy")


def test_it_says_what_it_wrote_and_what_to_type_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = call("my_thing").stdout.splitlines()
    assert {line.strip() for line in said} >= {*texts(tmp_path / "kvbridge-my-thing")}
    assert [line.strip() for line in said[-3:]] == [
        "cd kvbridge-my-thing",
        "pip install -e '.[dev]'",
        "python -m pytest --kvbridge-backend=my_thing",
    ]


def test_the_wheel_brings_the_templates(tmp_path: Path) -> None:
    tool(ROOT, "pip", "wheel", ".", "-q", "--no-index", "--no-deps", "--no-build-isolation", "-w", str(tmp_path))
    (wheel,) = tmp_path.glob("*.whl")
    prefix = "kvbridge/scaffold/"
    found = {name.removeprefix(prefix) for name in zipfile.ZipFile(wheel).namelist() if name.startswith(prefix)}
    assert found == set(texts(TEMPLATES))


# -- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["", "Mine", "my-thing", "2x", "_x", "x_", "a__b", "class", "naïve", "a.b", "../x", "x\n", "z" * 25]
)
def test_a_name_that_cannot_be_used_is_refused(tmp_path: Path, name: str) -> None:
    result = call("--to", str(tmp_path / "new"), "--", name)
    assert result.exit_code == 2
    assert f"the name is {name!r}, expected" in result.stderr
    assert not (tmp_path / "new").exists()


def test_the_name_of_an_installed_backend_is_refused_with_its_distribution(tmp_path: Path) -> None:
    result = call("cpu", "--to", str(tmp_path / "new"))
    assert result.exit_code == 2
    assert "kvbridge 0.1.0 brings a backend 'cpu' already" in result.stderr
    assert not (tmp_path / "new").exists()


def test_the_name_of_an_installed_package_is_refused(tmp_path: Path) -> None:
    result = call("vllm", "--to", str(tmp_path / "new"))
    assert result.exit_code == 2
    assert "there is a package kvbridge_vllm already" in result.stderr


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine\n")
    result = call("mine", "--to", str(tmp_path))
    assert result.exit_code == 2
    assert "is not empty: nothing was written" in result.stderr
    assert texts(tmp_path) == {"README.md": "mine\n"}
    assert "is no folder" in call("mine", "--to", str(tmp_path / "README.md")).stderr


def test_a_folder_that_cannot_be_made_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = call("mine", "--to", str(tmp_path / "file/new"))
    assert result.exit_code == 2
    assert "file/new" in result.stderr
    assert not isinstance(result.exception, OSError)


# -- what it does ---------------------------------------------------------------------------------------------


def test_a_new_store_conforms_as_it_is(author: Author, tmp_path: Path) -> None:
    done = author.kvbridge("conformance", "shelf", "--json", tmp_path / "report.json", timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    report = read_report(tmp_path / "report.json")
    assert report.exit_code == 0
    assert report.capabilities["shared"] is True


def test_a_new_transport_passes_what_was_selected(author: Author) -> None:
    done = author.kvbridge("conformance", "mine", "backend", "pipe/1", "buffer/0", "connector/01")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES.values())
def test_its_own_tests_pass_beside_the_suite(author: Author, name: str) -> None:
    project = author.home / f"kvbridge-{name}"
    done = author.pytest(f"--kvbridge-backend={name}", "--kvbridge-select=buffer/01", cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"tests/test_{name}.py" in done.stdout


def test_both_are_chosen_by_configuration(author: Author) -> None:
    done = author.kvbridge("backends")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kvbridge-mine 0.1.0" in done.stdout
    assert "kvbridge-shelf 0.1.0" in done.stdout
