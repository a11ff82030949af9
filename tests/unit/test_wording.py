"""A report in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvbridge.capabilities import Capabilities
from kvbridge.conformance.results import Outcome
from kvbridge.conformance.wording import first_line, in_bytes, in_time, verdict
from kvbridge.plain import plain
from tests.sample_reports import conforming, failing, modest, report

if TYPE_CHECKING:
    from kvbridge.conformance.results import Report


@pytest.mark.parametrize(
    ("run", "tone", "headline"),
    [
        (conforming(), "good", "conforms to contract 1.0"),
        (failing(), "bad", "fails 3 requirements"),
        (failing(strict=True), "bad", "fails 4 requirements"),
        (modest(), "mixed", "conforms, but for 1 waived failure"),
        (conforming(selected=("pipe/",)), "mixed", "passes what was selected"),
        (conforming(faults=("the waivers name 'x'",)), "bad", "no verdict: the run itself has 1 fault"),
        (conforming(results=()), "mixed", "nothing was tested"),
        (
            report("far", Capabilities(), {"backend/01-probe": {"outcome": Outcome.NOT_RUN}}, strict=True),
            "bad",
            "not proven: 1 requirement did not run",
        ),
    ],
)
def test_verdicts_in_plain_words(run: Report, tone: str, headline: str) -> None:
    found = verdict(run)
    assert (found.tone, found.headline) == (tone, headline)
    assert (found.tone == "bad") is (run.exit_code != 0), "the words say what the exit code says"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "<1 ms"), (0.0012, "1 ms"), (0.9996, "1.0 s"), (12.34, "12.3 s"), (59.97, "1 min"), (125.0, "2 min 5 s")],
)
def test_times_have_a_unit(seconds: float, text: str) -> None:
    assert in_time(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"), [(1, "1 B"), (1536, "1.5 KiB"), (2 << 30, "2 GiB"), (3 << 40, "3 TiB"), (5 << 19, "2.5 MiB")]
)
def test_bytes_have_a_unit(number: int, text: str) -> None:
    assert in_bytes(number) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("a\r\nb\tc", "a\nb\tc"),
        ("\x00\x08\x7f", "\u2400\u2408\u2421"),
        ("\x9b2J\u202e\udcff", "\ufffd2J\ufffd\ufffd"),
        ("größe 消えた", "größe 消えた"),
    ],
)
def test_controls_are_made_visible_and_letters_stay(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_the_first_line_is_one_that_says_something_and_is_short() -> None:
    assert first_line("\n  \n first \nsecond") == "first"
    assert first_line("") == ""
    assert first_line("x" * 1000) == "x" * 199 + "…"
