"""Keys: one name, one KV. Whatever the KV depends on is in the name, or the request is refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvbridge.errors import UnsupportedError
from kvbridge.reuse.keys import KEY_BYTES, block_keys, namespace, narrowed

FACTS = {"model": "m", "dtype": "bfloat16", "layout": "LBHNC", "weights": "abc"}
HASHES = [bytes([index]) * 32 for index in range(3)]


def test_equal_things_have_equal_keys_in_every_process() -> None:
    program = (
        "from kvbridge.reuse.keys import *\n"
        f"print([key.hex() for key in block_keys(narrowed(namespace({FACTS!r}, ''), [('adapter', 'v1')]), {HASHES!r})])"
    )
    said = set()
    for seed in ("0", "1", "random"):
        command = [sys.executable, "-c", program]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=True, env={"PYTHONHASHSEED": seed}
        )
        said.add(done.stdout)
    keys = block_keys(narrowed(namespace(FACTS, ""), [("adapter", "v1")]), HASHES)
    assert said == {f"{[key.hex() for key in keys]}\n"}
    assert {len(key) for key in keys} == {KEY_BYTES}


@pytest.mark.parametrize("field", sorted(FACTS))
def test_every_fact_is_in_the_key(field: str) -> None:
    there = block_keys(namespace(FACTS, ""), HASHES)
    assert not set(there) & set(block_keys(namespace({**FACTS, field: "other"}, ""), HASHES))


def test_the_epoch_of_the_weights_is_in_the_key() -> None:
    assert block_keys(namespace(FACTS, ""), HASHES) != block_keys(namespace(FACTS, "2"), HASHES)


def test_texts_do_not_run_into_each_other() -> None:
    assert namespace({"a": "bc"}, "") != namespace({"ab": "c"}, "")
    assert namespace({"a": "b", "c": "d"}, "") != namespace({"a": "bcd"}, "")


@pytest.mark.parametrize("dimension", ["adapter", "cache_salt", "multimodal"])
def test_what_a_request_depends_on_is_in_the_key(dimension: str) -> None:
    space = namespace(FACTS, "")
    spaces = {space, narrowed(space, [(dimension, "one")]), narrowed(space, [(dimension, "two")])}
    assert len(spaces) == 3
    assert narrowed(space, []) == space


def test_an_unknown_dimension_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"depends on prompt_embeds, .* neither kept nor looked up"):
        narrowed(namespace(FACTS, ""), [("adapter", "a"), ("prompt_embeds", "b")])
