"""The digest of a prompt: equal only for what has equal KV."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvbridge.connector.digest import DIGEST_BYTES, prompt_digest

TOKENS = st.lists(st.integers(0, 2**40), max_size=20)
EXTRA = st.lists(st.tuples(st.sampled_from(["salt", "lora", "mm"]), st.text(max_size=5)), max_size=3)


@given(TOKENS, TOKENS, EXTRA, EXTRA)
def test_two_prompts_have_one_digest_only_if_they_are_the_same(
    tokens: list[int], others: list[int], extra: list[tuple[str, str]], other_extra: list[tuple[str, str]]
) -> None:
    one, two = prompt_digest(tokens, extra), prompt_digest(others, other_extra)
    assert len(one) == DIGEST_BYTES
    assert (one == two) == (tokens == others and sorted(extra) == sorted(other_extra))


def test_no_dimension_can_be_written_as_another() -> None:
    cases = [
        ([1], []),
        ([1], [("salt", "")]),
        ([1], [("salt", "x")]),
        ([1], [("saltx", "")]),
        ([1], [("sal", "tx")]),
        ([1], [("salt", "x"), ("salt", "x")]),
        ([1], [("lora", "x")]),
        ([1, 0], []),
        ([0, 1], []),
        ([1 << 32], []),
        ([], [("tokens", "\1\0\0\0\0\0\0\0")]),
        ([], []),
    ]
    assert len({prompt_digest(tokens, extra) for tokens, extra in cases}) == len(cases)


def test_the_order_of_dimensions_and_the_kind_of_sequence_do_not_matter() -> None:
    assert prompt_digest([1, 2], [("a", "1"), ("b", "2")]) == prompt_digest((1, 2), [("b", "2"), ("a", "1")])
