"""Shows a prefill engine handing its KV cache to a decode engine, and checks that the answers stay the same.

    python scripts/demo.py --backend cpu [--model FOLDER]

Two real vLLM engines and a vllm-router answer three questions; then one engine without kvbridge answers them again.
Exits with 1 if a text differs or if a KV cache was not handed over.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING

from demo_chat import Answer, Handover, ask, handover_since, totals
from demo_questions import QUESTIONS, WARM_UP, Question
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvbridge.registry import list_backends
from kvbridge_vllm.demo.servers import Launcher, kv_transfer_config, wait_ready
from kvbridge_vllm.demo.smollm2 import ensure_model
from kvbridge_vllm.launch import LaunchError, StartError

if TYPE_CHECKING:
    from collections.abc import Callable

_MIB = 2**20
_CAPTION = """\
Both first tokens wait for the prompt to be computed once.
The handed-over one also waits for the transfer and for a second engine."""
_INTERRUPTED = 130  # what a shell reports for a program ended by Ctrl-C


class _DemoError(Exception):
    """The demo cannot run as it was asked to."""


@dataclass(frozen=True)
class _HandedOver:
    """A question's answer through the router, and what the decode engine loaded for it."""

    question: Question
    answer: Answer
    handover: Handover

    def whole(self) -> bool:
        """Tells whether the KV cache was handed over and used."""
        return self.handover.loads > 0 and self.handover.loaded_bytes > 0 and not self.handover.recomputed


def main() -> int:
    """Runs the demo and returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--backend", default="cpu", help="kvbridge backend that moves the KV cache (default: cpu)")
    parser.add_argument("--model", type=Path, help="folder with a chat model (default: SmolLM2-135M-Instruct)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stopping is the same as Ctrl-C
    console = Console(highlight=False)
    logs = Path(tempfile.mkdtemp(prefix="kvbridge-demo-"))
    try:
        return _run(console, options.backend, options.model, logs)
    except KeyboardInterrupt:
        console.print("\n[yellow]Interrupted; everything that was started has been stopped.")
        status = _INTERRUPTED
    except StartError as error:
        console.print(f"[red]The demo failed: {escape(error.summary)}; see {error.log_path}", soft_wrap=True)
        status = 1
    except (_DemoError, LaunchError, OSError, HTTPException) as error:
        console.print(f"[red]The demo failed: {escape(str(error)) or type(error).__name__}", soft_wrap=True)
        status = 1
    console.print(f"Logs: {logs}", soft_wrap=True)
    return status


def _run(console: Console, backend: str, model: Path | None, logs: Path) -> int:
    console.print(f"Logs: {logs}", soft_wrap=True)
    known = [entry.name for entry in list_backends()]
    if backend not in known:  # the engines would find out too, a minute later
        raise _DemoError(f"no backend is called {backend!r}; installed: {', '.join(known) or 'none'}")
    if model is None:
        with console.status("preparing SmolLM2-135M-Instruct (converted once, then kept)"):
            model = ensure_model()
    elif not (model / "config.json").is_file():
        raise _DemoError(f"{model} holds no config.json: --model takes the folder of a Hugging Face checkpoint")
    handed_over = _ask_pair(console, backend, model, logs)
    alone = _ask_single(console, model, logs)
    console.print(_table(handed_over, alone))
    return _verdict(console, handed_over, alone)


def _ask_pair(console: Console, backend: str, model: Path, logs: Path) -> list[_HandedOver]:
    console.rule(f"prefill engine → decode engine, backend {backend}")
    with ExitStack() as stack:
        launcher = Launcher(model, logs, stack)
        prefill = launcher.engine("prefill", 0, kv_transfer_config(backend, "kv_producer"))
        decode = launcher.engine("decode", 1, kv_transfer_config(backend, "kv_consumer"))
        router = launcher.router(prefill, decode)
        wait_ready(console, [prefill, decode, router])
        before = totals(decode)
        ask(router.url, model.name, WARM_UP, _ignore)
        handover_since(decode, before)
        found = []
        for question in QUESTIONS:
            before = totals(decode)
            _announce(console, question)
            answer = ask(router.url, model.name, question, _printer(console))
            console.print()
            found.append(_HandedOver(question, answer, handover_since(decode, before)))
    return found


def _ask_single(console: Console, model: Path, logs: Path) -> list[Answer]:
    console.rule("one engine without kvbridge, for comparison")
    with ExitStack() as stack:
        single = Launcher(model, logs, stack).engine("single", 0)
        wait_ready(console, [single])
        ask(single.url, model.name, WARM_UP, _ignore)
        answers = []
        for question in QUESTIONS:
            with console.status(f"asking about the {question.title}"):
                answers.append(ask(single.url, model.name, question, _ignore))
    return answers


def _announce(console: Console, question: Question) -> None:
    context = f" [dim](with a text of {len(question.context.split())} words)" if question.context else ""
    console.print(f"\n[bold cyan]{question.text}[/]{context}")


def _printer(console: Console) -> Callable[[str], None]:
    def show(piece: str) -> None:
        console.print(piece, end="", markup=False, soft_wrap=True)

    return show


def _ignore(_: str) -> None:
    """Shows nothing."""


def _table(handed_over: list[_HandedOver], alone: list[Answer]) -> Table:
    table = Table(title="What was handed over", caption=_CAPTION)
    table.add_column("question")
    for title in (
        "prompt\ntokens",
        "KV moved",
        "transfer\ntime",
        "first token,\nhanded over",
        "first token,\none engine",
    ):
        table.add_column(title, justify="right")
    table.add_column("text")
    for one, single in zip(handed_over, alone, strict=True):
        table.add_row(
            one.question.title,
            str(one.answer.prompt_tokens),
            f"{one.handover.loaded_bytes / _MIB:.1f} MiB",
            f"{one.handover.seconds * 1000:.1f} ms",
            f"{one.answer.first_token_s * 1000:.0f} ms",
            f"{single.first_token_s * 1000:.0f} ms",
            "[green]same" if one.answer.text == single.text else "[red]differs",
        )
    return table


def _verdict(console: Console, handed_over: list[_HandedOver], alone: list[Answer]) -> int:
    for one, single in zip(handed_over, alone, strict=True):
        if not one.whole():
            console.print(f"[red]{one.question.title}: the decode engine did not use the prefill engine's KV cache")
        if one.answer.text != single.text:
            console.print(f"[red]{one.question.title}, handed over:[/] {one.answer.text!r}", soft_wrap=True)
            console.print(f"[red]{one.question.title}, one engine:[/] {single.text!r}", soft_wrap=True)
    same = sum(one.answer.text == single.text for one, single in zip(handed_over, alone, strict=True))
    moved = sum(one.whole() for one in handed_over)
    good = same == moved == len(QUESTIONS)
    colour = "green" if good else "red"
    console.print(f"KV cache handed over: {moved} of {len(QUESTIONS)}")
    console.print(f"[bold {colour}]same text: {same} of {len(QUESTIONS)}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
