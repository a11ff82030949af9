"""Made-up traces, their replay, and `kvbridge bench policies`."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbridge.bench import traces
from kvbridge.bench.policies import PERCENT, policies
from kvbridge.bench.policies_replay import next_uses, replay, replay_clairvoyant
from kvbridge.bench.traces import TRACES, make_chat, make_mix, make_scans, make_shared
from kvbridge.errors import BackendConflictError
from kvbridge.policies import create_policy
from kvbridge.policies.lru import Lru

if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from pathlib import Path

    from kvbridge.bench.traces import Trace
    from tests.plugin_site import Site

SIZE = 6000
MAKERS = [make_chat, make_shared, make_scans, make_mix]
every_trace = pytest.mark.parametrize("make", MAKERS)


@every_trace
def test_a_seed_is_a_trace_of_about_the_size_that_was_asked_for(make: Callable[[int, int], Trace]) -> None:
    trace = make(3, SIZE)
    assert trace == make(3, SIZE)
    assert trace != make(4, SIZE)
    assert SIZE * 0.9 < sum(len(request) for request in trace) < SIZE * 2
    assert all(trace)


@every_trace
def test_a_key_stands_for_its_block_and_all_before_it(make: Callable[[int, int], Trace]) -> None:
    before: dict[bytes, bytes | None] = {}
    for request in make(0, SIZE):
        for one, key in zip([None, *request], request, strict=False):
            assert before.setdefault(key, one) == one


def test_chats_grow_and_their_users_begin_alike_and_some_talk_more() -> None:
    trace = make_chat(0, SIZE)
    known, grown = set[bytes](), 0
    for request in trace:
        grown += request[0] in known
        known.update(request)
        assert request[-1] in known
    users = Counter(request[0] for request in trace)
    assert grown > len(trace) / 2
    assert users.most_common(1)[0][1] > 5 * len(trace) / len(users)


def test_shared_prompts_are_long_and_questions_come_once() -> None:
    trace = make_shared(0, SIZE)
    asked = Counter(key for request in trace for key in request)
    assert all(asked[request[-1]] == 1 for request in trace)
    assert sum(asked[request[0]] > 1 for request in trace) > len(trace) / 2
    assert all(len(request) > 20 for request in trace)


def test_documents_are_read_once_between_hot_prompts() -> None:
    trace = make_scans(0, 60_000)
    asked = Counter(key for request in trace for key in request)
    once = sum(len(request) for request in trace if asked[request[0]] == 1)
    assert 0.5 < once / 60_000 < 0.9


def test_a_mix_keeps_the_order_of_its_parts() -> None:
    mixed, space = make_mix(0, SIZE), [1, 2, 3]
    for make, first in zip([make_chat, make_shared, make_scans], space, strict=True):
        assert [request for request in mixed if request[0][0] == first] == make(0, SIZE // 3)
    assert len({request[0][0] for request in mixed[:40]}) == 3


def chain(*numbers: int) -> list[bytes]:
    """Make the keys of a prompt of these blocks."""
    return [bytes(numbers[: end + 1]) for end in range(len(numbers))]


def test_only_the_unbroken_beginning_of_a_prompt_counts() -> None:
    long = chain(1, 2, 3, 4)
    assert replay([long, long], create_policy("lru", 4), 4) == 0.5
    assert replay([long, long], create_policy("lru", 3), 3) == 3 / 8  # the beginning of what is longer than the tier
    assert replay([long, chain(9), long], create_policy("lru", 4), 4) == 3 / 9  # the last block goes first
    assert replay([long, chain(9, 8), chain(1, 7)], create_policy("lru", 4), 4) == 1 / 8
    assert replay([chain(1, 2), chain(9), chain(1, 2)], Newest(2), 2) == 0  # the second block was there


class Newest(Lru):
    """Gives up what came in last."""

    def evict(self, pinned: Container[bytes]) -> bytes | None:
        newest = next((key for key in reversed(self._line) if key not in pinned), None)
        self.discard(newest or b"")
        return newest


def most(trace: Trace, capacity: int) -> int:
    """Try all choices of what to keep after each request, and return the most blocks that can be found."""

    @cache
    def best(number: int, inside: frozenset[bytes]) -> int:
        if number == len(trace):
            return 0
        request = trace[number]
        found = next((place for place, key in enumerate(request) if key not in inside), len(request))
        choice = sorted(inside | set(request))
        kept = itertools.combinations(choice, min(capacity, len(choice)))
        return found + max(best(number + 1, frozenset(keys)) for keys in kept)

    return best(0, frozenset())


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3), min_size=1, max_size=6),
    capacity=st.integers(1, 3),
)
def test_the_clairvoyant_bound_is_the_most_that_any_choice_finds(prompts: list[list[int]], capacity: int) -> None:
    trace = [chain(*prompt) for prompt in prompts]
    asked = sum(len(request) for request in trace)
    assert replay_clairvoyant(trace, next_uses(trace), capacity) == most(trace, capacity) / asked


@every_trace
def test_no_policy_finds_more_than_the_bound_and_with_room_for_all_all_find_what_can_be_found(
    make: Callable[[int, int], Trace],
) -> None:
    trace = make(1, SIZE)
    uses, distinct = next_uses(trace), len({key for request in trace for key in request})
    again = 1 - distinct / sum(len(request) for request in trace)
    for capacity in (1, distinct // 50, distinct // 5, distinct):
        bound = replay_clairvoyant(trace, uses, capacity)
        for name in ("arc", "lru", "s3fifo"):
            assert replay(trace, create_policy(name, capacity), capacity) <= bound
    assert bound == pytest.approx(again)
    assert replay(trace, create_policy("s3fifo", distinct), distinct) == pytest.approx(again)


@pytest.mark.parametrize("make", [make_scans, make_shared])
def test_scan_resistant_policies_find_more_among_scans_and_shared_prompts(make: Callable[[int, int], Trace]) -> None:
    trace = make(5, 60_000)
    capacity = len({key for request in trace for key in request}) // 20
    rate = {name: replay(trace, create_policy(name, capacity), capacity) for name in ("arc", "lru", "s3fifo")}
    assert min(rate["arc"], rate["s3fifo"]) > rate["lru"] * 1.1


class ForgetsPins(Lru):
    """Does not look at what is pinned."""

    def evict(self, pinned: Container[bytes]) -> bytes | None:
        return super().evict(())


class Invents(Lru):
    """Gives up what is not there."""

    def evict(self, pinned: Container[bytes]) -> bytes | None:
        return b"mine"


class GivesNothing(Lru):
    """Never finds a victim."""

    def evict(self, pinned: Container[bytes]) -> bytes | None:
        return None


@pytest.mark.parametrize(
    ("kind", "match"),
    [(ForgetsPins, "is pinned"), (Invents, "b'mine', which is not"), (GivesNothing, "gave up nothing")],
)
def test_a_policy_that_breaks_its_contract_is_named(kind: type[Lru], match: str) -> None:
    with pytest.raises(BackendConflictError, match=f"'lru'.*{match}"):
        replay([chain(1), chain(2), chain(1, 3)], kind(2), 2)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces that are short."""
    kinds = {name: (lambda seed, make=make: make(seed, SIZE)) for name, make in TRACES.items()}
    monkeypatch.setattr(traces, "TRACES", kinds)


