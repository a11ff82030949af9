"""The control plane on which `kvbridge chaos` lets engines run: messages that are lost or late, in their order."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvbridge.abc import Key
from kvbridge.errors import ConfigError, KVBridgeError, TransferTimeoutError
from kvbridge_cpu import CpuBackend, CpuOptions
from kvbridge_vllm.chaos.endpoint import LossyEndpoint
from kvbridge_vllm.chaos.rules import LOOK, Rule, RulesFile, write_rules

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BYTES = 4096


class Side:
    """A backend with a lossy endpoint and a buffer."""

    def __init__(self, folder: Path, name: str) -> None:
        self.rules = folder / f"{name}.json"
        self.backend = CpuBackend(CpuOptions(capacity="1MiB"))
        self.endpoint = LossyEndpoint(self.backend, rules=RulesFile(self.rules), name=name, peer_timeout=2.0)
        self.buffer = self.backend.open_buffer(self.endpoint, timeout=5)

    def insert(self, key: str) -> None:
        self.buffer.insert(Key(key), np.full(BYTES, 7, dtype=np.uint8)).wait(5)

    def take(self, key: str, producer: Side, timeout: float) -> None:
        out = np.zeros(BYTES, dtype=np.uint8)
        home = Key(key, producer.endpoint.address, producer.endpoint.here.generation)
        self.buffer.drop_select(home, out, timeout=timeout).wait(timeout + 8)
        assert (out == 7).all()

    def rule(self, **fields: Any) -> None:
        write_rules(self.rules, [Rule(until=time.monotonic() + 60, **fields)])
        time.sleep(2 * LOOK)

    def close(self) -> None:
        self.buffer.close()
        self.endpoint.close()
        self.backend.close()


@contextmanager
def sides(folder: Path) -> Iterator[tuple[Side, Side]]:
    made = [Side(folder, "producer"), Side(folder, "consumer")]
    try:
        for key in "abc":
            made[0].insert(key)
        made[1].take("a", made[0], 5)  # there is a link
        yield made[0], made[1]
    finally:
        for side in made:
            side.close()


def test_without_rules_nothing_is_lost(tmp_path: Path) -> None:
    with sides(tmp_path) as (producer, consumer):
        consumer.take("b", producer, 5)


def test_what_is_lost_is_not_answered_until_the_rule_is_taken_away(tmp_path: Path) -> None:
    with sides(tmp_path) as (producer, consumer):
        producer.rule(kind="drop")
        with pytest.raises(TransferTimeoutError):
            consumer.take("b", producer, 0.3)
        write_rules(producer.rules, [])
        time.sleep(2 * LOOK)
        consumer.take("c", producer, 5)


def test_a_rule_for_one_sender_leaves_the_others_alone(tmp_path: Path) -> None:
    with sides(tmp_path) as (producer, consumer):
        producer.rule(kind="drop", sender="someone else")
        consumer.take("b", producer, 5)
        producer.rule(kind="drop", sender="consu")
        with pytest.raises(TransferTimeoutError):
            consumer.take("c", producer, 0.3)


def test_an_unknown_sender_is_told_by_its_greeting(tmp_path: Path) -> None:
    with sides(tmp_path) as (producer, _):
        producer.rule(kind="drop", sender="late")
        late = Side(tmp_path, "late")
        try:
            with pytest.raises(KVBridgeError):
                late.take("b", producer, 0.3)
        finally:
            late.close()
        assert all(link.peer.name != "late" for link in producer.endpoint.links())


def test_a_rule_ends_by_itself(tmp_path: Path) -> None:
    rules = RulesFile(tmp_path / "rules.json")
    assert rules.standing(100.0) == ()
    write_rules(tmp_path / "rules.json", [Rule("drop", until=110.0), Rule("delay", until=120.0, seconds=1.0)])
    assert len(rules.standing(101.0)) == 2
    assert [rule.kind for rule in rules.standing(115.0)] == ["delay"]
    assert rules.standing(121.0) == ()


def test_a_file_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rules.json").write_text('[{"kind": "lose", "until": 1}]')
    with pytest.raises(ConfigError, match=r"rules\.json"):
        RulesFile(tmp_path / "rules.json").standing()


def test_the_loss_of_a_connection_is_never_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrived: list[bytes | None] = []
    monkeypatch.setattr(LossyEndpoint.__mro__[1], "_received", lambda _, __, frame: arrived.append(frame))
    side = Side(tmp_path, "cut")
    try:
        side.rule(kind="drop")

        def feed() -> None:
            for frame in (b"1", None, b"2"):
                side.endpoint._received(b"peer", frame)
            side.endpoint.call_soon(done.set)

        done = threading.Event()
        side.endpoint.call_soon(feed)
        assert done.wait(10)
        assert arrived == [None]
    finally:
        side.close()


def test_late_messages_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule draws a new delay for each message, so that without a queue some would overtake others."""
    arrived: list[bytes | None] = []
    monkeypatch.setattr(LossyEndpoint.__mro__[1], "_received", lambda _, __, frame: arrived.append(frame))
    side = Side(tmp_path, "late")
    try:
        side.rule(kind="delay", seconds=0.2)
        sent = [b"%d" % number for number in range(40)]

        def feed() -> None:
            for frame in sent:
                side.endpoint._received(b"peer", frame)
            side.endpoint._received(b"peer", None)

        began = time.monotonic()
        side.endpoint.call_soon(feed)
        while len(arrived) < 41 and time.monotonic() < began + 10:
            time.sleep(0.01)
        assert arrived == [*sent, None]
        assert time.monotonic() - began >= 0.06, "nothing was late"
    finally:
        side.close()
