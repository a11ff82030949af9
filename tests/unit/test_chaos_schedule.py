"""`kvbridge chaos` without engines: what a seed makes happen, and to whom."""

from __future__ import annotations

import itertools

import pytest

from kvbridge_vllm.chaos.schedule import (
    ENGINES,
    LONGEST,
    RESTART,
    WAYS,
    Fault,
    make_schedule,
)
from kvbridge_vllm.chaos.strikes import rules_of

SEEDS = range(12)


def test_a_seed_always_makes_the_same_schedule() -> None:
    assert make_schedule(1, 200) == make_schedule(1, 200)
    assert make_schedule(1, 200) != make_schedule(2, 200)


def test_the_schedule_of_a_seed_stays_what_it_is_from_version_to_version() -> None:
    """A seed that found a defect has to find it again."""
    schedule = make_schedule(1, 3)
    assert [(one.way, one.length, one.at) for one in schedule.requests] == KNOWN_REQUESTS
    assert [str(one) for one in schedule.faults] == KNOWN_FAULTS


KNOWN_REQUESTS = [("router", 341, 0.631), ("router", 520, 1.607), ("leave", 144, 2.459)]
KNOWN_FAULTS = [
    "kill: decode-1 for 2.7 s",
    "stop: prefill-1 for 0.9 s",
    "partition: prefill-0 for 6.8 s",
    "stop: prefill-1 for 7.2 s",
    "delay by 0.72 s: decode-0 for 5.8 s",
]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_kind_of_fault_strikes_even_in_a_short_run(seed: int) -> None:
    faults = make_schedule(seed, 40).faults
    assert {fault.kind for fault in faults} >= {"kill", "stop", "delay", "loss", "partition"}


@pytest.mark.parametrize("seed", SEEDS)
def test_faults_of_one_engine_do_not_overlap_and_no_two_of_a_kind_are_dead_at_one_time(seed: int) -> None:
    faults = make_schedule(seed, 300).faults
    assert len(faults) >= 20
    for first, second in itertools.combinations(faults, 2):
        first_over = first.at + (RESTART if first.kind == "kill" else first.seconds)
        doubles_killed = first.kind == second.kind == "kill" and first.engine[:4] == second.engine[:4]
        if first.engine == second.engine or doubles_killed:
            assert second.at >= first_over


def test_all_ways_and_lengths_occur_and_times_only_grow() -> None:
    requests = make_schedule(3, 200).requests
    assert {one.way for one in requests} == set(WAYS)
    assert min(one.length for one in requests) == 1
    assert max(one.length for one in requests) > LONGEST * 0.9
    assert all(0 <= one.shared < one.length <= LONGEST for one in requests)
    assert [one.at for one in requests] == sorted(one.at for one in requests)
    assert {one.prefill for one in requests} | {one.decode for one in requests} == set(ENGINES)


def test_prompts_share_beginnings_and_a_new_attempt_makes_another_end() -> None:
    schedule = make_schedule(4, 100)
    shared = [one for one in schedule.requests if one.shared]
    first, second = next(pair for pair in itertools.combinations(shared, 2) if pair[0].document == pair[1].document)
    common = min(first.shared, second.shared)
    assert schedule.prompt(first)[:common] == schedule.prompt(second)[:common]
    for one in schedule.requests:
        assert len(schedule.prompt(one)) == one.length
    assert schedule.prompt(first) != schedule.prompt(first, 1)
    assert schedule.prompt(first)[: first.shared] == schedule.prompt(first, 1)[: first.shared]


def test_a_partition_cuts_both_directions_and_other_faults_only_what_their_engine_hears() -> None:
    cut = rules_of(Fault("partition", "prefill-0", 0, 5, 1), until=7.0)
    assert cut["prefill-0"].sender == ""
    assert {cut[name].sender for name in ENGINES if name != "prefill-0"} == {"prefill-0"}
    assert {rule.kind for rule in cut.values()} == {"drop"}
    lossy = rules_of(Fault("loss", "decode-1", 0, 5, 0.3), until=7.0)
    assert {name: (rule.kind, rule.share, rule.until) for name, rule in lossy.items()} == {
        "decode-1": ("drop", 0.3, 7.0)
    }
    late = rules_of(Fault("delay", "decode-1", 0, 5, 0.3), until=7.0)
    assert {name: (rule.kind, rule.seconds) for name, rule in late.items()} == {"decode-1": ("delay", 0.3)}
    assert rules_of(Fault("kill", "decode-1", 0, 5, 0.3), until=7.0) == {}
