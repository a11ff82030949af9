"""A secret keeps strangers out, and what it is about is said on both sides."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from kvbridge.abc import Key
from kvbridge.control.endpoint import Endpoint
from kvbridge.control.secret import Keys, read_secret
from kvbridge.errors import ConfigError, HandshakeError, KVBridgeError, PeerLostError
from tests.direct import DirectBackend, DirectOptions, fresh
from tests.nodes import pattern
from tests.sides import two_sides

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECRET, OTHER = "correct horse battery staple", "incorrect horse battery staple"
SOON = 10.0


def sides(first: str, second: str) -> Any:
    backends = DirectBackend(DirectOptions()), DirectBackend(DirectOptions())
    return two_sides(*backends, settings=({"secret": first}, {"secret": second}))


def hand_over(producer: Any, consumer: Any) -> None:
    producer.buffer.insert(Key("k"), pattern(1, 100))
    out = fresh(100)
    consumer.buffer.drop_select(Key("k", producer.endpoint.address), out).wait(SOON)
    assert (out == pattern(1, 100)).all()


def test_who_knows_the_secret_works_with_who_knows_it() -> None:
    with sides(SECRET, SECRET) as (producer, consumer):
        hand_over(producer, consumer)


@pytest.mark.parametrize(("here", "there"), [("", SECRET), (SECRET, ""), (OTHER, SECRET)])
def test_who_does_not_is_kept_out_and_told(here: str, there: str) -> None:
    with sides(there, here) as (producer, consumer):
        producer.buffer.insert(Key("k"), pattern(1, 100))
        started = time.monotonic()
        with pytest.raises((HandshakeError, PeerLostError), match="secret") as found:
            consumer.buffer.drop_select(Key("k", producer.endpoint.address), fresh(100), timeout=30).wait(SOON)
        assert time.monotonic() - started < SOON
        print(found.value)
        assert producer.endpoint.counters["malformed_messages"] == 0
        assert not producer.endpoint._inbound.links()
        assert producer.buffer.stats()["entries"] == 1


def test_strangers_at_the_port_do_no_harm() -> None:
    with sides(SECRET, SECRET) as (producer, consumer):
        host, _, port = producer.endpoint.address.removeprefix("tcp://").rpartition(":")
        for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000), b"\xff" + bytes(8) + b"\x7f\x03"):
            with socket.create_connection((host, int(port)), timeout=5) as stranger:
                stranger.sendall(noise)
        hand_over(producer, consumer)


def test_what_is_said_is_not_read_on_the_way() -> None:
    """Somebody in between sees every byte, and neither names nor digests in them."""
    seen = bytearray()
    with sides(SECRET, SECRET) as (producer, consumer), socket.create_server(("127.0.0.1", 0)) as relay:
        host, _, port = producer.endpoint.address.removeprefix("tcp://").rpartition(":")

        def pump(source: socket.socket, target: socket.socket) -> None:
            with contextlib.suppress(OSError):  # one side is closed first
                while data := source.recv(1 << 16):
                    seen.extend(data)
                    target.sendall(data)

        def serve() -> None:
            with relay.accept()[0] as mine, socket.create_connection((host, int(port))) as theirs:
                back = threading.Thread(target=pump, args=(theirs, mine), daemon=True)
                back.start()
                pump(mine, theirs)
                with contextlib.suppress(OSError):
                    theirs.shutdown(socket.SHUT_WR)
                back.join(SOON)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        producer.buffer.insert(Key("a-name-to-look-for"), pattern(1, 100))
        key = Key("a-name-to-look-for", f"tcp://127.0.0.1:{relay.getsockname()[1]}")
        consumer.buffer.drop_select(key, fresh(100)).wait(SOON)
    thread.join(SOON)
    assert len(seen) > 500
    assert b"a-name-to-look-for" not in seen
    assert b"Hello" not in seen


def test_the_same_secret_gives_the_same_keys_and_another_one_others() -> None:
    assert Keys.of(SECRET) == Keys.of(SECRET)
    assert len({Keys.of(SECRET), Keys.of(OTHER)}) == 2


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [(SECRET, 0o644, "chmod 600"), (None, 0o600, "No such file"), (b"\xff\xfe", 0o600, "utf-8")],
)
def test_a_file_that_holds_no_secret_is_refused(tmp_path: Path, content: Any, mode: int, message: str) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(mode)
    with pytest.raises(ConfigError, match=message):
        read_secret(str(path))


def test_a_file_is_read_without_its_last_line_end(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    assert read_secret(str(path)) == SECRET
    assert read_secret("") == ""


def test_a_secret_that_can_be_guessed_is_refused() -> None:
    made: Callable[[], Endpoint] = lambda: Endpoint(DirectBackend(DirectOptions()), secret="hunter2")  # noqa: E731, S106
    with pytest.raises(ConfigError, match="16 or more"):
        made()
    with pytest.raises(KVBridgeError):
        Keys.of("")
