"""Backends are found by entry point, one by one, and no plugin can hide or break another."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from kvbridge.errors import BackendConflictError, BackendNotFoundError, ConfigError, KVBridgeError
from kvbridge.registry import create_backend, find_backend, list_backends, load_backend
from kvbridge_cpu import CpuBackend

if TYPE_CHECKING:
    from tests.plugin_site import Site


def test_the_cpu_backend_comes_in_by_the_public_door() -> None:
    entry = find_backend("cpu")
    assert (entry.name, entry.target, entry.distribution) == ("cpu", "kvbridge_cpu:CpuBackend", "kvbridge")
    assert load_backend("cpu") is CpuBackend


def test_a_backend_that_was_installed_a_moment_ago_is_found_loaded_and_made(site: Site) -> None:
    with pytest.raises(BackendNotFoundError):
        find_backend("mine")
    site.backend("mine")
    entry = find_backend("mine")
    assert (entry.name, entry.distribution, entry.version) == ("mine", "dist-mine", "1.0")
    assert "mod_mine" not in sys.modules
    backend = create_backend("mine", {"size": 7})
    assert backend.capabilities.max_value_bytes == 7
    assert {"cpu", "mine"} <= {entry.name for entry in list_backends()}


def test_options_are_checked_before_a_backend_is_made(site: Site) -> None:
    site.backend("mine")
    with pytest.raises(ConfigError, match=r"there\.sise: unknown option; did you mean 'size'"):
        create_backend("mine", {"sise": 7}, "there")
    with pytest.raises(ConfigError, match=r"there\.size"):
        create_backend("mine", {"size": "7"}, "there")


def test_an_unknown_name_gets_the_nearest_and_all_that_are_installed(site: Site) -> None:
    site.backend("weather")
    with pytest.raises(BackendNotFoundError, match=r"'waether'.*did you mean 'weather'.*Known: .*cpu.*weather"):
        load_backend("waether")
    with pytest.raises(BackendNotFoundError):
        load_backend("")


def test_two_distributions_of_one_name_are_refused_and_both_are_named(site: Site) -> None:
    site.backend("between")
    site.backend("mine", distribution="first-dist")
    site.install("second-dist", "mine", "mod_mine:MineBackend", version="2.5")
    with pytest.raises(BackendConflictError) as found:
        load_backend("mine")
    for part in ("first-dist 1.0", "second-dist 2.5", "uninstall"):
        assert part in str(found.value)
    assert "mod_mine" not in sys.modules
    names = [entry.name for entry in list_backends()]
    assert names.count("mine") == 2
    assert load_backend("cpu") is CpuBackend
    assert load_backend("between")


def test_a_third_party_cannot_take_the_place_of_a_first_party_backend(site: Site) -> None:
    site.install("evil-dist", "cpu", "mod_evil:Evil")
    with pytest.raises(BackendConflictError, match=r"evil-dist 1\.0.*kvbridge|kvbridge.*evil-dist 1\.0"):
        load_backend("cpu")


def test_one_distribution_found_twice_on_the_path_counts_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.backend("mine")
    monkeypatch.setattr(sys, "path", [*sys.path, f"{site.folder}/."])
    assert [entry.name for entry in list_backends()].count("mine") == 1
    assert load_backend("mine")


@pytest.mark.parametrize(
    "before",
    [
        "raise ValueError('no driver here')\n",
        "raise AssertionError('no driver here')\n",
        "import a_library_that_is_not_installed_no_driver_here\n",
        "def broken(:\n    'no driver here'\n",
        "import sys; sys.exit('no driver here')\n",
        "raise GeneratorExit('no driver here')\n",
    ],
    ids=["value", "assertion", "import", "syntax", "exit", "base"],
)
def test_a_plugin_that_fails_at_import_is_an_error_of_its_own_with_the_cause(site: Site, before: str) -> None:
    site.backend("broken", before=before)
    site.backend("mine")
    assert {"broken", "mine", "cpu"} <= {entry.name for entry in list_backends()}
    with pytest.raises(BackendConflictError, match=r"'broken' of dist-broken 1\.0") as found:
        load_backend("broken")
    assert found.value.__cause__ is not None
    assert "syntax" in str(found.value) or "no" in str(found.value)
    assert load_backend("mine")


def test_a_user_who_interrupts_an_import_is_obeyed(site: Site) -> None:
    site.backend("slow", before="raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load_backend("slow")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("MineBackend = 3\n", "is 3, expected a subclass"),
        ("class MineBackend: pass\n", "expected a subclass"),
        ("def MineBackend(options): pass\n", "expected a subclass"),
        ("MineBackend = []\n", "expected a subclass"),
        ("import kvbridge.abc\nMineBackend = kvbridge.abc.Backend\n", "calls itself None"),
        ("other = 1\n", "cannot be imported"),
    ],
)
def test_what_is_not_a_backend_is_refused_by_what_it_is(site: Site, text: str, match: str) -> None:
    site.write("mod_wrong", text)
    site.install("dist-wrong", "wrong", "mod_wrong:MineBackend")
    with pytest.raises(BackendConflictError, match=match):
        load_backend("wrong")


def test_a_backend_that_calls_itself_otherwise_is_refused(site: Site) -> None:
    site.backend("mine")
    site.install("dist-alias", "alias", "mod_mine:MineBackend")
    with pytest.raises(BackendConflictError, match="calls itself 'mine'"):
        load_backend("alias")


def test_a_backend_that_leaves_out_what_it_must_write_is_refused(site: Site) -> None:
    site.write("mod_half", "from kvbridge.abc import Backend\nclass Half(Backend):\n    name = 'half'\n")
    site.install("dist-half", "half", "mod_half:Half")
    with pytest.raises(KVBridgeError):
        create_backend("half", {})


@pytest.mark.parametrize("metadata", ["", "Metadata-Version: 2.1\n", "\0\xff nonsense"])
def test_a_distribution_with_broken_metadata_hides_no_other(site: Site, metadata: str) -> None:
    site.backend("mine")
    site.install("dist-broken", "broken", "mod_x:X", metadata=metadata)
    assert {"cpu", "mine"} <= {entry.name for entry in list_backends()}
    assert load_backend("mine")


@pytest.mark.parametrize("target", ["mod_x", "mod_x:", "", ":", "not a target", "mod_x:A:B"])
def test_an_entry_point_that_is_none_hides_no_other(site: Site, target: str) -> None:
    site.backend("mine")
    site.install("dist-odd", "odd", target)
    assert {"cpu", "mine"} <= {entry.name for entry in list_backends()}
    assert load_backend("mine")
    with pytest.raises(KVBridgeError):
        load_backend("odd")
