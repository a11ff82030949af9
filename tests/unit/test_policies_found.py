"""Eviction policies are found by entry point, a third party's as ours."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from kvbridge.errors import BackendConflictError, BackendImportError, ConfigError
from kvbridge.policies import GROUP, create_policy, list_policies, load_policy

if TYPE_CHECKING:
    from tests.plugin_site import Site

NAMES = ["arc", "lru", "s3fifo"]


def test_first_party_policies_come_in_by_the_public_door() -> None:
    assert set(NAMES) <= set(list_policies())
    assert [create_policy(name, 3).name for name in NAMES] == NAMES


MINE = "from kvbridge.policies.lru import Lru\nclass Mine(Lru):\n    name = 'mine'\n"


def test_a_policy_of_a_third_party_is_listed_without_its_import_and_made(site: Site) -> None:
    site.write("mod_mine", MINE)
    site.install("dist-mine", "mine", "mod_mine:Mine", group=GROUP)
    assert {"lru", "mine"} <= set(list_policies())
    assert "mod_mine" not in sys.modules
    assert create_policy("mine", 3).name == "mine"
    site.install("evil-dist", "mine", "mod_mine:Mine", version="2.5", group=GROUP)
    assert list_policies().count("mine") == 1
    with pytest.raises(BackendConflictError, match=r"dist-mine 1\.0.*evil-dist 2\.5.*uninstall"):
        load_policy("mine")
    assert load_policy("lru")


def test_an_unknown_name_and_a_capacity_of_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'s3fif0'; did you mean 's3fifo'\? Known: arc, lru, s3fifo"):
        create_policy("s3fif0", 3)
    with pytest.raises(ConfigError, match="found a capacity of 0 keys"):
        create_policy("lru", 0)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("Mine = 3\n", "is 3, expected a subclass"),
        ("class Mine: pass\n", "expected a subclass"),
        (MINE.replace("'mine'", "'other'"), "calls itself 'other'"),
        ("from kvbridge.abc.policy import Policy\nclass Mine(Policy):\n    name = 'mine'\n", "lacks.*discard, evict"),
    ],
)
def test_what_is_not_a_policy_is_refused_by_what_it_is(site: Site, text: str, match: str) -> None:
    site.write("mod_mine", text)
    site.install("dist-mine", "mine", "mod_mine:Mine", group=GROUP)
    with pytest.raises(BackendConflictError, match=match):
        load_policy("mine")


def test_a_policy_that_fails_at_import_is_an_error_with_the_cause(site: Site) -> None:
    site.write("mod_mine", "raise ValueError('no')\n")
    site.install("dist-mine", "mine", "mod_mine:Mine", group=GROUP)
    with pytest.raises(BackendImportError, match=r"'mine' of dist-mine 1\.0") as found:
        load_policy("mine")
    assert found.value.__cause__ is not None
