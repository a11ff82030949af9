"""The decision of a handshake, field by field."""

from __future__ import annotations

from typing import Any

import pytest

from kvbridge.control.handshake import differences, refusal, refused_error
from kvbridge.control.messages import PROTOCOL, Hello, Identity, Refused, decode, encode

HERE = {"dtype": "bfloat16", "block_size": "16"}


def identity(backend: str = "cpu", **fingerprint: str) -> Identity:
    return Identity("peer", 5, backend, {**HERE, **fingerprint}, b"card")


def decide(there: Identity, protocol: int = PROTOCOL, reason: str | None = None) -> Refused | None:
    return refusal(Hello(protocol, there), identity(), lambda card: reason if card == b"card" else "wrong card")


def test_differences_are_listed_by_field_with_both_values() -> None:
    assert differences({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "x", "d": "4"}) == (
        ("b", "2", "x"),
        ("c", "3", "(absent)"),
        ("d", "(absent)", "4"),
    )
    assert differences({}, {}) == ()
    assert differences({"a": "(absent)"}, {}) == (("a", "(absent)", "(absent)"),)


def test_equal_peers_are_accepted_whatever_their_names() -> None:
    assert decide(Identity("another name", 99, "cpu", dict(reversed(HERE.items())), b"card")) is None


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (identity(dtype="float16"), (("dtype", "bfloat16", "float16"),)),
        (identity(extra="1"), (("extra", "(absent)", "1"),)),
        (identity("nixl"), (("backend", "cpu", "nixl"),)),
        (identity("nixl", dtype="fp8"), (("backend", "cpu", "nixl"), ("dtype", "bfloat16", "fp8"))),
        (
            Identity("peer", 5, "cpu", {}, b"card"),
            (("block_size", "16", "(absent)"), ("dtype", "bfloat16", "(absent)")),
        ),
    ],
)
def test_each_differing_field_refuses(there: Identity, expected: Any) -> None:
    refused = decide(there)
    assert refused is not None
    assert (refused.code, refused.differences) == ("handshake", expected)


def test_another_protocol_is_refused_before_anything_else_is_looked_at() -> None:
    refused = decide(identity("nixl"), protocol=PROTOCOL + 1, reason="not asked")
    assert refused is not None
    assert (refused.code, refused.differences) == ("protocol", (("protocol", f"{PROTOCOL}", f"{PROTOCOL + 1}"),))


def test_a_card_that_the_backend_does_not_take_is_refused_with_its_reason() -> None:
    refused = decide(identity(), reason="the cable is cut")
    assert refused is not None
    assert (refused.message, refused.differences) == ("the cable is cut", ())


def test_the_dialling_side_reads_the_differences_from_its_own_side() -> None:
    error = refused_error(Refused("handshake", "no", (("dtype", "theirs", "ours"),)), "tcp://a:1")
    assert error.differences == (("dtype", "ours", "theirs"),)
    assert "dtype: ours here, theirs at the peer" in str(error)
    assert str(error).startswith("tcp://a:1 refused the handshake: no")
    assert str(refused_error(Refused("x", "the cable is cut"), "a")).endswith("the cable is cut")


@pytest.mark.parametrize("count", [1, 64, 128])
@pytest.mark.parametrize("value", ["x", "x" * 4096])
def test_a_refusal_is_always_a_message_that_the_peer_can_read(count: int, value: str) -> None:
    here = Identity("a", 5, "cpu", {f"a{n}": value for n in range(count)}, b"")
    there = Identity("b", 6, "nixl", {f"b{n}": value for n in range(count)}, b"")
    refused = refusal(Hello(PROTOCOL, there), here, lambda card: None)
    assert refused is not None
    frame = encode(refused)
    assert len(frame) < 1 << 20
    assert decode(frame) == refused


def test_a_reason_of_any_length_is_a_message_that_the_peer_can_read() -> None:
    refused = decide(identity(), reason="because " * 10_000)
    assert refused is not None
    assert decode(encode(refused)) == refused
