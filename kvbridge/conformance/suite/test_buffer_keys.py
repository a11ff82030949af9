"""Part `buffer`, keys: exactly once, one life each, and a reason for every key that gives nothing."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from kvbridge.conformance.checks import RequirementError, eventually, require, require_equal, require_raises
from kvbridge.conformance.requirement import must
from kvbridge.control.messages import MAX_NOTE
from kvbridge.errors import (
    BindingMismatchError,
    BusyError,
    CancelledError,
    ClosedError,
    ConfigError,
    DuplicateKeyError,
    KeyConsumedError,
    KeyDroppedError,
    KeyExpiredError,
    KeyMissError,
    KeyUnknownError,
    KVBridgeError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge.conformance.world import World

AT_ONCE = 3.0
"""Seconds within which an answer does not come from a timeout of `LONG`."""

LONG = 15.0

SHORT = 0.5


def _at_once(kind: type[KVBridgeError], call: Callable[[], Any], what: str) -> None:
    """Check that a call fails with a kind of error, without waiting out its deadline."""
    start = time.monotonic()
    require_raises(kind, call, what)
    took = time.monotonic() - start
    require(took < AT_ONCE, f"{what}: the answer took {took:.1f} s: it waited for something that cannot come")


@must("buffer/20-once", needs=("buffer", "tensors", "takes"))
def test_once(world: World) -> None:
    """A value is taken once: of many who ask at the same time exactly one gets it, the others a KeyMissError."""
    producer = world.peer(name="producer")
    takers = [world.peer(name=f"taker {number}") for number in range(3)]
    for turn in range(5):
        value = world.value(50_000)
        key = world.key(f"k{turn}", producer)
        names = [(taker, f"{turn}.{number}") for taker in takers for number in range(2)]
        for taker, name in names:
            taker.begin(name, "drop_select", key, value, timeout=5)
        producer.insert(f"k{turn}", value)
        codes = [taker.await_over(name) for taker, name in names]
        require_equal(codes.count(""), 1, f"the number of takers that got the value (all: {codes})")
        winner, name = names[codes.index("")]
        winner.end(name)
        misses = {cls.code for cls in (KeyConsumedError, KeyUnknownError, KeyDroppedError)}
        require(set(codes) <= misses | {""}, f"the others got {codes}, expected a reason why the key gives nothing")


@must("buffer/21-consumed", needs=("buffer", "tensors", "takes", "tombstones"))
def test_consumed(world: World) -> None:
    """Asking for a taken key again fails at once with KeyConsumedError, for everybody and in every way."""
    producer, consumer = world.pair()
    value = world.value()
    producer.insert("k", value)
    key = world.key("k", producer)
    consumer.take(key, value)
    for one in (consumer, producer):
        for verb in ("drop_select", "select"):
            _at_once(KeyConsumedError, partial(one.take, key, value, verb=verb, timeout=LONG), verb)
    _at_once(KeyConsumedError, lambda: consumer.claim("c", key, timeout=LONG), "claim")


@must("buffer/22-unknown", needs=("buffer", "tensors"))
def test_unknown(world: World) -> None:
    """A key under which nothing comes in time fails with KeyUnknownError, soon after its deadline."""
    producer, consumer = world.pair()
    start = time.monotonic()
    call = partial(consumer.take, world.key("never", producer), world.value(), verb="select", timeout=SHORT)
    require_raises(KeyUnknownError, call, "a select of it")
    took = time.monotonic() - start
    require(SHORT - 0.1 < took < SHORT + AT_ONCE, f"it took {took:.1f} s, expected {SHORT} s")


@must("buffer/23-duplicate", needs=("buffer", "tensors"))
def test_duplicate(world: World) -> None:
    """A second insert of a live key fails with DuplicateKeyError and the first value stays; a dropped key is free."""
    producer, consumer = world.pair()
    first, second = world.value(), world.value()
    producer.insert("k", first)
    producer.begin_insert("second", "k", second)
    require_raises(DuplicateKeyError, lambda: producer.end("second"), "the second insert")
    key = world.key("k", producer)
    consumer.take(key, first, verb="select")
    producer.drop([world.here("k")])
    eventually(
        lambda: not producer.contains([world.here("k")])[0], 5, lambda: "the key is still there after it was dropped"
    )
    producer.insert("k", second)
    consumer.take(key, second, verb="select")


@must("buffer/24-expired", needs=("buffer", "tensors"))
def test_expired(world: World) -> None:
    """A value whose lease has ended is not given any more, and its memory is free, without any call being made."""
    producer, consumer = world.pair()
    size = world.largest()
    for index in range(3):
        producer.insert(f"k{index}", world.value(size), lease=0.5)
    time.sleep(1.5)
    producer.await_stats(entries=0, bytes=0, expired=3)
    kind = KeyExpiredError if world.capabilities.tombstones else KeyMissError
    call = partial(consumer.take, world.key("k0", producer), world.value(), verb="select", timeout=2)
    require_raises(kind, call, "a select of an expired key")


@must("buffer/25-lease-stands", needs=("buffer", "tensors"))
def test_lease_stands(world: World) -> None:
    """A claim keeps a value beyond its lease, as long as its owner is alive."""
    producer, consumer = world.pair()
    value = world.value(50_000)
    producer.insert("k", value, lease=0.7)
    consumer.claim("c", world.key("k", producer), take=False)
    time.sleep(2.0)
    consumer.fill("c", value)


@must("buffer/26-dropped", needs=("buffer", "tensors"))
def test_dropped(world: World) -> None:
    """A dropped value is not given any more, wherever it was dropped from, and its memory is free."""
    producer, consumer = world.pair()
    value = world.value()
    for name in ("here", "there"):
        producer.insert(name, value)
    producer.drop([world.here("here")])
    consumer.drop([world.key("there", producer)])
    eventually(
        lambda: producer.contains([world.here("here"), world.here("there")]) == [False, False],
        5,
        lambda: "dropped keys are there",
    )
    producer.await_stats(entries=0, bytes=0)
    kind = KeyDroppedError if world.capabilities.tombstones else KeyMissError
    for name in ("here", "there"):
        call = partial(consumer.take, world.key(name, producer), value, verb="select", timeout=1)
        require_raises(kind, call, f"a select of a key that was dropped {name}")


@must("buffer/27-contains", needs=("buffer", "tensors"))
def test_contains(world: World) -> None:
    """`contains` says for each key, in order, whether it has a live value, and takes nothing."""
    producer, consumer = world.pair()
    value = world.value()
    producer.insert("a", value)
    producer.insert("c", value)
    keys = [world.key(name, producer) for name in "abc"]
    for one in (consumer, producer, consumer):
        require_equal(one.contains(keys), [True, False, True], "which of the keys a, b, c exist")
    consumer.take(keys[0], value, verb="select")


@must("buffer/28-binding", needs=("buffer", "tensors"))
def test_binding(world: World) -> None:
    """Who asks with another digest gets BindingMismatchError and no bytes; the value stays for who asks rightly."""
    producer, consumer = world.pair()
    value = world.value()
    producer.insert("k", value, digest=b"this prompt")
    producer.insert("free", value)
    key = world.key("k", producer)
    for wrong in (b"another prompt", b"", b"this prompt\x00"):
        call = partial(consumer.take, key, value, verb="select", digest=wrong, timeout=5)
        _at_once(BindingMismatchError, call, f"a select with the digest {wrong!r}")
    call = partial(consumer.take, world.key("free", producer), value, verb="select", digest=b"x", timeout=5)
    _at_once(BindingMismatchError, call, "a select with a digest of a value that has none")
    consumer.take(key, value, verb="select", digest=b"this prompt")


@must("buffer/29-claim", needs=("buffer", "tensors"))
def test_claim(world: World) -> None:
    """A claim says what the value is, is filled once, and is of no use after that or after its release."""
    producer, consumer = world.peer(), world.node(name="consumer")
    value = world.value(3000)
    producer.insert("k", value)
    for name in ("filled", "released"):
        consumer.claim(name, world.key("k", producer), take=False)
    require_equal(consumer.claims["filled"].spec.nbytes, 3000, "the bytes that the claim names")
    consumer.fill("filled", value)
    consumer.release("released")
    consumer.release("released")
    for name in ("filled", "released"):
        require_raises(BusyError, partial(consumer.fill, name, value), f"filling a claim that was {name}")
    consumer.take(world.key("k", producer), value, verb="select")


@must("buffer/42-note", needs=("buffer", "tensors"))
def test_note(world: World) -> None:
    """What a producer notes of a value, up to 48 KiB, comes with its claim, byte for byte; longer notes are refused."""
    producer, consumer = world.peer(), world.node(name="consumer")
    value = world.value(3000)
    notes = {"none": b"", "short": b"\x00note", "longest": bytes(range(256)) * (MAX_NOTE // 256)}
    for key, note in notes.items():
        producer.insert(key, value, note=note)
        consumer.claim(key, world.key(key, producer))
        require_equal(consumer.claims[key].note, note, "the note that came with the claim")
        consumer.fill(key, value)
    too_long = bytes(MAX_NOTE + 1)
    require_raises(ConfigError, lambda: producer.insert("k", value, note=too_long), "a note that is too long")


@must("buffer/30-claim-takes", needs=("buffer", "tensors", "takes"))
def test_claim_takes(world: World) -> None:
    """A claim that takes is exclusive from its grant on, and a release gives the value up: nobody else gets it."""
    producer, consumer = world.pair()
    other = world.peer(name="other")
    value = world.value()
    producer.insert("k", value)
    key = world.key("k", producer)
    consumer.claim("c", key)
    call = partial(other.take, key, value, timeout=1)
    require_raises(KeyMissError, call, "another taker while the claim stands")
    consumer.release("c")
    require_raises(KeyMissError, call, "another taker after the claim was released")
    producer.await_stats(entries=0, bytes=0)


@must("buffer/31-cancel", needs=("buffer", "tensors"))
def test_cancel(world: World) -> None:
    """A cancelled select or claim ends with CancelledError soon, and the value stays for others."""
    producer, consumer = world.pair()
    value = world.value()
    key = world.key("k", producer)
    consumer.begin("s", "select", key, value, timeout=LONG)
    consumer.begin_claim("c", key, take=False, timeout=LONG)
    for name in ("s", "c"):
        consumer.cancel(name)
        _at_once(CancelledError, partial(consumer.end, name), "what was cancelled")
    producer.insert("k", value)
    consumer.take(key, value, verb="select")


@must("buffer/32-cancel-insert", needs=("buffer", "tensors"))
def test_cancel_insert(world: World) -> None:
    """An insert that is cancelled before it ended gives its value up, and its memory is free."""
    producer = world.peer()
    value = world.value(world.largest())
    producer.begin_insert("k", "k", value)
    producer.cancel("k")
    if producer.await_over("k", 5) and not world.capabilities.detaches:
        raise RequirementError("without `detaches` a cancelled insert ends when the memory is free, without an error")
    producer.drop([world.here("k")])  # it may have ended just before
    producer.await_stats(entries=0, bytes=0)


@must("buffer/33-limits", needs=("buffer", "tensors"))
def test_limits(world: World) -> None:
    """A key, digest or duration that no peer would take is refused with ConfigError at once, where it is given."""
    node = world.peer()
    value = world.value()
    key = world.key("k", node)
    for wrong in ("k" * 300, "kéy"):
        call = partial(node.insert, wrong, value)
        _at_once(ConfigError, call, f"inserting under {wrong[:10]!r}")
    _at_once(ConfigError, lambda: node.insert("k", value, digest=b"d" * 65), "a digest of 65 bytes")
    _at_once(ConfigError, lambda: node.insert("k", value, lease=-1.0), "a lease of -1 s")
    _at_once(ConfigError, lambda: node.take(key, value, verb="select", timeout=-1.0), "a deadline of -1 s")
    node.insert("k", value)
    node.take(key, value, verb="select")


@must("buffer/34-closed", needs=("buffer", "tensors"))
def test_closed(world: World) -> None:
    """Closing a buffer ends its transfers, what comes later fails with ClosedError, and closing again is harmless."""
    producer, consumer = world.pair()
    value = world.value()
    key = world.key("never", producer)
    consumer.begin("s", "select", key, value, timeout=LONG)
    consumer.begin_claim("c", key, take=False, timeout=LONG)
    consumer.close_buffer()
    consumer.close_buffer()
    for name in ("s", "c"):
        _at_once(ClosedError, partial(consumer.end, name), "a transfer of a closed buffer")
    _at_once(ClosedError, lambda: consumer.take(key, value, verb="select"), "a select at a closed buffer")
    _at_once(ClosedError, lambda: consumer.insert("k", value), "an insert into a closed buffer")


@must("buffer/35-producer-closes", needs=("buffer", "tensors"), lacks=("shared",))
def test_producer_closes(world: World) -> None:
    """When a producer closes its buffer, who asks it gets an error at once: KeyDroppedError or PeerLostError."""
    producer, consumer = world.pair()
    value = world.value()
    producer.insert("k", value)
    consumer.begin("waiting", "select", world.key("never", producer), value, timeout=LONG)
    require_equal(consumer.contains([world.key("k", producer)]), [True], "whether the value is there")
    producer.close_buffer()
    require(consumer.await_over("waiting", AT_ONCE), "a select of a key that never came succeeded")
    call = partial(consumer.take, world.key("k", producer), value, verb="select", timeout=LONG)
    _at_once(KVBridgeError, call, "asking a producer that has closed")


@must("buffer/36-outlives", needs=("buffer", "tensors", "shared"))
def test_outlives(world: World) -> None:
    """A value in a shared store outlives its producer: others still get it when that has closed in order."""
    producer, consumer = world.pair()
    value = world.value(50_000)
    producer.insert("k", value)
    key = world.key("k", producer)
    producer.close()
    consumer.take(key, value, verb="select")


@must("buffer/37-stats", needs=("buffer", "tensors"))
def test_stats(world: World) -> None:
    """Statistics are exact: values and bytes held, inserted, and refused as duplicates."""
    producer = world.peer()
    values = [world.value(1000 * (index + 1)) for index in range(3)]
    for index, value in enumerate(values):
        producer.insert(f"k{index}", value)
    producer.begin_insert("again", "k0", values[0])
    require(producer.await_over("again"), "a duplicate was taken")
    producer.await_stats(entries=3, bytes=6000, inserted=3, refused_duplicate=1)
    producer.drop([world.here("k1")])
    producer.await_stats(entries=2, bytes=4000, dropped=1)


@must("buffer/38-generation", needs=("buffer", "tensors"), lacks=("shared",))
def test_generation(world: World) -> None:
    """A key that names another life of its home than the present one fails with an error, and gives no bytes."""
    producer, consumer = world.pair()
    value = world.value()
    producer.insert("k", value)
    generation = producer.where()[1]
    other = msgspec.structs.replace(world.key("k", producer), generation=generation + 1)
    _at_once(KVBridgeError, lambda: consumer.take(other, value, verb="select", timeout=LONG), "a select of it")
    consumer.take(world.key("k", producer), value, verb="select")
