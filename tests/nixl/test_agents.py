"""Agents of the library: who is met and forgotten, what errors become, and that a closed agent is really gone."""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest

from kvbridge.abc import Key, MoveState
from kvbridge.conformance.values import TensorValue
from kvbridge.errors import BackendUnavailableError, CancelledError, KVBridgeError, PeerLostError, TransportError
from kvbridge.memory.places import decode_place
from kvbridge_nixl import NixlBackend, NixlOptions, library
from kvbridge_nixl import agent as agents
from kvbridge_nixl.card import decode_card
from kvbridge_nixl.transfer import Transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvbridge.abc import Move
    from kvbridge.conformance.node import Node
    from tests.nixl.zygote import Early

NBYTES = 20 << 20
ONES = np.ones(NBYTES, np.uint8)
SOON = 20.0


@pytest.fixture
def backend() -> Iterator[NixlBackend]:
    made = NixlBackend(NixlOptions())
    yield made
    made.close()


def _link(card: bytes) -> Any:
    link = mock.Mock()
    link.peer.card = card
    return link


def _run(move: Move) -> None:
    until = time.monotonic() + SOON
    while move.step() is not MoveState.DONE:
        assert time.monotonic() < until


class Consumer:
    """Another instance in this process, and a place in it."""

    def __init__(self, nbytes: int = NBYTES) -> None:
        self.backend = NixlBackend(NixlOptions())
        self.out = np.zeros(nbytes, np.uint8)
        self.landing = self.backend.land(mock.Mock(), mock.Mock(), b"", self.out, 0)
        self.card = decode_card(self.backend.card())
        self.place = decode_place(self.landing.descriptor, self.card.name)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._over.wait(0.001):
            self.landing.step()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self.landing.release()
        self.backend.close()


@pytest.fixture
def consumer() -> Iterator[Consumer]:
    made = Consumer()
    yield made
    made.close()


# -- errors ---------------------------------------------------------------------------------------------------


def test_errors_of_the_library_become_ours_with_its_word() -> None:
    def fails(name: str) -> Any:
        def call() -> None:
            raise type(name, (Exception,), {})("NIXL_ERR_SOME")

        return call

    with pytest.raises(PeerLostError, match="nixlRemoteDisconnectError"):
        library.call("a transfer", fails("nixlRemoteDisconnectError"))
    for name in ("nixlNotFoundError", "nixlBackendError", "KeyError"):
        with pytest.raises(TransportError, match=f"a transfer: NIXL reported {name}: NIXL_ERR_SOME"):
            library.call("a transfer", fails(name))
    with pytest.raises(CancelledError):
        library.call("a transfer", mock.Mock(side_effect=CancelledError("ours")))


def test_writing_to_a_peer_that_died_says_so(backend: NixlBackend, peer: Callable[..., Early]) -> None:
    there, other = peer(name="there").ready(), peer(name="other").ready()
    held = backend.hold(ONES)
    card, place = there.invite(NBYTES)
    stranger, its_place = other.invite(NBYTES)
    assert _drive(held.write(_link(card), place), there) is None
    there.kill(), other.kill()
    with pytest.raises(PeerLostError, match="nixlRemoteDisconnectError"):
        _run(held.write(_link(card), place))
    with pytest.raises(TransportError, match=r"nixlBackendError.* has died, or .*net_devices"):
        held.write(_link(stranger), its_place)
    held.release()
    assert not backend.movers.get()._peers


def test_a_connection_that_broke_is_made_again(backend: NixlBackend, peer: Callable[..., Early]) -> None:
    """Memory that is not there looks like a dead peer to the library, which never uses the connection again."""
    there = peer(name="there").ready()
    held = backend.hold(ONES)
    for nowhere in (False, True, False, True, False):
        card, place = there.invite(NBYTES, nowhere=nowhere)
        move = held.write(_link(card), place)
        done = _drive(move, there)
        assert isinstance(done, PeerLostError) if nowhere else done is None
    held.release()


def _drive(move: Move, there: Early) -> KVBridgeError | None:
    try:
        until = time.monotonic() + SOON
        while move.step() is not MoveState.DONE:
            there.progress()
            assert time.monotonic() < until
    except KVBridgeError as error:
        return error
    return None


def test_a_state_that_is_neither_done_nor_under_way_is_an_error(backend: NixlBackend, consumer: Consumer) -> None:
    held = backend.hold(ONES)
    move = held.write(_link(consumer.backend.card()), consumer.landing.descriptor)
    mover = backend.movers.get()
    lib = mover.lib
    mover.lib = mock.Mock(wraps=lib, transfer=lambda _: "PROC", check_xfer_state=lambda _: "ERR")
    with pytest.raises(TransportError, match="ERR"):
        _run(move)
    mover.lib = lib
    held.release()


