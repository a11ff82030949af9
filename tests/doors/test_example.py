"""The example as its author sees it: a project of its own, installed where kvbridge is, through each door."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from kvbridge.conformance.results import Outcome, read_report
from tests.doors.author import EXAMPLE, Author

if TYPE_CHECKING:
    from pathlib import Path

ENGINE = {
    "kv_connector": "KVBridgeConnector",
    "kv_role": "kv_producer",
    "kv_connector_extra_config": {"backend": "example_tcp"},
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("author") / "project"
    shutil.copytree(EXAMPLE, folder)
    return folder


@pytest.fixture(scope="module")
def author(project: Path) -> Author:
    made = Author(project.parent)
    made.install(project)
    return made


def test_it_is_listed_with_its_distribution_and_works_here(author: Author) -> None:
    done = author.kvbridge("backends", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = [row for row in json.loads(done.stdout) if row["name"] == "example_tcp"]
    assert (row["distribution"], row["version"]) == ("kvbridge-example-tcp", "0.1.0")
    assert row["available"] is True
    assert row["capabilities"]["mover"] == "consumer"


def test_an_engine_selects_it_by_configuration_alone(author: Author) -> None:
    done = author.kvbridge("check", json.dumps(ENGINE))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("right")


def test_an_option_that_it_does_not_have_is_found_before_an_engine_starts(author: Author) -> None:
    extra = {"backend": "example_tcp", "options": {"hots": "10.0.0.5"}}
    done = author.kvbridge("check", json.dumps({**ENGINE, "kv_connector_extra_config": extra}))
    assert done.returncode == 1
    assert "did you mean 'host'?" in done.stderr


def test_the_command_says_that_it_conforms(author: Author, tmp_path: Path) -> None:
    done = author.kvbridge("conformance", "example_tcp", "--json", tmp_path / "report.json", timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    report = read_report(tmp_path / "report.json")
    assert report.exit_code == 0
    assert report.distribution == "kvbridge-example-tcp 0.1.0"
    assert report.peers == "process"
    found = {result.part: result.outcome for result in report.results if result.outcome is Outcome.PASSED}
    assert set(found) == {"backend", "pipe", "buffer", "connector", "fault", "perf"}
    assert not report.count(Outcome.WAIVED)


def test_pytest_runs_the_suite_from_an_empty_folder(author: Author) -> None:
    assert not any(path.suffix == ".py" for path in author.home.iterdir())
    done = author.pytest("--kvbridge-backend=example_tcp", "--kvbridge-select=buffer/0", "-v")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "buffer/01-value PASSED" in done.stdout
    assert "kvbridge conformance of example_tcp" in done.stdout


def test_pytest_runs_the_suite_beside_the_authors_own_tests(author: Author, project: Path) -> None:
    done = author.pytest("--kvbridge-backend=example_tcp", "--kvbridge-select=pipe/01", "-v", cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
    own = done.stdout.index("test_example_tcp.py::test_a_value_goes_from_one_endpoint_to_another PASSED")
    suite = done.stdout.index("pipe/01-tensor PASSED")
    assert own < suite


def test_without_the_option_pytest_runs_the_authors_own_tests_alone(author: Author, project: Path) -> None:
    done = author.pytest("--collect-only", "-q", cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_example_tcp.py" in done.stdout
    assert "conformance" not in done.stdout
