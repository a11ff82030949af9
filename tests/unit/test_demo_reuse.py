"""`kvbridge demo reuse` without engines: what is asked, what is drawn, and how it ends."""

from __future__ import annotations

import importlib.util
import io
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from kvbridge.cli.main import main
from kvbridge_vllm.demo import reuse
from kvbridge_vllm.demo.chat import Answer
from kvbridge_vllm.demo.questions import QUESTIONS, guide
from kvbridge_vllm.demo.reuse_chart import Pair, bar, chart, verdict
from kvbridge_vllm.launch import EngineHTTPError, LaunchError, StartError, keeping
from kvbridge_vllm.launch.keeping import Counts

if TYPE_CHECKING:
    from pathlib import Path


def pairs(*, text: str = "yes", cached: int = 2304) -> list[Pair]:
    slow = Answer("yes", 2322, 0, 20.304)
    return [
        Pair(question, slow, Answer(text, 2322, cached if number else 0, 0.5 if number else 21.0))
        for number, question in enumerate(QUESTIONS)
    ]


def test_all_questions_share_the_document_as_their_prefix() -> None:
    document = guide()
    assert len(document.text.split()) > 1500
    prompts = [document.messages(question)[0]["content"] for question in QUESTIONS]
    assert len(set(prompts)) == len(QUESTIONS) == 5
    assert all(prompt.startswith(document.text) for prompt in prompts)


@pytest.mark.parametrize("width", [60, 80, 120, 300])
def test_the_chart_fits_a_terminal(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    console.print(chart(pairs(), width))
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, said.splitlines())) <= width
    if width >= 80:
        assert "…" not in said
        assert "20,304 ms" in said
        assert said.count("2,304 of 2,322 tokens") == 4


def test_bars_have_their_part_of_the_width() -> None:
    assert [bar(part, 4) for part in (0, 0.5, 1)] == ["    ", "██  ", "████"]
    assert bar(0.2, 4) == "▊   "


def test_answers_that_differ_or_were_computed_again_fail_the_demo() -> None:
    def said(found: list[Pair]) -> tuple[int, str]:
        console = Console(file=io.StringIO(), width=200)
        status = verdict(console, found, 405 << 20)
        return status, console.file.getvalue()  # type: ignore[attr-defined]

    status, words = said(pairs())
    assert (status, "same text: 5 of 5" in words, "405 MiB" in words) == (0, True, True)
    status, words = said(pairs(text="no"))
    assert (status, "same text: 0 of 5" in words, "'no'" in words) == (1, True, True)
    status, words = said(pairs(cached=0))
    assert (status, "document reused: 0 of 4" in words) == (1, True)


class FakeEngine:
    """Answers what it is told to, one after the other, and the last again and again."""

    name = "fake"

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked = 0

    def _next(self) -> Any:
        self.asked += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def post(self, path: str, body: Any) -> Any:
        assert (path, body) == ("/reset_prefix_cache", {}), "what the connector keeps is to stay"
        return self._next()

    def metrics(self) -> Any:
        saved, hit = self._next()
        labels = '{engine="0"}'
        return {
            f"vllm:kvbridge_reuse_saved_blocks_total{labels}": saved,
            f"vllm:kvbridge_reuse_hit_blocks_total{labels}": hit,
        }


def test_a_reset_counts_when_the_engine_says_that_it_was_done() -> None:
    engine = FakeEngine((200, {"success": False}), (200, {"success": True}))
    keeping.forget(engine)  # type: ignore[arg-type]
    assert engine.asked == 2
    with pytest.raises(EngineHTTPError, match="404"):
        keeping.forget(FakeEngine((404, "no such page")))  # type: ignore[arg-type]


def test_what_does_not_happen_in_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "_TIMEOUT_S", 0.1)
    with pytest.raises(TimeoutError, match="did not empty"):
        keeping.forget(FakeEngine((200, {"success": False})))  # type: ignore[arg-type]
    with pytest.raises(TimeoutError, match="kept or reused 3 of 4 blocks"):
        keeping.wait_until_kept(FakeEngine((5, 2)), Counts(4, 0), 4)  # type: ignore[arg-type]


def test_blocks_count_that_were_kept_or_reused() -> None:
    engine = FakeEngine((4, 0), (5, 1), (6, 2))
    assert keeping.wait_until_kept(engine, Counts(4, 0), 4) == Counts(6, 2)  # type: ignore[arg-type]


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Runs the command with a model of one's own, and something in the place of the engines."""
    monkeypatch.setattr(reuse.signal, "signal", lambda *_: None)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "config.json").touch()

    def run(error: BaseException) -> Any:
        def fail(*_: Any) -> int:
            raise error

        monkeypatch.setattr(reuse, "_run", fail)
        return CliRunner().invoke(main, ["demo", "reuse", "--model", str(tmp_path)])

    return run


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (KeyboardInterrupt(), 130, "Interrupted; everything that was started has been stopped"),
        (OSError("no room"), 1, "The demo failed: no room"),
        (LaunchError("HTTP status 500: [no]"), 1, "The demo failed: HTTP status 500: [no]"),
        (TimeoutError(), 1, "The demo failed: TimeoutError"),
    ],
)
def test_whatever_ends_the_demo_is_said_in_a_line(demo: Any, error: BaseException, status: int, sentence: str) -> None:
    result = demo(error)
    assert (result.exit_code, sentence in result.output, "Logs: " in result.output) == (status, True, True)


def test_an_engine_that_does_not_start_is_named_with_its_log(demo: Any, tmp_path: Path) -> None:
    result = demo(StartError("reuse ended while starting", tmp_path / "reuse.log", "the end of it"))
    assert result.exit_code == 1
    assert "reuse ended while starting; see" in result.output
    assert "the end of it" not in result.output


def test_a_folder_without_a_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse.signal, "signal", lambda *_: None)
    result = CliRunner().invoke(main, ["demo", "reuse", "--model", str(tmp_path)])
    assert result.exit_code == 1
    assert "holds no config.json" in " ".join(result.output.split())


def test_without_vllm_there_is_no_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    result = CliRunner().invoke(main, ["demo", "reuse"])
    assert result.exit_code == 2
    assert "vLLM" in result.output
