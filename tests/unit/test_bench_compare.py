"""`kvbridge bench compare`: what moved beyond noise is said, so is the machine's part, the exit code follows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from kvbridge.bench.compare import changes
from kvbridge.bench.report import parse
from kvbridge.bench.transfer_case import Case
from kvbridge.cli.main import main
from tests.sample_bench_reports import KIB, MIB, STEADY, buffer_report, report, row

if TYPE_CHECKING:
    from pathlib import Path

    from kvbridge.bench.compare import Change

CASES = [Case(16 * KIB, "contiguous"), Case(MIB, "scattered"), Case(MIB, "scattered", 8)]
LOUD = (1.0, 1.3, 0.7, 1.2, 0.8, 1.25, 0.75)
"""Rounds whose times differ by a quarter."""


def slowed(*factors: float, **fields: Any) -> dict[str, Any]:
    """A report in which the cases took so many times as long, and copies in memory took what they took."""
    rows = [row("cpu", case, 1e-3 * factor, copied=1e-4) for case, factor in zip(CASES, factors, strict=True)]
    return report(rows, **fields)


def compared(folder: Path, before: dict[str, Any], after: dict[str, Any]) -> Result:
    paths = [folder / "a.json", folder / "b.json"]
    for path, one in zip(paths, (before, after), strict=True):
        path.write_text(json.dumps(one))
    return CliRunner().invoke(main, ["bench", "compare", *map(str, paths)])


def words(result: Result) -> str:
    return " ".join(result.output.split())


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[Change]:
    return changes(parse(before), parse(after))


def single(factor: float, *, copied: float = 1e-4, rounds: tuple[float, ...] = STEADY) -> dict[str, Any]:
    return report([row("cpu", CASES[0], 1e-3 * factor, copied=copied, rounds=rounds)])


def test_equal_reports_have_nothing_slower(tmp_path: Path) -> None:
    done = compared(tmp_path, slowed(1, 1, 1), slowed(1, 1, 1))
    assert done.exit_code == 0, done.output
    assert "Of 3 cases, 0 got slower beyond noise, 0 got faster, 3 stayed within noise." in words(done)
    assert "Different" not in done.output
    assert "Not compared" not in done.output


def test_slower_is_exit_code_1_and_what_changed_most_stands_first(tmp_path: Path) -> None:
    done = compared(tmp_path, slowed(1, 1, 1), slowed(1.25, 1.01, 0.5))
    assert done.exit_code == 1, done.output
    lines = [line for line in done.output.splitlines() if line.startswith("│")]
    assert [line.split("│")[2].strip() for line in lines] == [
        "8 × 1 MiB scattered",  # noqa: RUF001 - so many times
        "16 KiB contiguous",
        "1 MiB scattered",
    ]
    assert [line.split("│")[-2].strip() for line in lines] == ["faster", "slower", "within noise"]
    assert "+100.0 %" in lines[0]
    assert "−20.0 %" in lines[1]  # noqa: RUF001 - a minus
    assert "+25.0 %" in lines[1], "the latency"
    assert "Of 3 cases, 1 got slower beyond noise, 1 got faster, 1 stayed within noise." in words(done)


def test_faster_is_no_failure(tmp_path: Path) -> None:
    assert compared(tmp_path, slowed(1, 1, 1), slowed(0.5, 0.5, 0.5)).exit_code == 0


@pytest.mark.parametrize(("factor", "moved"), [(1.04, False), (1.07, True), (1 / 1.04, False), (1 / 1.07, True)])
def test_less_than_five_percent_never_counts(factor: float, *, moved: bool) -> None:
    exact = (1.0,) * 7
    (change,) = changed(single(1, rounds=exact), single(factor, rounds=exact))
    assert change.noise == pytest.approx(0, abs=1e-9)
    assert change.moved is moved
    assert change.slower is (moved and factor > 1)


def test_what_rounds_differ_by_does_not_count(tmp_path: Path) -> None:
    (change,) = changed(single(1, rounds=LOUD), single(1.3, rounds=LOUD))
    assert change.change < -0.2
    assert not change.moved
    (change,) = changed(single(1), single(1.3))
    assert change.moved
    assert compared(tmp_path, single(1, rounds=LOUD), single(1.3, rounds=LOUD)).exit_code == 0


def test_the_noise_is_twice_the_deviation_of_both() -> None:
    for first, second in ((LOUD, STEADY), (STEADY, LOUD)):
        before, after = single(1, rounds=first), single(1, rounds=second)
        (change,) = changed(before, after)
        spreads = 0.0
        for one in (before, after):
            rates = sorted(one["rows"][0]["gb_per_s_rounds"])
            away = sorted(abs(rate - rates[3]) for rate in rates)
            spreads += 2 * 1.4826 * away[3]
        assert change.noise == pytest.approx(spreads / change.before)
        assert change.noise > 0.5


def test_a_loaded_machine_is_told_apart(tmp_path: Path) -> None:
    before, after = single(1, copied=1e-4), single(2, copied=2e-4)
    (change,) = changed(before, after)
    assert (change.slower, change.alone) == (True, True)
    done = compared(tmp_path, before, after)
    assert done.exit_code == 1
    assert "slower, ratio steady" in done.output
    assert "1 got slower beyond noise (1 of them with a steady ratio)" in words(done)
    (change,) = changed(before, single(2, copied=1e-4))
    assert (change.slower, change.alone) == (True, False)
    assert change.ratio == pytest.approx(-0.5)


def test_the_ratio_is_judged_by_the_noise_of_its_own_rounds() -> None:
    """A busy machine slows a hand-over and the copy of the same round alike: GB/s vary, their ratio does not."""

    def loaded(factor: float, *, rounds_have_ratios: bool = True) -> dict[str, Any]:
        one = row("cpu", CASES[0], 1e-3 * factor, copied=1e-4, rounds=LOUD)
        ratios = [0.1 / factor * part for part in STEADY]
        one.update(of_memcpy_rounds=ratios, of_memcpy=0.1 / factor)
        if not rounds_have_ratios:
            del one["of_memcpy_rounds"]
        return report([one])

    (change,) = changed(loaded(1), loaded(1.3))
    assert change.noise > 0.5
    assert change.ratio_noise < 0.1
    assert (change.moved, change.ratio_moved) == (False, True)
    for before, after in ((False, True), (True, False)):  # a report that an earlier version wrote
        (change,) = changed(loaded(1, rounds_have_ratios=before), loaded(1.3, rounds_have_ratios=after))
        assert change.ratio_noise == change.noise
        assert (change.moved, change.ratio_moved) == (False, False)


def test_reports_of_two_benchmarks_have_nothing_in_common(tmp_path: Path) -> None:
    done = compared(tmp_path, single(1), buffer_report())
    assert done.exit_code == 2
    assert "have no case in common" in done.output


def test_conditions_that_differ_are_said(tmp_path: Path) -> None:
    other = {"processor": "Sample 9001", "cores": 2, "numpy": "2.0"}
    done = compared(tmp_path, slowed(1, 1, 1), slowed(1, 1, 1, machine=other, kvbridge="0.2.0", rounds=3))
    assert "Different machines: processor Sample 9000, then Sample 9001. Look at the ratio to memcpy." in words(done)
    assert "cores" not in done.output
    assert "Different versions of kvbridge: 0.1.0, then 0.2.0." in words(done)
    assert "Different numbers of rounds: 7, then 3." in words(done)
    assert "Fewer than 5 rounds: the noise is hardly known" in words(done)


def test_the_rule_is_in_the_output(tmp_path: Path) -> None:
    said = words(compared(tmp_path, slowed(1, 1, 1), slowed(1, 1, 1)))
    assert "differ by more than 5 % of the first, and by more than the noise" in said
    assert "A spread is 2 x 1.4826 x the median absolute deviation of the rounds" in said


def test_cases_that_only_one_has_are_counted(tmp_path: Path) -> None:
    before, after = slowed(1, 1, 1), slowed(1, 1, 1)
    after["rows"] = [after["rows"][0], row("nixl", CASES[0], 9.0)]
    done = compared(tmp_path, before, after)
    assert done.exit_code == 0
    said = "".join(done.output.split())
    assert f"Notcompared:2onlyin{tmp_path}/a.json,1onlyin{tmp_path}/b.json." in said
    assert "Of 1 case, 0 got slower" in done.output


def test_nothing_in_common_is_exit_code_2(tmp_path: Path) -> None:
    done = compared(tmp_path, slowed(1, 1, 1), report([row("nixl", CASES[0], 1.0)]))
    assert done.exit_code == 2
    assert (
        f"{tmp_path}/a.json and {tmp_path}/b.json have no case in common, expected two reports of one benchmark"
        in done.output
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            None,
            "cannot read {}: No such file or directory; expected a report that `kvbridge bench transfer, serve",
        ),
        (b"\xff", "{} is no JSON: "),
        (b"[" * 100_000, "{} is no JSON: "),
        (
            b"[]",
            "{} does not say of which benchmark it is; expected a report that `kvbridge bench transfer, serve, buffer`",
        ),
        (b'{"kvbridge": "0.1.0", "copies": []}', "{} does not say of which benchmark it is; "),
        (b'{"benchmark": "\\u001b[31mserve"}', "{} is of the benchmark '\\x1b[31mserve'; "),
        (b'{"benchmark": "transfer"}', "{} is no report of transfer: Object missing required field `kvbridge`; "),
    ],
)
@pytest.mark.parametrize("which", [0, 1])
def test_what_cannot_be_read_is_named_with_what_was_expected(
    tmp_path: Path, content: bytes | None, said: str, which: int
) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in paths:
        path.write_text(json.dumps(slowed(1, 1, 1)))
    if content is None:
        paths[which].unlink()
    else:
        paths[which].write_bytes(content)
    done = CliRunner().invoke(main, ["bench", "compare", *map(str, paths)])
    assert done.exit_code == 2
    assert said.format(paths[which]) in done.output
    assert "Traceback" not in done.output


def test_text_of_a_report_does_not_reach_the_terminal_as_it_is(tmp_path: Path) -> None:
    name = "\x1b[31m[bold]cpu\x07"
    rows = [{**one, "backend": name} for one in slowed(1, 1, 1)["rows"]]
    done = compared(tmp_path, report(rows, kvbridge="\x1b[2J"), report(rows))
    assert done.exit_code == 0, done.output
    assert "[bold]cpu" in done.output
    assert not set("\x1b\x07") & set(done.output)