@pytest.mark.usefixtures("short")
def test_the_command_draws_and_writes_figures_that_a_seed_repeats(tmp_path: Path) -> None:
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    for file in files:
        done = CliRunner().invoke(policies, ["--policy", "lru", "--policy", "arc", "--seed", "7", "--json", str(file)])
        assert done.exit_code == 0, done.output
    for part in (*TRACES, "lru", "arc", "clairvoyant", "█", "10 %"):
        assert part in done.output
    assert "s3fifo" not in done.output
    figures = json.loads(files[0].read_text())
    assert figures == json.loads(files[1].read_text())
    assert figures["seed"] == 7
    assert [trace["trace"] for trace in figures["traces"]] == list(TRACES)
    for trace in figures["traces"]:
        assert [tier["percent"] for tier in trace["tiers"]] == list(PERCENT)
        assert set(trace["tiers"][0]["hit_rate"]) == {"lru", "arc", "clairvoyant"}


@pytest.mark.usefixtures("short")
def test_the_command_replays_what_a_third_party_installed_and_says_what_is_wrong(site: Site, tmp_path: Path) -> None:
    text = "from kvbridge.policies.lru import Lru\nclass Mine(Lru):\n    name = 'mine'\n"
    site.write("mod_mine", text)
    site.install("dist-mine", "mine", "mod_mine:Mine", group="kvbridge.policies")
    assert "mine" in CliRunner().invoke(policies, []).output
    site.write("mod_bad", text.replace("'mine'", "'bad'") + "    def evict(self, pinned):\n        return b'x'\n")
    site.install("dist-bad", "bad", "mod_bad:Mine", group="kvbridge.policies")
    done = CliRunner().invoke(policies, ["--policy", "bad"])
    assert done.exit_code == 1
    assert "the policy 'bad' gave up b'x', which is not in the tier" in done.output.replace("\n", " ")
    done = CliRunner().invoke(policies, ["--policy", "lrv"])
    assert done.exit_code == 2
    assert "did you mean 'lru'" in done.output
    done = CliRunner().invoke(policies, ["--policy", "lru", "--json", str(tmp_path / "none" / "x.json")])
    assert done.exit_code == 1
