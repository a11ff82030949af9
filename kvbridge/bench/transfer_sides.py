"""The two processes of a measured backend: one hands values over, the other takes them."""

from __future__ import annotations

import multiprocessing
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from kvbridge.abc import Key
from kvbridge.bench.plain_socket import PlainSocket
from kvbridge.bench.raw import Raw, load_raw
from kvbridge.bench.transfer_case import PAGE, Case, region_of
from kvbridge.control.endpoint import Endpoint
from kvbridge.errors import KVBridgeError
from kvbridge.registry import create_backend

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

    from kvbridge.transfer import Transfer

TIMEOUT = 60.0
SETTLE = 0.002
"""Seconds between a consumer's question and the producer's insert: the question has arrived by then."""


class Sample(msgspec.Struct):
    """What one round of one case took, in seconds.

    Attributes:
        latencies: Of each value, from before its insert until all of its bytes had arrived.
        elapsed: From before the first insert until the last byte, for each repeat.
        cpu: Processor time of the producer and of the consumer, for all repeats.
        copied: A plain copy of as many bytes as are in flight.
        raw: The library alone; None where there is none, or several values are in flight.
        socket: A plain socket, likewise.
    """

    latencies: list[float]
    elapsed: list[float]
    cpu: tuple[float, float]
    copied: float
    raw: float | None = None
    socket: float | None = None


class Pair:
    """Both processes of one backend. They start when this is made.

    Args:
        backend: Its name.
        options: Its options.
        most: Bytes of each side's memory: what is in flight at one time fits into it.
    """

    def __init__(self, backend: str, options: dict[str, Any], most: int) -> None:
        self.backend = backend
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        producing, consuming = context.Pipe()
        sides = ((produce, (theirs, producing)), (consume, (consuming,)))
        self._processes = [
            context.Process(
                target=side, args=(*pipes, backend, options, most), name=f"kvbridge-bench-{side.__name__}", daemon=True
            )
            for side, pipes in sides
        ]
        for process in self._processes:
            process.start()
        for pipe in (theirs, producing, consuming):
            pipe.close()

    def measure(self, case: Case, turn: int) -> Sample:
        """Hand values over.

        Raises:
            KVBridgeError: It failed; the message says why.
        """
        self._pipe.send((case, turn))
        found: Sample = self._answer()
        return found

    def wait_ready(self) -> None:
        """Wait until both have started.

        Raises:
            KVBridgeError: One could not.
        """
        self._answer()

    def close(self) -> None:
        """End both."""
        self._pipe.close()
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()

    def _answer(self) -> Any:
        try:
            if not self._pipe.poll(2 * TIMEOUT):
                raise KVBridgeError(f"{self.backend}: the producer's process does not answer")
            answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise KVBridgeError(f"{self.backend}: a process ended, see above") from error
        if isinstance(answer, str):
            raise KVBridgeError(f"{self.backend}: {answer}")
        return answer


class Side:
    """What both processes have: the backend, memory, and what it is compared with."""

    def __init__(self, backend: str, options: dict[str, Any], memory: NDArray[np.uint8]) -> None:
        self.memory = memory
        self.plane = create_backend(backend, options)
        self.endpoint = Endpoint(self.plane)
        self.buffer = self.plane.open_buffer(self.endpoint, timeout=TIMEOUT)
        self.plane.register([region_of(memory)])
        raw = load_raw(backend)
        self.others: dict[str, Raw] = {"socket": PlainSocket({}, memory, PAGE)}
        if raw is not None:
            self.others["raw"] = raw(options, memory, PAGE)

    def close(self) -> None:
        """Give everything back."""
        for other in self.others.values():
            other.close()
        self.buffer.close()
        self.endpoint.close()
        self.plane.close()


def values(nbytes: int) -> NDArray[np.uint8]:
    """Make what is sent, the same in each process."""
    return np.frombuffer(np.random.default_rng(0).bytes(nbytes), dtype=np.uint8).copy()


def produce(orders: Connection, peer: Connection, backend: str, options: dict[str, Any], most: int) -> None:
    """Be the producer's process."""
    side: Side | None = None
    try:
        side = Side(backend, options, values(most))
        target = np.zeros_like(side.memory)
        for name, card in peer.recv().items():
            side.others[name].meet(card)
        orders.send(None)
        while True:
            case, turn = orders.recv()
            orders.send(_sample(side, target, peer, case, turn))
    except EOFError:
        return
    except KVBridgeError as error:
        orders.send(str(error))
    finally:
        peer.close()
        if side is not None:
            side.close()


