"""Errors keep their kind across processes: one class a code, and a code that nobody knows is an error of its own."""

from __future__ import annotations

import pickle

import pytest

from kvbridge import errors
from kvbridge.errors import HandshakeError, KVBridgeError, ProtocolError, UnsupportedError, from_code

CLASSES = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, KVBridgeError)]


def test_every_class_has_a_code_of_its_own_that_fits_into_a_message() -> None:
    codes = [cls.code for cls in CLASSES]
    assert len(set(codes)) == len(codes)
    assert all(0 < len(code) <= 64 for code in codes)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_code_gives_its_class_back_with_the_message(cls: type[KVBridgeError]) -> None:
    found = from_code(cls.code, "what happened")
    assert type(found) is cls
    assert str(found) == "what happened"
    assert cls.__doc__


def test_an_unknown_code_is_a_protocol_error_that_names_it() -> None:
    for code in ("out-of-cheese", "", "x" * 64):
        found = from_code(code, "redo from start")
        assert type(found) is ProtocolError
        assert repr(code) in str(found)
        assert "redo from start" in str(found)


def test_the_extra_facts_of_errors_are_kept() -> None:
    assert UnsupportedError("x", flag="cuda").flag == "cuda"
    error = HandshakeError("x", [("dtype", "a", "b")])
    assert error.differences == (("dtype", "a", "b"),)
    assert str(pickle.loads(pickle.dumps(error))) == "x"  # noqa: S301 - our own
