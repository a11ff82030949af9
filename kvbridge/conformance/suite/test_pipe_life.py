"""Part `pipe`, order and life: first in first out, and a name for each way in which a pipe can end."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from kvbridge.conformance.checks import require, require_equal, require_raises
from kvbridge.conformance.requirement import must
from kvbridge.conformance.together import together
from kvbridge.conformance.values import TensorValue
from kvbridge.errors import (
    BusyError,
    CancelledError,
    ClosedError,
    EndOfPipeError,
    KeyDroppedError,
    KVBridgeError,
    PipeBrokenError,
    TransferTimeoutError,
)

if TYPE_CHECKING:
    from kvbridge.conformance.world import World

MANY = 50
IDLE = 3.0


@must("pipe/20-order", needs=("pipe", "tensors"))
def test_order(world: World) -> None:
    """Values arrive in the order in which they were posted, with many in flight and whatever their sizes."""
    sender, receiver = world.linked()
    limit = world.largest() // 4
    sizes = [min(limit, (index * 7919) % 20_000 if index % 10 else 300_000) for index in range(MANY)]
    values = [TensorValue(seed, (size,)) for seed, size in enumerate(sizes)]
    for index, value in enumerate(values):
        sender.post(f"v{index}", "c", value)
    for value in values:
        receiver.recv("c", value)
    for index in range(MANY):
        sender.end(f"v{index}")


@must("pipe/21-numbers", needs=("pipe", "tensors"))
def test_numbers(world: World) -> None:
    """Offers are numbered from 0 without a gap, and carry their sender's tag and their size."""
    sender, receiver = world.linked()
    for index in range(5):
        sender.post(f"v{index}", "c", TensorValue(index, (10 + index,)), tag=100 + index)
        require_equal(receiver.peek("c", 10), (index, 100 + index, 10 + index), "number, tag and bytes of the offer")
        receiver.accept("v", "c", TensorValue(index, (10 + index,)))
        receiver.end("v")


@must("pipe/22-peek", needs=("pipe", "tensors"))
def test_peek(world: World) -> None:
    """Peeking takes nothing: the same offer is seen again until it is accepted or declined."""
    sender, receiver = world.linked()
    require_equal(receiver.peek("c"), None, "what is offered before anything was posted")
    values = [world.value(100 + index) for index in range(2)]
    for index, value in enumerate(values):
        sender.post(f"v{index}", "c", value)
    first = receiver.peek("c", 10)
    require_equal(receiver.peek("c"), first, "the offer, peeked again")
    for value in values:
        receiver.recv("c", value)


@must("pipe/23-any-order", needs=("pipe", "tensors"))
def test_any_order(world: World) -> None:
    """Offers that are accepted out of order bring each its own value."""
    sender, receiver = world.node(name="sender"), world.node(name="receiver")
    world.connect(sender, receiver)
    values = [world.value(50_000) for _ in range(3)]
    for index, value in enumerate(values):
        sender.post(f"v{index}", "c", value)
    offers = []
    for value in values:  # a peek sees the next one only after this one was accepted: accept all, then wait backwards
        offer = world.some(receiver.receiving("c").peek(10))
        out = receiver.destination(value)
        offers.append((value, out, receiver.receiving("c").accept(offer, out)))
    for value, out, transfer in reversed(offers):
        transfer.wait(10)
        receiver.check(value, out)


@must("pipe/24-not-before", needs=("pipe", "tensors"))
def test_not_before(world: World) -> None:
    """A posted transfer does not succeed before the receiver has the value."""
    sender, receiver = world.linked()
    value = world.value()
    sender.post("v", "c", value)
    require(receiver.peek("c", 10), "no offer came")
    time.sleep(0.2)
    require(not sender.over("v"), "the transfer is over, and nobody took the value")
    receiver.recv("c", value)
    sender.end("v")


