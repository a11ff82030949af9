"""`kvbridge bench transfer`: bytes are verified, figures add up, and the report says how they were got."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from kvbridge.bench import transfer
from kvbridge.bench.plain_socket import PlainSocket
from kvbridge.bench.transfer_case import MOST, PAGE, PROFILES, Case
from kvbridge.bench.transfer_sides import Sample
from kvbridge.cli.main import main
from kvbridge.errors import KVBridgeError

if TYPE_CHECKING:
    from pathlib import Path

SMALL = [Case(64 << 10, "contiguous", 2, repeats=2), Case(64 << 10, "scattered"), Case(PAGE, "paged")]


def test_bytes_are_handed_over_and_verified() -> None:
    rows = transfer.measure({"cpu": {}}, SMALL, rounds=2)
    assert [(row["layout"], row["in_flight"], row["count"]) for row in rows] == [
        ("contiguous", 2, 8),
        ("scattered", 1, 2),
        ("paged", 1, 2),
    ]
    for row in rows:
        assert row["gb_per_s"] > 0
        assert row["of_memcpy"] > 0
        assert row["seconds"]["min"] <= row["seconds"]["p50"] <= row["seconds"]["p99"] <= row["seconds"]["max"]
        assert ("of_socket" in row) is (row["in_flight"] == 1)
    for width in (80, 140):
        console = Console(record=True, width=width, file=io.StringIO())
        console.print(
            transfer.table([{**row, "of_raw": 0.5, "added_to_raw_seconds": 0.001} for row in rows], "cpu", 2, width)
        )
        said = console.export_text()
        assert "…" not in said, "a figure was cut off"
        assert ("CPU s/GiB" in said) is (width == 140)
        assert "scattered" in said


def test_several_backends_are_measured_in_one_run_and_written_down(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(PROFILES, "quick", SMALL[2:])
    out = tmp_path / "report.json"
    done = CliRunner().invoke(main, ["bench", "transfer", "cpu", "nccl", "--rounds", "1", "--json", str(out)])
    assert done.exit_code == 0, done.output
    report = json.loads(out.read_text())
    assert [row["backend"] for row in report["rows"]] == ["cpu", "nccl"]
    assert "of_raw" in report["rows"][1], "torch.distributed alone"
    assert set(report) >= {"machine", "kvbridge", "definitions", "rounds", "profile", "when"}
    assert "from just before the producer's insert" in " ".join(done.output.split())


def test_wrong_bytes_end_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    source, memory = np.arange(MOST // 1024, dtype=np.uint8), np.arange(MOST // 1024, dtype=np.uint8)
    case = Case(PAGE, "contiguous", 4)
    assert case.same(source, memory)
    memory[3 * PAGE + 5] += 1
    assert not case.same(source, memory)


def test_what_is_in_flight_fits_and_no_two_values_share_a_page() -> None:
    memory = np.zeros(64 * PAGE, dtype=np.uint8)
    for case in (Case(4 * PAGE, "scattered", 16), Case(4 * PAGE, "paged", 16)):
        pages = np.concatenate([case.pages(memory, 1, index) for index in range(case.flight)])
        assert sorted(pages.tolist()) == list(range(64))
    assert all(case.nbytes * case.flight <= MOST for cases in PROFILES.values() for case in cases)


def test_the_figures_of_a_row() -> None:
    samples = [Sample([0.1, 0.3], [0.2], (0.5, 0.25), 0.05, raw=0.1, socket=0.4) for _ in range(50)]
    samples[-1] = Sample([0.1, 0.3], [0.4], (0.5, 0.25), 0.3, raw=0.2, socket=0.8)
    row = transfer._row("x", Case(1 << 29, "contiguous", 2), samples)
    assert row["of_memcpy_rounds"] == pytest.approx([0.25] * 49 + [0.75])
    assert row["gb_per_s"] == pytest.approx((1 << 30) / 0.2 / 1e9)
    assert (row["of_memcpy"], row["of_raw"], row["of_socket"]) == pytest.approx((0.25, 0.5, 2.0))
    assert row["added_to_raw_seconds"] == pytest.approx(0.1)
    assert row["cpu_seconds_per_gib"] == pytest.approx({"producer": 0.5, "consumer": 0.25})
    assert (row["seconds"]["p50"], row["seconds"]["p99"], row["count"]) == (pytest.approx(0.2), 0.3, 100)


@pytest.mark.parametrize(("share", "expected"), [(50, 50), (90, 90), (99, 99)])
def test_percentiles_are_values_that_were_seen(share: int, expected: int) -> None:
    assert transfer._percentile(list(range(1, 101)), share) == expected
    assert transfer._percentile([7.0], share) == 7.0


def test_a_backend_that_cannot_start_ends_the_run_with_a_sentence() -> None:
    with pytest.raises(KVBridgeError, match="did you mean 'cpu'"):
        transfer.measure({"cpv": {}}, SMALL, rounds=1)


def test_options_are_for_one_backend() -> None:
    done = CliRunner().invoke(main, ["bench", "transfer", "cpu", "nixl", "--options", '{"capacity": 1}'])
    assert done.exit_code == 2
    assert "--options is for one backend" in done.output


def test_a_plain_socket_moves_every_byte() -> None:
    source = np.random.default_rng(1).integers(0, 255, 64 * PAGE, dtype=np.uint8)
    target = np.zeros_like(source)
    sender, receiver = PlainSocket({}, source, PAGE), PlainSocket({}, target, PAGE)
    try:
        sender.meet(receiver.card())
        for count in (64, 1, 7):
            target[:] = 0
            sender.move("x", np.arange(count), np.arange(count))
            assert (target[: count * PAGE] == source[: count * PAGE]).all()
    finally:
        sender.close()
        receiver.close()
