"""Rounds of requests: every contender in every cell, one after the other, again and again."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import TYPE_CHECKING

import numpy as np

from kvbridge_vllm.launch import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvbridge_vllm.bench.pair import Pair

ANSWER = 4
"""Tokens of an answer: enough for a time between tokens."""

DISTINCT_BYTES = 256 << 20
"""Bytes of KV of all different prompts of a cell: the prefill engine keeps them."""

LOCAL = 3
"""Requests of a round to an engine that has the prompt's KV."""

SETTLE = 1.0
"""Seconds after engines were stopped until they are asked: connections are looked at again."""


@dataclass(frozen=True)
class Cell:
    """One load.

    Attributes:
        tokens: Length of each prompt, less one: with that many, blocks are full, and an engine that has them computes
            one token.
        concurrent: Requests at a time.
    """

    tokens: int
    concurrent: int

    @property
    def requests(self) -> int:
        """Requests of a round."""
        return max(4, self.concurrent)

    def prompts(self, kv_bytes: int, vocabulary: int) -> list[list[int]]:
        """Make the different prompts of this cell; requests share them when there are more."""
        count = max(1, min(self.requests, DISTINCT_BYTES // (kv_bytes * self.tokens)))
        chooser = random.Random(self.tokens)  # noqa: S311 - the same every time
        return [[chooser.randrange(2, vocabulary) for _ in range(self.tokens + 1)] for _ in range(count)]

    def fresh_prompt(self, number: int, vocabulary: int) -> list[int]:
        """Make a prompt that nobody asked before."""
        chooser = random.Random(f"{self.tokens} {self.concurrent} {number}")  # noqa: S311 - the same in every run
        return [chooser.randrange(2, vocabulary) for _ in range(self.tokens + 1)]


@dataclass
class Samples:
    """What was seen of one contender in one cell, over all rounds.

    Attributes:
        first: Seconds to the first token, of each request.
        first_rounds: Their median, of each round.
        between: Seconds between two tokens.
        rates: Requests per second, of each round.
        cpu: Seconds of processor time for a request, of each round.
        right: Answers that were right.
        wrong: Answers that were not.
    """

    first: list[float] = field(default_factory=list)
    first_rounds: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    right: int = 0
    wrong: int = 0


@dataclass
class Floors:
    """What a time to first token is compared with under one load, in seconds, one figure for each round.

    Attributes:
        seconds: `local`, an engine that has the KV; `copied`, one plain copy of it; `computed`, an engine that has not.
    """

    seconds: dict[str, list[float]] = field(default_factory=lambda: {"local": [], "copied": [], "computed": []})

    @property
    def rounds(self) -> list[float]:
        """The KV is there, and was copied once."""
        return [local + copied for local, copied in zip(self.seconds["local"], self.seconds["copied"], strict=True)]


class Measurement:
    """All contenders under the same loads.

    Args:
        pairs: Their engines, ready and stopped.
        cells: The loads.
        kv_bytes: Bytes of KV for one token.
        vocabulary: Size of the model's vocabulary.
        tell: Called with what is going on.
    """

    def __init__(
        self, pairs: Sequence[Pair], cells: Sequence[Cell], kv_bytes: int, vocabulary: int, tell: Callable[[str], None]
    ) -> None:
        self._pairs = pairs
        self._cells = cells
        self._kv_bytes = kv_bytes
        self._vocabulary = vocabulary
        self._tell = tell
        self._prompts = {cell: cell.prompts(kv_bytes, vocabulary) for cell in cells}
        self._expected: dict[Cell, list[str]] = {}
        self.samples = {(pair.contender.name, cell): Samples() for pair in pairs for cell in cells}
        self.floors = {cell: Floors() for cell in cells}
        self.failed: dict[tuple[str, Cell], str] = {}
        self._computed = 0

    def prepare(self) -> None:
        """Let every prefill engine compute every prompt, and every pair get to know each other."""
        for pair in self._pairs:
            pair.go_on()
            for cell in self._cells:
                self._tell(f"{pair.contender.name}: computing prompts of {cell.tokens} tokens")
                for prompt in self._prompts[cell]:
                    pair.prefill.complete(prompt, max_tokens=1, timeout=600)
            self._warm(pair)
            if not self._expected:
                self._find_expected(pair)
            pair.stop()

    def _warm(self, pair: Pair) -> None:
        prompt = self._prompts[self._cells[0]][0]
        for _ in range(2):
            pair.answer(pair.decode, prompt, ANSWER, pair.compute(prompt))

    def _find_expected(self, pair: Pair) -> None:
        """Ask an engine that has the KV for the answers, and for the time of the first token."""
        for cell in self._cells:
            answers = [pair.answer(pair.prefill, prompt, ANSWER) for prompt in self._prompts[cell]]
            self._expected[cell] = [text for _, text in answers]

    def _measure_floors(self, pair: Pair, cell: Cell) -> None:
        """Ask an engine that computes a prompt, and one that has its KV: the prefill engine is both."""
        found, prompt = self.floors[cell].seconds, self._prompts[cell][0]
        self._computed += 1
        fresh = cell.fresh_prompt(self._computed, self._vocabulary)
        computed = pair.answer(pair.prefill, fresh, 1)[0][0]
        times = [pair.answer(pair.prefill, prompt, 1)[0][0] for _ in range(LOCAL)]
        found["computed"].append(computed)
        found["local"].append(statistics.median(times))
        found["copied"].append(_copy_seconds(cell.tokens * self._kv_bytes))

    def round(self, tell: Callable[[str], None]) -> None:
        """Measure everybody once in every cell. Who fails in one is left out of it from then on."""
        for cell in self._cells:
            floors = False
            for pair in self._pairs:
                name = pair.contender.name
                if (name, cell) in self.failed:
                    continue
                tell(f"{name}: {cell.concurrent} x {cell.tokens} tokens")
                pair.go_on()
                time.sleep(SETTLE)
                try:
                    self._warm(pair)
                    if not floors:
                        self._measure_floors(pair, cell)
                        floors = True
                    self._measure(pair, cell)
                except (LaunchError, OSError, HTTPException) as error:
                    self.failed[name, cell] = f"{type(error).__name__}: {error}"
                    del self.samples[name, cell]
                pair.stop()

    def _measure(self, pair: Pair, cell: Cell) -> None:
        found = self.samples[pair.contender.name, cell]
        prompts, expected = self._prompts[cell], self._expected[cell]

        def ask(number: int) -> tuple[list[float], bool]:
            prompt = prompts[number % len(prompts)]
            times, text = pair.answer(pair.decode, prompt, ANSWER, pair.compute(prompt))
            return times, text == expected[number % len(prompts)]

        used, start = pair.cpu_seconds(), time.perf_counter()
        with ThreadPoolExecutor(cell.concurrent) as pool:
            answers = list(pool.map(ask, range(cell.requests)))
        found.rates.append(cell.requests / (time.perf_counter() - start))
        found.cpu.append((pair.cpu_seconds() - used) / cell.requests)
        found.first_rounds.append(statistics.median(times[0] for times, _ in answers))
        for times, right in answers:
            found.first.append(times[0])
            found.between.extend(after - before for before, after in itertools.pairwise(times))
            found.right += right
            found.wrong += not right


def _copy_seconds(nbytes: int) -> float:
    source = np.ones(nbytes, dtype=np.uint8)
    target = np.zeros_like(source)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - start)
    return statistics.median(times)
