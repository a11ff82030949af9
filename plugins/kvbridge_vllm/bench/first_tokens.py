"""Time to the first token of a prompt that is loaded back, on a real engine, beside computing it."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from kvbridge.bench.reuse import Part, Rows, spread
from kvbridge.bench.reuse_copies import PlainCopy
from kvbridge.errors import KVBridgeError
from kvbridge_vllm.bench.model import MODEL, kv_bytes
from kvbridge_vllm.launch import Engine, EngineSpec, LaunchError
from kvbridge_vllm.launch.checkpoints import make_checkpoint
from kvbridge_vllm.launch.client import stream
from kvbridge_vllm.launch.keeping import DEV_MODE, counts, forget, wait_until_kept
from kvbridge_vllm.launch.process import cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BLOCK = 32
"""Tokens of a block."""

ANSWER = 4
"""Tokens of an answer: enough to see whether it is the same."""

ANSWER_TIMEOUT = 600.0
"""Seconds: a long prompt on a slow machine."""

DTYPE = "bfloat16"

KEPT_GIB = 2
"""Slots: room for every prompt of a round many times, so that the one that is asked again is never given up."""

WAYS = ("computed", "reused", "local")


@dataclass(frozen=True)
class Answer:
    """An answer: seconds to its first token, its text, and how many tokens of its prompt were not computed."""

    first: float
    text: str
    cached: int


@dataclass(eq=False)
class Length:
    """One length of prompts, and what was seen of it.

    Attributes:
        tokens: Of a prompt, less one: with that one, an engine that has all blocks computes one token.
        seconds: To the first token, of each round, by way.
        plain: Seconds of a plain copy of as many bytes as the prompt's KV has, of each round.
        wrong: What was not as it had to be.
        expected: The answer to the prompt that is asked again.
    """

    tokens: int
    seconds: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    plain: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    expected: str = ""

    def prompt(self, seed: int) -> list[int]:
        """Make a prompt; that of seed 0 is asked again and again."""
        chooser = random.Random(f"{self.tokens} {seed}")  # noqa: S311 - the same every time
        return [chooser.randrange(2, MODEL["vocab_size"]) for _ in range(self.tokens + 1)]

    def look(self, way: str, answer: Answer) -> None:
        """Take an answer down."""
        self.seconds[way].append(answer.first)
        cached = 0 if way == "computed" else self.tokens // BLOCK * BLOCK
        if answer.cached != cached:
            self.wrong.append(f"{way}: {answer.cached} tokens were not computed, expected {cached}")
        if way != "computed" and answer.text != self.expected:
            self.wrong.append(f"{way}: the answer is {answer.text!r}, expected {self.expected!r}")

    def row(self) -> dict[str, Any]:
        """Summarize."""
        computed, reused = self.seconds["computed"], self.seconds["reused"]
        return {
            "tokens": self.tokens,
            "kv_bytes": self.tokens * kv_bytes(DTYPE),
            "seconds": self.seconds,
            "memcpy_seconds": statistics.median(self.plain),
            "times_faster": statistics.median(c / r for c, r in zip(computed, reused, strict=True)),
            "wrong": self.wrong,
        }


class FirstTokens(Part):
    """An engine that keeps blocks, asked in three ways.

    Args:
        tokens: Lengths of prompts.
        rounds: Interleaved rounds.
    """

    name = "first_tokens"
    definitions = (
        "First tokens. Time to first token: from sending a request to an engine until its first token is here; each "
        "way is measured in every round. computed: a prompt that nobody asked before; it is kept meanwhile. reused: a "
        "prompt that is kept, after vLLM's own prefix cache was emptied. local: the same prompt again, out of vLLM's "
        "own cache: what reuse would cost if loading were free. faster: the median of the rounds' computed over "
        "reused. memcpy: one plain copy of as many bytes, in the same round. right: answers that are those of vLLM's "
        "own cache, with exactly the prompt's blocks not computed."
    )

    def __init__(self, tokens: Sequence[int], rounds: int) -> None:
        self._lengths = [Length(one) for one in tokens]
        self._rounds = rounds

    def measure(self, tell: Callable[[str], None]) -> Rows:
        """Start an engine, ask it, and stop it."""
        logs = Path(tempfile.mkdtemp(prefix="kvbridge-bench-"))
        try:
            with Engine(self._spec(), logs) as engine:
                engine.wait_ready(progress=lambda what: tell(f"first tokens: {what} (log: {engine.log_path})"))
                for length in self._lengths:
                    tell(f"first tokens: computing {length.tokens} tokens")
                    _prepare(engine, length)
                for number in range(1, self._rounds + 1):
                    for length in self._lengths:
                        tell(f"first tokens: round {number} of {self._rounds}, {length.tokens} tokens")
                        _round(engine, length, number)
        except (LaunchError, OSError) as error:
            raise KVBridgeError(f"first tokens: {error}; log: {logs}") from error
        return [length.row() for length in self._lengths]

    def right(self, rows: Rows) -> bool:
        """Say whether all answers were right, out of the blocks that they had to come from."""
        return not any(row["wrong"] for row in rows)

    def table(self, rows: Rows) -> Table:
        """Show the figures."""
        table = Table(
            *("tokens", "KV", *WAYS, "faster", "memcpy", "right"),
            title=f"time to first token, median (lowest … highest), ms; one engine, {self._rounds} interleaved rounds",
        )
        for row in rows:
            cells = [f"{row['tokens']:,}", f"{row['kv_bytes'] >> 20} MiB"]
            for way in WAYS:
                times = [one * 1000 for one in row["seconds"][way]]
                cells.append(f"[bold]{statistics.median(times):,.0f}[/] ({spread(times, ',.0f')})")
            asked = 2 * self._rounds
            right = f"{asked} of {asked}" if not row["wrong"] else f"[red]{row['wrong'][0]}"
            table.add_row(*cells, f"{row['times_faster']:.1f} x", f"{row['memcpy_seconds'] * 1000:.0f}", right)
        return table

    def _spec(self) -> EngineSpec:
        longest = max(length.tokens for length in self._lengths)
        cached = 2 * sum(length.tokens for length in self._lengths) * kv_bytes(DTYPE)
        return EngineSpec(
            "reuse",
            make_checkpoint(cache_folder() / f"bench-{DTYPE}", torch_dtype=DTYPE, **MODEL),
            kv_transfer_config={
                "kv_connector": "KVBridgeConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"reuse": {"backend": "cpu", "capacity": f"{KEPT_GIB}GiB"}},
            },
            block_size=BLOCK,
            max_model_len=longest + 64,
            dtype=DTYPE,
            kv_cache_gib=-(-cached >> 30) or 1,
            extra_args=("--enable-prefix-caching", "--enable-prompt-tokens-details"),
            env=DEV_MODE,
        )


def ask(engine: Engine, prompt: list[int]) -> Answer:
    """Stream an answer."""
    body = {
        "model": engine.spec.model.name,
        "prompt": prompt,
        "max_tokens": ANSWER,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    first, text, cached = 0.0, "", 0
    started = time.perf_counter()
    for event in stream(f"{engine.url}/v1/completions", body, ANSWER_TIMEOUT):
        for choice in event["choices"]:
            if choice["text"]:
                first = first or time.perf_counter() - started
                text += choice["text"]
        details = (event.get("usage") or {}).get("prompt_tokens_details") or {}
        cached = details.get("cached_tokens") or cached
    return Answer(first, text, cached)


def _prepare(engine: Engine, length: Length) -> None:
    """Let the engine keep the prompt that is asked again, and answer it in each way once."""
    before = counts(engine)
    ask(engine, length.prompt(0))
    wait_until_kept(engine, before, length.tokens // BLOCK)
    length.expected = ask(engine, length.prompt(0)).text
    forget(engine)
    ask(engine, length.prompt(0))


def _round(engine: Engine, length: Length, number: int) -> None:
    again = length.prompt(0)
    forget(engine)
    length.look("reused", ask(engine, again))
    length.look("local", ask(engine, again))
    length.plain.append(PlainCopy(length.tokens * kv_bytes(DTYPE)).seconds())
    before = counts(engine)
    length.look("computed", ask(engine, length.prompt(number)))
    wait_until_kept(engine, before, length.tokens // BLOCK)