def test_settings_that_this_process_cannot_have_any_more(backend: NixlBackend) -> None:
    with pytest.raises(BackendUnavailableError, match="other settings"):
        NixlBackend(NixlOptions(transports="tcp"))


# -- peers ----------------------------------------------------------------------------------------------------


def test_a_peer_that_links_again_while_something_moves_is_not_forgotten(
    backend: NixlBackend, consumer: Consumer
) -> None:
    mover, peer = backend.movers.meet(consumer.card, consumer.place)
    lent = mover.memory.lend(ONES)
    old = Transfer(mover, peer, "WRITE", lent, consumer.place, 0)
    old.step()
    mover.forget_peer(peer.name)  # its link is lost
    assert mover.peer(consumer.card) is peer  # and there again
    new = Transfer(mover, peer, "WRITE", lent, consumer.place, 0)
    _run(old)
    _run(new)
    assert consumer.out.all()
    assert mover._peers == {peer.name: peer}
    mover.forget_peer(peer.name)
    assert mover._peers == {}
    lent.release()


def test_a_peer_that_leaves_is_forgotten_when_nothing_moves_any_more(backend: NixlBackend, consumer: Consumer) -> None:
    mover, peer = backend.movers.meet(consumer.card, consumer.place)
    lent = mover.memory.lend(ONES)
    move = Transfer(mover, peer, "WRITE", lent, consumer.place, 0)
    mover.forget_peer(peer.name)
    assert mover._peers == {peer.name: peer}
    _run(move)
    assert consumer.out.all()
    assert mover._peers == {}
    lent.release()


def test_a_peer_that_broke_is_not_used_until_everything_of_it_has_ended(
    backend: NixlBackend, consumer: Consumer
) -> None:
    mover, peer = backend.movers.meet(consumer.card, consumer.place)
    lent = mover.memory.lend(ONES)
    move = Transfer(mover, peer, "WRITE", lent, consumer.place, 0)
    mover.forget_peer(peer.name, broken=True)
    with pytest.raises(PeerLostError):
        backend.movers.meet(consumer.card, consumer.place)
    move.abort()
    with pytest.raises(CancelledError):
        _run(move)
    assert backend.movers.meet(consumer.card, consumer.place)[1] is not peer
    lent.release()


# -- the end of agents ----------------------------------------------------------------------------------------


def test_a_condemned_agent_is_closed_with_its_last_transfer(backend: NixlBackend, consumer: Consumer) -> None:
    mover, peer = backend.movers.meet(consumer.card, consumer.place)
    lent = mover.memory.lend(ONES)
    move = Transfer(mover, peer, "WRITE", lent, consumer.place, 0)
    move.step()
    mover.condemn()
    other, _ = backend.movers.meet(consumer.card, consumer.place)
    assert other is not mover
    _run(move)
    assert consumer.out.all()
    assert mover.still
    assert backend.movers.living() == [other]
    lent.release()


def test_a_transfer_that_hangs_is_ended_by_the_end_of_its_agent(
    backend: NixlBackend, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "STUCK", 0.05)
    mover, peer = backend.movers.meet(consumer.card, consumer.place)
    lent = mover.memory.lend(ONES)
    hangs, goes = (Transfer(mover, peer, "WRITE", lent, consumer.place, 0) for _ in range(2))
    real = mover.lib.check_xfer_state
    mover.lib.transfer, posted = lambda _: "PROC", mover.lib.transfer
    hangs.step()
    stuck = list(hangs._flying)
    mover.lib.check_xfer_state = lambda handle: "PROC" if handle in stuck else real(handle)
    mover.lib.transfer = posted
    hangs.abort()
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        assert hangs.step() is MoveState.WAIT  # the other one is still at work
    assert mover.condemned
    _run(goes)
    with pytest.raises(CancelledError):
        _run(hangs)
    assert mover.still
    lent.release()


def test_a_closed_backend_keeps_nothing_of_the_library_though_everything_of_it_is_kept(
    node: Callable[..., Node], peer: Callable[..., Early]
) -> None:
    here, there = node(name="here"), peer(name="there").ready()
    value = TensorValue(seed=1, shape=(NBYTES,))
    here.begin_insert("k", "k", value)
    there.take(Key("k", *here.where()), value, verb="select")
    backend: Any = here.backend
    card, place = there.invite(NBYTES, nowhere=True)
    held = backend.hold(ONES)
    mover, met = backend.movers.meet(decode_card(card), decode_place(place, decode_card(card).name))
    mover.memory.lend(ONES[:100])
    flying = Transfer(mover, met, "WRITE", mover.memory.lend(ONES), decode_place(place, met.name), 0)
    errors = [_drive(flying, there)]
    assert isinstance(errors[0], PeerLostError)
    libs = [weakref.ref(one.lib.agent) for one in (backend.main, mover)]
    here.close()
    assert backend.main.still
    assert mover.still
    assert [lib() for lib in libs] == [None, None]
    held.release()
    backend.close()
