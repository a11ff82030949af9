"""What is told of kept blocks, event by event, in vLLM's classes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge.connector.reuse_observer import Kept

if TYPE_CHECKING:
    from kvbridge_vllm.events import EventLog

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore"),  # importing vLLM warns about things that are not ours
]

SIZE = 4


@pytest.fixture
def log() -> EventLog:
    from kvbridge_vllm.events import EventLog

    return EventLog(SIZE, 1)


def blocks(epoch: str, count: int = 3) -> list[Kept]:
    """The first blocks of one prompt, under the keys of an epoch: vLLM's hashes stay the same."""
    request = SimpleNamespace(
        all_token_ids=list(range(count * SIZE)),
        block_hashes=[b"%032d" % index for index in range(count)],
        lora_request=None,
        mm_features=[],
        cache_salt=None,
        prompt_embeds=None,
    )
    return [Kept(f"{epoch}{index}".encode(), request, index) for index in range(count)]


def keys(found: list[Kept]) -> list[bytes]:
    return [one.key for one in found]


def told(log: EventLog) -> list[tuple[str, str, int]]:
    events: list[Any] = list(log.take())
    return [(type(one).__name__, one.medium, len(one.block_hashes)) for one in events]


def test_neighbours_are_one_event_with_their_tokens_and_their_parent(log: EventLog) -> None:
    found = blocks("a")
    log.kept(found[:1])
    log.kept(found[1:])
    events: list[Any] = log.take()
    first, second = events
    assert (first.parent_block_hash, second.parent_block_hash) == (None, first.block_hashes[0])
    assert (first.token_ids, second.token_ids) == (list(range(4)), list(range(4, 12)))


def test_a_block_is_told_once_for_each_medium_and_removed_only_where_it_was(log: EventLog) -> None:
    found = blocks("a")
    log.kept(found)
    log.kept(found)
    log.kept_below(keys(found))
    assert told(log) == [("BlockStored", "CPU", 3), ("BlockStored", "STORAGE", 3)]
    log.gone(keys(found))
    log.gone(keys(found))
    log.back(keys(found))
    assert told(log) == [("BlockRemoved", "CPU", 3), ("BlockStored", "CPU", 3)]
    log.gone_below(keys(found[1:]))
    assert told(log) == [("BlockRemoved", "STORAGE", 2)]


def test_what_was_cleared_is_gone_everywhere_and_can_come_again_under_other_keys(log: EventLog) -> None:
    old, new = blocks("a"), blocks("b")
    log.kept(old)
    log.kept_below(keys(old[:2]))
    log.gone(keys(old[:1]))
    log.take()
    log.cleared()
    assert told(log) == [("BlockRemoved", "CPU", 2), ("BlockRemoved", "STORAGE", 2)]
    log.kept_below(keys(old))  # was under way
    log.kept(new)
    log.kept_below(keys(new))
    assert told(log) == [("BlockStored", "CPU", 3), ("BlockStored", "STORAGE", 3)]