@must("pipe/25-delivered", needs=("pipe", "tensors"))
def test_delivered(world: World) -> None:
    """A value whose transfer succeeded has been delivered, also when the sender closes at once after it."""
    sender, receiver = world.linked()
    values = [world.value(20_000) for _ in range(5)]
    for index, value in enumerate(values):
        sender.post(f"v{index}", "c", value)
        receiver.accept(f"v{index}", "c", value)
    for index in range(len(values)):
        sender.end(f"v{index}")
    sender.close_pipe("c")
    for index in range(len(values)):
        receiver.end(f"v{index}")
    require_raises(EndOfPipeError, lambda: receiver.peek("c", 10), "peek after everything was delivered")


@must("pipe/26-declined", needs=("pipe", "tensors"))
def test_declined(world: World) -> None:
    """A declined offer ends its sender's transfer with KeyDroppedError, and the next offer comes."""
    sender, receiver = world.linked()
    unwanted, wanted = world.value(), world.value()
    sender.post("u", "c", unwanted)
    sender.post("w", "c", wanted)
    receiver.decline("c")
    require_raises(KeyDroppedError, lambda: sender.end("u"), "the transfer of a declined offer")
    receiver.recv("c", wanted)
    sender.end("w")


@must("pipe/27-channels", needs=("pipe", "tensors"))
def test_channels(world: World) -> None:
    """Channels between two peers are independent: one that nobody reads does not hold up another."""
    sender, receiver = world.linked("clogged")
    sender.open_pipe("free", "send")
    receiver.open_pipe("free", "recv")
    stuck, passing = world.value(10_000), [world.value(10_000) for _ in range(10)]
    sender.post("stuck", "clogged", stuck)
    for value in passing:
        sender.post("v", "free", value)
        receiver.recv("free", value)
        sender.end("v")
    require(not sender.over("stuck"), "the value on the clogged channel is over, and nobody took it")
    receiver.recv("clogged", stuck)
    sender.end("stuck")


@must("pipe/28-both-ways", needs=("pipe", "tensors"))
def test_both_ways(world: World) -> None:
    """Two peers send to each other at the same time."""
    one, other = world.linked("there")
    other.open_pipe("back", "send")
    one.open_pipe("back", "recv")
    there, back = world.value(200_000), world.value(200_000)
    one.post("v", "there", there)
    other.post("v", "back", back)
    other.recv("there", there)
    one.recv("back", back)
    one.end("v")
    other.end("v")


@must("pipe/29-timeout", needs=("pipe", "tensors"))
def test_timeout(world: World) -> None:
    """A transfer that is not taken in time ends with TransferTimeoutError; the pipe works, and nothing else is lost."""
    sender, receiver = world.linked()
    late, value = world.value(), world.value()
    require_raises(TransferTimeoutError, lambda: sender.send("c", late, timeout=0.3), "sending to nobody")
    require_raises(TransferTimeoutError, lambda: receiver.recv("c", late, timeout=0.3), "receiving nothing")
    sender.post("v", "c", value)
    receiver.recv("c", value)
    sender.end("v")


@must("pipe/30-cancel", needs=("pipe", "tensors"))
def test_cancel(world: World) -> None:
    """A cancelled offer ends with CancelledError and is not delivered; what is posted after it is."""
    sender, receiver = world.linked()
    unwanted, wanted = world.value(), world.value()
    sender.post("u", "c", unwanted)
    sender.cancel("u")
    require_raises(CancelledError, lambda: sender.end("u"), "a cancelled transfer")
    sender.post("w", "c", wanted)
    receiver.recv("c", wanted)
    sender.end("w")


@must("pipe/31-busy", needs=("pipe", "tensors"))
def test_busy(world: World) -> None:
    """Two users of one end at the same time: the second gets BusyError, the first is not disturbed."""
    sender, receiver = world.node(name="sender"), world.node(name="receiver")
    world.connect(sender, receiver)
    value = world.value()
    found: list[Any] = []

    def first() -> None:
        found.append(receiver.receiving("c").recv_tensor(timeout=10))

    def second() -> None:
        time.sleep(0.2)  # until the first one waits
        try:
            require_raises(BusyError, lambda: receiver.peek("c"), "the second user")
        finally:
            sender.post("v", "c", value)

    together([first, second], 20)
    require(found, "the first user got nothing")
    receiver.check(value, found[0])