def _sample(side: Side, target: NDArray[np.uint8], peer: Connection, case: Case, turn: int) -> Sample:
    latencies: list[float] = []
    elapsed: list[float] = []
    cpu = [0.0, 0.0]
    for repeat in range(case.repeats):
        found = _hand_over(side, peer, case, f"{turn}/{case.nbytes}/{case.layout}/{case.flight}/{repeat}")
        latencies += found[0]
        elapsed.append(max(found[1]))
        cpu = [known + more for known, more in zip(cpu, found[2], strict=True)]
    others = {name: _other(side, peer, name, case) for name in side.others} if case.flight == 1 else {}
    nbytes = case.nbytes * case.flight
    started = time.monotonic()
    target[:nbytes] = side.memory[:nbytes]
    copied = time.monotonic() - started
    return Sample(latencies, elapsed, (cpu[0], cpu[1]), copied, others.get("raw"), others.get("socket"))


def _hand_over(
    side: Side, peer: Connection, case: Case, key: str
) -> tuple[list[float], list[float], tuple[float, float]]:
    """Hand values over; return the seconds of each, those since the start, and both sides' processor time."""
    payloads = [case.payload(side.memory, 1, index) for index in range(case.flight)]
    peer.send((side.endpoint.address, key, case))
    peer.recv()  # the consumer has asked
    time.sleep(SETTLE)
    spent = time.process_time()
    starts = []
    inserts = []
    for index, payload in enumerate(payloads):
        starts.append(time.monotonic())
        inserts.append(side.buffer.insert(Key(f"{key}/{index}"), payload))
    for insert in inserts:
        insert.wait(TIMEOUT)
    ends, error, theirs = peer.recv()
    spent = time.process_time() - spent
    if error:
        raise KVBridgeError(f"the hand-over of {case.flight} times {case.nbytes} bytes failed: {error}")
    single = [end - start for start, end in zip(starts, ends, strict=True)]
    return single, [end - starts[0] for end in ends], (spent, theirs)


def _other(side: Side, peer: Connection, name: str, case: Case) -> float:
    """Move a value by other means, which may need the other process's help."""
    source, target = case.pages(side.memory, 1), case.pages(side.memory, 2)
    peer.send(name)
    peer.recv()
    started = time.monotonic()
    side.others[name].move(f"{case}", source, target)
    elapsed = time.monotonic() - started
    peer.send("enough")
    peer.recv()
    return elapsed


def consume(peer: Connection, backend: str, options: dict[str, Any], most: int) -> None:
    """Be the consumer's process."""
    side: Side | None = None
    try:
        source = values(most)
        side = Side(backend, options, np.zeros_like(source))
        peer.send({name: other.card() for name, other in side.others.items()})
        while True:
            order = peer.recv()
            if isinstance(order, str):
                _help(peer, side.others[order])
            else:
                _take(side, source, peer, *order)
    except (EOFError, OSError):
        return
    finally:
        if side is not None:
            side.close()


def _take(side: Side, source: NDArray[np.uint8], peer: Connection, home: str, key: str, case: Case) -> None:
    side.memory[: case.nbytes * case.flight] = 0
    outs = [case.payload(side.memory, 2, index) for index in range(case.flight)]
    ends: dict[int, float] = {}
    transfers = []
    for index, out in enumerate(outs):
        transfer = side.buffer.drop_select(Key(f"{key}/{index}", home), out)
        transfer.on_done(partial(_note, ends, index))
        transfers.append(transfer)
    peer.send("asked")
    spent = time.process_time()
    error = ""
    try:
        for transfer in transfers:
            transfer.wait(TIMEOUT)
    except KVBridgeError as failure:
        error = str(failure)
    spent = time.process_time() - spent
    if not error and not case.same(source, side.memory):
        error = "the bytes that arrived are not the ones that were sent"
    peer.send(([ends.get(index, time.monotonic()) for index in range(case.flight)], error, spent))


def _note(ends: dict[int, float], index: int, transfer: Transfer[None]) -> None:
    del transfer
    ends[index] = time.monotonic()


def _help(peer: Connection, other: Raw) -> None:
    """Let a library make progress here until the other side has what it wants."""
    peer.send("helping")
    while not peer.poll(0.0005):
        other.progress()
    peer.recv()
    peer.send("helped")
