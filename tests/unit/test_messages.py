"""Messages: what fits comes back equal, what breaks a limit or a type is refused, whatever a peer sends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbridge.control import messages
from kvbridge.control.messages import (
    MAX_KEYS,
    MAX_MESSAGE_BYTES,
    Answer,
    Ask,
    Done,
    Hello,
    Identity,
    Message,
    Offer,
    Refused,
    Select,
    decode,
    encode,
)
from kvbridge.memory import PagesSpec, TensorSpec

KINDS = [*typing.get_args(messages.Handshake), *typing.get_args(messages.Routed)]
DROPPED = (msgspec.DecodeError, RecursionError)
"""What the endpoint catches: it drops the frame and counts it."""

IDENTITY = Identity("engine 1 rank 0", 5, "cpu", {"dtype": "bfloat16"}, b"card")
EXAMPLES: dict[type, tuple[Any, ...]] = {
    Hello: (1, IDENTITY),
    messages.Welcome: (IDENTITY,),
    Refused: ("handshake", "no", (("dtype", "a", "b"),)),
    messages.Bye: ("closed", "bye"),
    Offer: ("buffer", 1, 2, PagesSpec((64, 32), (3, 3)), b"descriptor", 10.0),
    messages.Accept: ("buffer", 1, b"descriptor"),
    messages.Landed: ("buffer", 1, "transport", "no"),
    Done: ("buffer", 1, True),
    messages.Withdrawn: ("buffer", 1, "expired", "late"),
    messages.Renewed: ("buffer", 1, 10.0),
    messages.End: ("pipe:x",),
    Select: ("buffer", 1, "key", b"digest", True, 5.0),
    messages.Miss: ("buffer", 1, "consumed", "gone"),
    Ask: ("buffer", 1, ("a", "b")),
    Answer: ("buffer", 1, (True, False)),
    messages.Drop: ("buffer", 1, ("a",)),
    messages.Ping: (),
    messages.Pong: (),
    messages.Push: ("push", "k", b"d", 5),
    messages.Fence: (7,),
    messages.Fenced: (7,),
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_message_comes_back_as_it_was_sent(kind: type) -> None:
    message = kind(*EXAMPLES.get(kind, ("buffer", 1)))
    frame = encode(message)
    assert len(frame) < MAX_MESSAGE_BYTES
    assert decode(frame) == message


def test_a_tensor_and_pages_in_an_offer_are_told_apart() -> None:
    tensors = (TensorSpec("bfloat16", (2, 3), 2, "torch"), TensorSpec("bool", (), 1, "numpy"))
    for spec in (*tensors, PagesSpec((64,), (2,))):
        assert decode(encode(Offer("c", 0, 0, spec, b"", 1.0))) == Offer("c", 0, 0, spec, b"", 1.0)


def test_the_largest_question_fits_into_a_message() -> None:
    question = Ask("buffer", 1, tuple(f"{n}".rjust(256, "x") for n in range(MAX_KEYS)))
    assert len(encode(question)) <= MAX_MESSAGE_BYTES
    assert decode(encode(question)) == question


LONG = "x" * 5000
WRONG: list[dict[str, Any]] = [
    {"type": "Done", "channel": "c", "seq": 1},
    {"type": "Done", "channel": "c", "seq": 1, "taken": 1},
    {"type": "Done", "channel": "c", "seq": "1", "taken": True},
    {"type": "Done", "channel": "c", "seq": 1.5, "taken": True},
    {"type": "Done", "channel": "c", "seq": -1, "taken": True},
    {"type": "Done", "channel": "c", "seq": 1 << 63, "taken": True},
    {"type": "Done", "channel": "x" * 65, "seq": 1, "taken": True},
    {"type": "Done", "channel": None, "seq": 1, "taken": True},
    {"type": "Done", "channel": b"c", "seq": 1, "taken": True},
    {"type": "Select", "channel": "c", "xid": 1, "key": "", "digest": b"", "take": True, "wait": 1.0},
    {"type": "Select", "channel": "c", "xid": 1, "key": "x" * 257, "digest": b"", "take": True, "wait": 1.0},
    {"type": "Select", "channel": "c", "xid": 1, "key": "k", "digest": b"x" * 65, "take": True, "wait": 1.0},
    {"type": "Select", "channel": "c", "xid": 1, "key": "k", "digest": b"", "take": True, "wait": -1.0},
    {"type": "Select", "channel": "c", "xid": 1, "key": "k", "digest": b"", "take": True, "wait": 1e9},
    {"type": "Select", "channel": "c", "xid": 1, "key": "k", "digest": b"", "take": True, "wait": float("nan")},
    {"type": "Select", "channel": "c", "xid": 1, "key": "k", "digest": b"", "take": True, "wait": float("inf")},
    {"type": "Ask", "channel": "c", "xid": 1, "keys": ["k"] * (MAX_KEYS + 1)},
    {"type": "Ask", "channel": "c", "xid": 1, "keys": ["k", ""]},
    {"type": "Ask", "channel": "c", "xid": 1, "keys": "k"},
    {"type": "Answer", "channel": "c", "xid": 1, "present": [True] * (MAX_KEYS + 1)},
    {"type": "Answer", "channel": "c", "xid": 1, "present": [1]},
    {"type": "Bye", "code": "x" * 65},
    {"type": "Bye", "code": "x", "message": LONG},
    {"type": "Refused", "code": "x", "message": "y", "differences": [["a", "b", "c"]] * 129},
    {"type": "Refused", "code": "x", "message": "y", "differences": [["a", "b"]]},
    {"type": "Welcome", "identity": {"name": "n", "generation": 1, "backend": "b", "fingerprint": {}, "card": "c"}},
    {"type": "Welcome", "identity": {"name": LONG, "generation": 1, "backend": "b", "fingerprint": {}, "card": b""}},
    {"type": "Welcome", "identity": {"name": "n", "generation": 1, "backend": "b", "fingerprint": {"x": LONG}}},
    {
        "type": "Welcome",
        "identity": {
            "name": "n",
            "generation": 1,
            "backend": "b",
            "fingerprint": {f"{n}": "" for n in range(129)},
            "card": b"",
        },
    },
    {"type": "Accept", "channel": "c", "seq": 1, "descriptor": b"x" * (MAX_MESSAGE_BYTES // 4 + 1)},
    {"type": "Offer", "channel": "c", "seq": 1, "tag": 0, "spec": {"type": "x"}, "descriptor": b"", "valid": 1.0},
    {"type": "Offer", "channel": "c", "seq": 1, "tag": 0, "spec": {}, "descriptor": b"", "valid": 1.0},
    {"type": "nothing"},
    {"channel": "c"},
    {},
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: f"{wrong}"[:70])
def test_what_breaks_a_type_or_a_limit_is_no_message(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(msgspec.msgpack.encode(wrong))


OFFER = {"type": "Offer", "channel": "c", "seq": 1, "tag": 0, "descriptor": b"", "valid": 1.0}
SPECS: list[dict[str, Any]] = [
    {"type": "tensor", "dtype": "x" * 1000, "shape": [1], "itemsize": 4, "library": "numpy"},
    {"type": "tensor", "dtype": "f4", "shape": [-1], "itemsize": 4, "library": "numpy"},
    {"type": "tensor", "dtype": "f4", "shape": [1] * 1000, "itemsize": 4, "library": "numpy"},
    {"type": "tensor", "dtype": "f4", "shape": [1], "itemsize": -4, "library": "numpy"},
    {"type": "tensor", "dtype": "f4", "shape": [1], "itemsize": 4, "library": "os"},
    {"type": "pages", "page_bytes": [64], "counts": [-1]},
    {"type": "pages", "page_bytes": [-64], "counts": [1]},
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec}"[:60])
def test_a_spec_that_describes_nothing_is_no_message(spec: dict[str, Any]) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(msgspec.msgpack.encode({**OFFER, "spec": spec}))


def test_what_a_newer_peer_adds_is_ignored() -> None:
    frame = msgspec.msgpack.encode({"type": "End", "channel": "c", "news": [1, {"a": 2}]})
    assert decode(frame) == messages.End("c")


def refused_or_message(frame: bytes) -> None:
    try:
        message = decode(frame)
    except DROPPED:
        return
    assert isinstance(message, tuple(KINDS))
    assert decode(encode(message)) == message or "nan" in repr(message)


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=200))
def test_noise_is_refused_by_msgspec(frame: bytes) -> None:
    refused_or_message(frame)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=10,
)
TAGS = [kind.__name__ for kind in KINDS]
FIELDS = sorted({field for kind in KINDS for field in kind.__struct_fields__})


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(TAGS), st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=7))
def test_a_known_tag_with_any_fields_is_refused_by_msgspec(tag: str, fields: dict[str, Any]) -> None:
    refused_or_message(msgspec.msgpack.encode({"type": tag, **fields}))


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(KINDS), st.data())
def test_a_message_with_bytes_changed_cut_or_added_is_refused_by_msgspec(kind: type[Message], data: Any) -> None:
    frame = bytearray(encode(kind(*EXAMPLES.get(kind, ("buffer", 1)))))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(frame) - 1))
        frame[position] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(frame)))
    refused_or_message(bytes(frame[:end]))
    refused_or_message(bytes(frame) + data.draw(st.binary(max_size=5)))


@pytest.mark.parametrize("depth", [100, 10_000, 500_000])
@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a", b"\x81\xa4type\xa4Pong\xa1a\x91"])
def test_nesting_without_end_is_refused_and_does_not_crash(opening: bytes, depth: int) -> None:
    with pytest.raises(DROPPED):
        decode(opening * depth)


def test_bytes_that_nobody_would_send_are_refused_and_take_little_memory(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris has no build for this platform")
    script = Path(__file__).resolve().parents[2] / "scripts" / "fuzz_messages.py"
    seconds = "60" if os.environ.get("KVBRIDGE_LONG") else "5"
    command = [sys.executable, str(script), seconds]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (units,) = re.findall(r"number_of_executed_units: (\d+)", done.stderr)
    assert int(units) > 1000
    assert f"{len(KINDS)} files found" in done.stderr