@must("pipe/32-closed", needs=("pipe", "tensors"))
def test_closed(world: World) -> None:
    """An end that you closed raises ClosedError and its unfinished transfers end so; closing again does nothing."""
    sender, receiver = world.linked()
    sender.post("v", "c", world.value())
    require(receiver.peek("c", 10), "no offer came")
    sender.close_pipe("c")
    sender.close_pipe("c")
    require_raises(ClosedError, lambda: sender.end("v"), "a transfer of a closed end")
    require_raises(ClosedError, lambda: sender.post("w", "c", world.value()), "posting on a closed end")
    receiver.close_pipe("c")
    receiver.close_pipe("c")
    require_raises(ClosedError, lambda: receiver.peek("c"), "peeking at a closed end")


@must("pipe/33-end", needs=("pipe", "tensors"))
def test_end(world: World) -> None:
    """After the sender closed, the receiver gets EndOfPipeError, again and again, and it is not called broken."""
    sender, receiver = world.linked()
    value = world.value()
    sender.post("v", "c", value)
    receiver.recv("c", value)
    sender.close_pipe("c")
    for _ in range(3):
        require_raises(EndOfPipeError, lambda: receiver.peek("c", 10), "peeking at a pipe whose sender closed")


@must("pipe/34-receiver-closes", needs=("pipe", "tensors"))
def test_receiver_closes(world: World) -> None:
    """When the receiver closes his end, what is posted before and after ends with an error; nothing hangs."""
    sender, receiver = world.linked()
    sender.post("before", "c", world.value())
    require(receiver.peek("c", 10), "no offer came")
    receiver.close_pipe("c")
    require(sender.await_over("before"), "a value that nobody took counts as delivered")
    try:
        sender.post("after", "c", world.value())
        require(sender.await_over("after"), "a value that nobody took counts as delivered")
    except KVBridgeError:  # refused at once: as good
        pass


@must("pipe/35-link-closed", needs=("pipe", "tensors"))
def test_link_closed(world: World) -> None:
    """When the peer's endpoint closes, both kinds of end are broken: PipeBrokenError, and it stays so."""
    sender, receiver = world.linked()
    receiver.open_pipe("back", "send")
    sender.open_pipe("back", "recv")
    sender.close_endpoint()
    for _ in range(2):
        require_raises(PipeBrokenError, lambda: receiver.peek("c", 10), "receiving from it")
        require_raises(PipeBrokenError, lambda: receiver.send("back", world.value(), timeout=10), "sending to it")


@must("pipe/36-idle", needs=("pipe", "tensors"))
def test_idle(world: World) -> None:
    """An idle pipe is healthy: after seconds without a value the next one passes."""
    sender, receiver = world.linked()
    time.sleep(IDLE)
    value = world.value()
    sender.post("v", "c", value)
    receiver.recv("c", value)
    sender.end("v")


@must("pipe/37-users", needs=("pipe", "tensors"))
def test_users(world: World) -> None:
    """Pipes between the same two peers are used by threads at the same time, each with its own values in order."""
    sender, receiver = world.node(name="sender"), world.node(name="receiver")
    names = [f"c{index}" for index in range(4)]
    receiver.connect(sender.where()[0])
    for name in names:
        sender.open_pipe(name, "send")
        receiver.open_pipe(name, "recv")
    values = {name: [world.value(5000) for _ in range(20)] for name in names}

    def send(name: str) -> None:
        for value in values[name]:
            sender.send(name, value)

    def receive(name: str) -> None:
        for value in values[name]:
            receiver.recv(name, value)

    users = [partial(user, name) for user in (send, receive) for name in names]
    together(users, 40)
