"""What happens when, made of a seed alone: the same seed gives the same requests and the same faults everywhere."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

PREFILL = ("prefill-0", "prefill-1")
DECODE = ("decode-0", "decode-1")
ENGINES = (*PREFILL, *DECODE)

Way = Literal["router", "direct", "again", "leave", "strand"]
Kind = Literal["kill", "stop", "delay", "loss", "partition"]

WAYS: dict[Way, int] = {"router": 11, "direct": 4, "again": 2, "leave": 2, "strand": 1}
"""How often requests go by each way. `direct`: to the engines themselves, as a router does it; `again`: likewise, then
with the same parameters once more; `leave`: through the router, and the client goes away; `strand`: prefill only."""

INTERVAL = 0.8
"""Seconds between two requests, on average."""

FAULT_INTERVAL = 7.0
"""Seconds between the beginnings of two faults, on average, in a run that is long enough for all kinds."""

LONGEST = 600
"""Tokens of the longest prompt."""

EDGES = (1, 2, 31, 32, 33, 63, 64, 65, 96, 128, 129)
"""Lengths around a token, a block and a chunk."""

DOCUMENTS = 4
"""Texts with which several prompts begin, so that engines have a part of these prompts already."""

BLOCK = 32
"""Tokens of a block."""

RESTART = 45.0
"""Seconds that an engine which was killed takes to serve again, as far as the schedule takes it for granted: no other
fault strikes it, and its double is not killed. The run waits where it takes longer."""

SHORTEST_KINDS: tuple[tuple[Kind, float, float], ...] = (
    ("kill", 0.5, 3.0),
    ("stop", 0.5, 2.0),  # shorter than `peer_timeout`
    ("stop", 4.5, 9.0),  # longer
    ("delay", 3.0, 8.0),
    ("loss", 3.0, 8.0),
    ("partition", 2.0, 12.0),  # below and above the time after which silence counts as the end
)
"""Kinds of faults with the shortest and the longest time that they last. For a kill: until the engine is started."""


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        number: Of the request, from 0.
        at: Seconds after the beginning.
        way: How it goes.
        length: Tokens of its prompt.
        document: With which text the prompt begins.
        shared: Tokens that it has from that text.
        prefill: The prefill engine, where the router does not choose.
        decode: The decode engine, likewise.
        second: The decode engine that gets the same parameters again.
        patience: Seconds after which the client leaves.
    """

    number: int
    at: float
    way: Way
    length: int
    document: int
    shared: int
    prefill: str
    decode: str
    second: str
    patience: float


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: What happens.
        engine: To whom.
        at: Seconds after the beginning.
        seconds: For how long.
        amount: Of a delay: seconds by which messages are late; of a loss: share of messages that are lost.
    """

    kind: Kind
    engine: str
    at: float
    seconds: float
    amount: float

    def __str__(self) -> str:
        more = {"delay": f" by {self.amount:.2f} s", "loss": f" of {self.amount:.0%}"}.get(self.kind, "")
        return f"{self.kind}{more}: {self.engine} for {self.seconds:.1f} s"


@dataclass(frozen=True)
class Schedule:
    """Everything that happens."""

    seed: int
    requests: tuple[Request, ...]
    faults: tuple[Fault, ...]

    def prompt(self, request: Request, attempt: int = 0) -> list[int]:
        """Make the tokens of a prompt: `attempt` counts those that were given up before."""
        own = _tokens(f"{self.seed} prompt {request.number} {attempt}", request.length - request.shared)
        return _tokens(f"{self.seed} document {request.document}", LONGEST)[: request.shared] + own

    def probe(self, number: int, attempt: int = 0) -> list[int]:
        """Make the tokens of a prompt by which a pair of engines is tried at the end."""
        return _tokens(f"{self.seed} probe {number} {attempt}", 70 + 13 * (number % 8))


def make_schedule(seed: int, requests: int) -> Schedule:
    """Make the schedule of a seed."""
    made = _requests(random.Random(f"{seed} requests"), requests)  # noqa: S311 - the same every time
    duration = made[-1].at if made else 0.0
    return Schedule(seed, tuple(made), tuple(_faults(random.Random(f"{seed} faults"), duration)))  # noqa: S311 - likewise


def _tokens(seed: str, count: int) -> list[int]:
    chooser = random.Random(seed)  # noqa: S311 - the same every time
    return [chooser.randrange(2, 500) for _ in range(count)]


def _requests(chooser: random.Random, count: int) -> list[Request]:
    found, at = [], 0.0
    for number in range(count):
        at += chooser.expovariate(1 / INTERVAL)
        length = chooser.choice(EDGES) if chooser.random() < 0.2 else chooser.randint(3, LONGEST)  # noqa: PLR2004 - a fifth
        shared = min(chooser.choice((0, 0, 0, 1, 2, 5, 9)) * BLOCK, (length - 1) // BLOCK * BLOCK)
        found.append(
            Request(
                number=number,
                at=round(at, 3),
                way=chooser.choices(list(WAYS), list(WAYS.values()))[0],
                length=length,
                document=chooser.randrange(DOCUMENTS),
                shared=shared,
                prefill=chooser.choice(PREFILL),
                decode=chooser.choice(DECODE),
                second=chooser.choice(DECODE),
                patience=round(chooser.uniform(0.02, 1.5), 3),
            )
        )
    return found


def _faults(chooser: random.Random, duration: float) -> list[Fault]:
    count = max(len(SHORTEST_KINDS), int(duration / FAULT_INTERVAL))
    found: list[Fault] = []
    rounds: list[tuple[Kind, float, float]] = []
    for index in range(count):
        if not rounds:
            rounds = list(SHORTEST_KINDS)
            chooser.shuffle(rounds)
        kind, shortest, longest = rounds.pop()
        at = round(duration * (index + chooser.uniform(0.1, 0.9)) / (count + 1), 3)
        seconds = round(chooser.uniform(shortest, longest), 3)
        amount = round(chooser.uniform(0.05, 1.2) if kind == "delay" else chooser.uniform(0.05, 0.6), 3)
        engines = [engine for engine in ENGINES if _may(found, kind, engine, at)]
        if engines:
            found.append(Fault(kind, chooser.choice(engines), at, seconds, amount))
    return found


def _may(faults: list[Fault], kind: Kind, engine: str, at: float) -> bool:
    """Whether a fault may strike an engine: one after the other, and no kill while the engine's double starts."""
    for fault in faults:
        double = fault.engine.partition("-")[0] == engine.partition("-")[0]
        over = fault.at + (RESTART if fault.kind == "kill" else fault.seconds)
        if at < over and (fault.engine == engine or (double and "kill" in (kind, fault.kind) and kind != "delay")):
            return False
    return True
