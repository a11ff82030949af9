"""Cards, refusals, and how processes end."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge.errors import BackendUnavailableError, ProtocolError
from kvbridge_mooncake import MooncakeBackend, MooncakeOptions, library
from kvbridge_mooncake.card import Card, decode_card

if TYPE_CHECKING:
    from collections.abc import Callable

ENDS = """
import sys
from kvbridge.conformance.node import Node
from kvbridge.conformance.values import TensorValue
from kvbridge.abc import Key
{more}
a, b = Node("mooncake", {{}}), Node("mooncake", {{}})
value = TensorValue(seed=1, shape=({size},))
a.begin_insert("k", "k", value)
b.begin("s", "select", Key("k", *a.where()), value)
{end}
"""


@pytest.mark.parametrize("end", ["b.end('s')", "b.end('s'); b.close(); a.close()", "", "b.end('s'); sys.exit(0)"])
@pytest.mark.parametrize("more", ["", "import kvbridge_nixl; kvbridge_nixl.NixlBackend(kvbridge_nixl.NixlOptions())"])
def test_a_process_ends_with_the_exit_code_that_it_should_have(end: str, more: str) -> None:
    code = ENDS.format(more=more, size=200_000_000 if not end else 1_000_000, end=end)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == ""


def test_a_forked_child_says_why_it_cannot(backend: Callable[..., MooncakeBackend]) -> None:
    parent = backend()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            parent.hold(b"")  # type: ignore[arg-type]
        except BackendUnavailableError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    assert b"spawn" in os.read(read, 1000)
    os.close(read)
    os.waitpid(child, 0)
    assert library.missing() == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "rdma"}, "no RDMA device"),
        ({"host": "a host"}, "without blanks"),
    ],
)
def test_what_cannot_work_says_why(options: dict[str, Any], message: str) -> None:
    found = MooncakeBackend.probe(MooncakeOptions(**options))
    assert not found.ok
    assert message in found.reason


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(library.SYSTEM, "libnothere.so.1", "libnothere1")
    assert "apt install libnothere1" in library.missing()
    monkeypatch.undo()
    monkeypatch.setenv(library.HARMFUL, "somewhere")
    assert library.HARMFUL in library.missing()
    monkeypatch.undo()
    monkeypatch.setattr(library, "PACKAGES", ("nothing-of-that-name",))
    assert "pip install 'kvbridge[mooncake]'" in library.missing()


def test_cards_that_differ_in_what_has_to_agree_are_refused(backend: Callable[..., MooncakeBackend]) -> None:
    one = backend()
    card = decode_card(one.card())
    assert one.accepts(card.encode()) is None

    def changed(**fields: Any) -> bytes:
        return Card(**{**{name: getattr(card, name) for name in card.__struct_fields__}, **fields}).encode()

    for fields, words in (
        ({"version": "0.1"}, "version"),
        ({"protocol": "rdma"}, "protocol"),
        ({"direction": "write"}, "direction"),
        ({"network": "elsewhere"}, "another host"),
    ):
        assert words in str(one.accepts(changed(**fields)))
    with pytest.raises(ProtocolError):
        decode_card(card.encode()[:-1])
    assert "not one of the backend" in str(one.accepts(b"nonsense"))


def test_closing_twice_and_at_once_is_harmless() -> None:
    made = MooncakeBackend(MooncakeOptions())
    made.close()
    made.close()
