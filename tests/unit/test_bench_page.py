"""The page of a report of `kvbridge bench transfer`: well-formed, whole, escaped, and drawn where the figures say."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from kvbridge.bench import transfer
from kvbridge.bench.figures import in_bytes, in_time, number, short
from kvbridge.bench.page import charts, marks, write_page
from kvbridge.bench.page.axis import Axis, apart
from kvbridge.bench.transfer_case import Case
from kvbridge.cli.main import main
from kvbridge.errors import KVBridgeError
from tests.html_tree import Node, parse
from tests.sample_bench_reports import KIB, MIB, report, row, two_backends
from tests.sample_reports import HOSTILE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Place = tuple[float, float]


def written(folder: Path, found: dict[str, Any]) -> str:
    path = folder / "page.html"
    write_page(path, found)
    return path.read_bytes().decode("utf-8")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Node:
    return parse(written(tmp_path_factory.mktemp("page"), two_backends()))


def figures(page: Node, section: str) -> dict[str, Node]:
    (part,) = page.all("section", id=section)
    return {figure.all("h3")[0].words: figure for figure in part.all("figure")}


def chart(figure: Node) -> Node:
    (found,) = figure.all("svg", **{"class": "chart"})
    return found


def points(figure: Node) -> dict[str, Place]:
    """Where each point of a chart stands, by what it says of itself."""
    found = {}
    for point in chart(figure).all("path", **{"class": "point"}):
        place = re.match(r"translate\(([\d.]+) ([\d.]+)\)", point.attributes["transform"] or "")
        assert place is not None
        found[point.all("title")[0].words] = (float(place[1]), float(place[2]))
    return found


def table(node: Node) -> list[list[str]]:
    (found,) = node.all("table")
    lines = [[cell.words for cell in line.all() if cell.tag in {"th", "td"}] for line in found.all("tr")]
    for index, line in enumerate(lines):  # a size that stands for several rows
        if len(line) < len(lines[0]):
            line.insert(0, lines[index - 1][0])
    return lines


def test_each_layout_and_number_in_flight_has_a_chart_of_both_kinds(page: Node) -> None:
    expected = [
        "contiguous, one value at a time",
        "scattered, one value at a time",
        "contiguous, 8 values at a time",
        "scattered, 8 values at a time",
    ]
    assert list(figures(page, "bandwidth")) == expected
    assert list(figures(page, "latency")) == expected


def test_bandwidth_has_a_line_for_each_backend_and_for_what_it_is_compared_with(page: Node) -> None:
    alone = figures(page, "bandwidth")["contiguous, one value at a time"]
    several = figures(page, "bandwidth")["contiguous, 8 values at a time"]
    names = ["cpu", "nccl", "nccl, raw library", "memcpy", "socket"]
    assert [entry.words for entry in alone.all("li")] == names
    assert [entry.words for entry in several.all("li")] == ["cpu", "nccl", "memcpy"]
    assert len(chart(alone).all("path", **{"class": "line"})) == 5
    assert len(points(alone)) == 15, "each has three sizes"
    assert len(points(several)) == 6, "more than 64 MiB is not in flight"


def test_points_stand_where_the_figures_are_on_logarithmic_axes(page: Node) -> None:
    found = figures(page, "bandwidth")
    places = {title: where for title, figure in found.items() for title, where in points(figure).items()}
    known = []
    for words, (x, y) in places.items():
        said = re.fullmatch(r".*, (\d+) ([KM]iB): ([\d.]+) GB/s", words)
        assert said is not None
        known.append((int(said[1]) * {"KiB": KIB, "MiB": MIB}[said[2]], float(said[3]), x, y))
    known.sort()
    (size_a, _, x_a, _), (size_b, _, x_b, _) = known[0], known[-1]
    low, high = min(known, key=lambda one: one[1]), max(known, key=lambda one: one[1])
    for size, value, x, y in known:
        along = math.log(size / size_a) / math.log(size_b / size_a)
        assert x == pytest.approx(x_a + along * (x_b - x_a), abs=0.2)
        up = math.log(value / low[1]) / math.log(high[1] / low[1])
        assert y == pytest.approx(low[3] + up * (high[3] - low[3]), abs=0.6), "three digits are shown"
        assert charts.LEFT < x < charts.RIGHT
        assert charts.TOP <= y <= charts.BOTTOM
    assert high[3] < low[3], "more is higher"


def test_the_bandwidth_of_what_is_compared_is_that_of_the_report(page: Node) -> None:
    lines = table(figures(page, "bandwidth")["contiguous, one value at a time"])
    assert lines[0] == ["size", "cpu", "nccl", "nccl, raw library", "memcpy", "socket"]
    size, cpu, nccl, raw, memcpy, socket = lines[-1]
    seconds = 1e-3 + 64 * MIB / 2e9
    gb = 64 * MIB / 1e9
    assert size == "64 MiB"
    assert (cpu, nccl, raw) == tuple(number(gb / seconds / slow) for slow in (1, 2, 1))
    middle = (gb / seconds * 4 + gb / seconds * 2) / 2
    assert float(memcpy) == pytest.approx(middle, rel=0.01), "the median over the backends"
    assert float(socket) == pytest.approx(middle / 8, rel=0.01)


def test_latency_shows_median_p90_and_p99_of_each_backend_and_size(page: Node) -> None:
    figure = figures(page, "latency")["contiguous, 8 values at a time"]
    stems = chart(figure).all("g")
    said = [stem.all("title")[0].words for stem in stems if stem.all("path", **{"class": "stem"})]
    assert len(said) == 4
    rows = [one for one in two_backends()["rows"] if one["layout"] == "contiguous" and one["in_flight"] == 8]
    for one in rows:
        times = ", ".join(f"{name} {in_time(one['seconds'][name])}" for name in ("p50", "p90", "p99"))
        assert f"{one['backend']}, {in_bytes(one['bytes'])}: {times}, of 56" in said
    by_row = [line for line in table(figure)[1:] if line[0] == "1 MiB"]
    assert [line[1] for line in by_row] == ["cpu", "nccl"]
    assert by_row[0][2:] == [in_time(rows[1]["seconds"][name]) for name in ("p50", "p90", "p99")] + ["56"]


def test_a_stem_goes_from_the_median_to_p99(page: Node) -> None:
    stems = chart(figures(page, "latency")["contiguous, 8 values at a time"]).all("path", **{"class": "stem"})
    for stem in stems:
        along = re.fullmatch(r"M([\d.]+) ([\d.]+)V([\d.]+)", stem.attributes["d"] or "")
        assert along is not None
        (p90,) = (dash for dash in stem.parent.all("path", **{"class": "dash"})) if stem.parent else ()
        middle = float((p90.attributes["d"] or "").split()[1].split("h")[0])
        assert float(along[3]) <= middle <= float(along[2]), "longer is higher"
        assert float(along[3]) < float(along[2])
    xs = [float((stem.attributes["d"] or "M0 ")[1:].split()[0]) for stem in stems]
    assert len(set(xs)) == 4, "no stem hides another"


def test_ratios_and_processor_time_are_in_a_table_for_each_group(page: Node) -> None:
    (section,) = page.all("section", id="ratios")
    tables = section.all("div", **{"class": "scroll"})
    assert len(tables) == 4
    lines = table(tables[0])
    assert lines[0][2:] == [
        "GB/s",
        "of memcpy",
        "of socket",
        "of raw",
        "added to raw",
        "CPU s/GiB, producer",
        "CPU s/GiB, consumer",
    ]
    (line,) = (one for one in lines if one[:2] == ["64 MiB", "nccl"])
    seconds = 2 * (1e-3 + 64 * MIB / 2e9)
    expected = [0.25, 2.0, 0.5]
    assert [float(cell) for cell in line[3:6]] == pytest.approx(expected, rel=0.01)
    assert line[6] == in_time(seconds / 2)
    assert [float(cell) for cell in line[7:]] == pytest.approx([0.25 * seconds * 16, 0.125 * seconds * 16], rel=0.01)
    (line,) = (one for one in lines if one[:2] == ["64 MiB", "cpu"])
    assert line[5:7] == ["–", "–"]  # noqa: RUF001 - its sign for nothing


def test_definitions_machine_and_run_are_told(page: Node) -> None:
    (section,) = page.all("section", id="definitions")
    words = dict(zip((dt.words for dt in section.all("dt")), (dd.words for dd in section.all("dd")), strict=True))
    assert words == {name: " ".join(text.split()) for name, text in transfer.DEFINITIONS.items()}
    facts = {
        line.all("th")[0].words: line.all("td")[0].words
        for line in page.all("table", **{"class": "facts"})[0].all("tr")
    }
    assert facts == {
        "backends": "cpu, nccl",
        "rounds": "7, interleaved",
        "profile": "quick",
        "kvbridge": "0.1.0",
        "when": "2026-03-14 09:26 UTC",
        "machine: processor": "Sample 9000",
        "machine: cores": "2",
        "machine: numpy": "2.0",
    }


def test_every_chart_has_a_title_a_description_and_a_table_beside_it(page: Node) -> None:
    ids = Counter(node.attributes["id"] for node in page.all() if "id" in node.attributes)
    assert not [id_ for id_, count in ids.items() if count > 1]
    pictures = page.all("svg", role="img")
    assert len(pictures) == 8
    for picture in pictures:
        (title,) = page.all("title", id=picture.attributes["aria-labelledby"] or "")
        (about,) = page.all("desc", id=picture.attributes["aria-describedby"] or "")
        assert title.words.split(":")[0] in {"Bandwidth", "Latency"}
        assert "cpu" in about.words
        assert picture.parent is not None
        assert len(picture.parent.all("table")) == 1
    for swatch in page.all("ul", **{"class": "legend"})[0].all("svg"):
        assert swatch.attributes["aria-hidden"] == "true"
    for node in page.all():
        for reference in (node.attributes.get("aria-labelledby") or "").split():
            assert reference in ids
    assert {(link.attributes["href"] or "")[1:] for link in page.all("a")} <= set(ids)


def test_headings_are_in_order_and_tables_have_heads(page: Node) -> None:
    levels = [int(node.tag[1]) for node in page.all() if re.fullmatch("h[1-6]", node.tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for found in page.all("table"):
        assert found.all("caption")
        assert all(head.attributes.get("scope") in {"col", "row", "rowgroup"} for head in found.all("th"))
        assert all(line.all("th") for line in found.all("tr"))


def hostile() -> dict[str, Any]:
    attack = f'{HOSTILE}</style></svg><script>alert(1)</script><img src="https://example.org/x">"\' onload="x" \udcff'
    rows = [{**one, "backend": one["backend"] + attack, "layout": attack} for one in two_backends()["rows"][:3]]
    return report(
        rows,
        kvbridge=attack,
        when=attack,
        profile=attack,
        machine={attack: attack, "list": [attack]},
        definitions={attack: attack},
    )


def test_text_of_a_report_never_becomes_markup(tmp_path: Path) -> None:
    text = written(tmp_path, hostile())
    page = parse(text)
    assert not page.all("script")
    assert not page.all("img")
    assert not [name for node in page.all() for name in node.attributes if name.startswith("on")]
    assert "<script>alert(1)</script>" in page.text
    assert not set("\x00\x1b") & set(text)


def test_nothing_is_fetched_and_no_script_may_run(tmp_path: Path) -> None:
    page = parse(written(tmp_path, hostile()))
    for node in page.all():
        assert not {"src", "srcset", "action", "data", "poster"} & set(node.attributes)
        for name, value in node.attributes.items():
            assert name not in {"href", "xlink:href"} or (value or "").startswith(("#", "data:,"))
    (style,) = page.all("style")
    assert not re.search(r"url\(|@import|//", style.text)
    (policy,) = (node for node in page.all("meta") if node.attributes.get("http-equiv") == "Content-Security-Policy")
    allowed = policy.attributes["content"] or ""
    assert allowed.startswith("default-src 'none'")
    assert "script-src" not in allowed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"benchmark": "reuse"},
            "is of the benchmark 'reuse'; expected a report that `kvbridge bench transfer, serve, buffer`",
        ),
        ({"benchmark": None}, "does not say of which benchmark it is; .* other benchmarks are not supported here"),
        ({"rows": []}, r"is no report of transfer: Expected `array` of length >= 1 - at `\$.rows`"),
        ({"rounds": "many"}, r"is no report of transfer: Expected `int`, got `str` - at `\$.rounds`"),
        (
            {"rows": [{**two_backends()["rows"][0], "gb_per_s": 0}]},
            r"is no .*: Expected `float` > 0.0 - at `\$.rows\[0\].gb_per_s`",
        ),
        (
            {"rows": [{**two_backends()["rows"][0], "bytes": math.inf}]},
            r"is no .*: Expected `int`, got `float` - at `\$.rows\[0\].bytes`",
        ),
        ({"rows": two_backends()["rows"][:1] * 2}, "is no report of transfer: two rows are about the same case"),
    ],
)
def test_what_is_no_report_of_transfers_is_an_error(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(KVBridgeError, match=f"the report {said}"):
        write_page(tmp_path / "page.html", {**two_backends(), **change})
    assert not (tmp_path / "page.html").exists()


def test_one_case_of_one_backend_makes_a_page(tmp_path: Path) -> None:
    page = parse(written(tmp_path, report([row("cpu", Case(3 * MIB // 2, "paged"), 1e-3)])))
    ((x, y), *_) = points(figures(page, "bandwidth")["paged, one value at a time"]).values()
    assert (x, y) == pytest.approx(((charts.LEFT + charts.RIGHT) / 2, y), abs=0.1)
    texts = [text.words for text in chart(figures(page, "latency")["paged, one value at a time"]).all("text")]
    assert texts == ["time", "1 ms", "2 ms", "1.5", "MiB", "size of a value"]


def test_the_command_writes_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(transfer, "measure", lambda *_: two_backends()["rows"])
    out, figures_file = tmp_path / "page.html", tmp_path / "report.json"
    command = ["bench", "transfer", "cpu", "nccl", "--html", str(out), "--json", str(figures_file)]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert parse(out.read_text()).all("h1")[0].words == "Hand-over between two processes: cpu, nccl"
    assert len(json.loads(figures_file.read_text())["rows"]) == 20


def test_a_page_that_cannot_be_written_is_said_after_the_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(transfer, "measure", lambda *_: two_backends()["rows"])
    done = CliRunner().invoke(main, ["bench", "transfer", "cpu", "--html", str(tmp_path / "none" / "page.html")])
    assert done.exit_code == 1
    assert "two processes, 9 interleaved rounds" in done.output
    assert "the report was not written: [Errno 2] No such file or directory" in done.output


def colours(page: Node, scheme: int) -> dict[str, str]:
    blocks = re.findall(r":root \{(.*?)\n\s*\}", page.all("style")[0].text, re.DOTALL)
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[scheme]))


def linear(colour: str) -> list[float]:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def contrast(one: str, other: str) -> float:
    dark, light = sorted(
        0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in (linear(one), linear(other))
    )
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1])
def test_text_and_lines_stand_out_in_light_and_dark(page: Node, scheme: int) -> None:
    known = colours(page, scheme)
    for text, grounds in (("ink", "paper sheet faint"), ("soft", "paper sheet"), ("link", "paper sheet")):
        assert all(contrast(known[text], known[ground]) >= 4.5 for ground in grounds.split()), text
    for text in ("on-band", "on-band-soft"):
        assert contrast(known[text], known["band"]) >= 4.5
    hues = [known[f"hue-{index}"] for index in range(marks.HUES)]
    assert all(contrast(hue, known["sheet"]) >= 3 for hue in hues)


SEEN = {
    "all colours": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "no red": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "no green": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "no blue": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}
"""What is left of linear red, green and blue for an eye that lacks a kind of cone (Machado and others, 2009)."""


def lab(colour: str, eye: str) -> tuple[float, float, float]:
    red, green, blue = (
        min(1.0, max(0.0, sum(a * b for a, b in zip(line, linear(colour), strict=True)))) for line in SEEN[eye]
    )
    x, y, z = (
        share ** (1 / 3) if share > 0.008856 else 7.787 * share + 16 / 116
        for share in (
            (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505,
            0.2126 * red + 0.7152 * green + 0.0722 * blue,
            (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089,
        )
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("scheme", [0, 1])
@pytest.mark.parametrize("eye", SEEN)
def test_colours_can_be_told_apart_by_every_eye(page: Node, scheme: int, eye: str) -> None:
    hues = [colours(page, scheme)[f"hue-{index}"] for index in range(marks.HUES)]
    for one, other in combinations(hues, 2):
        assert math.dist(lab(one, eye), lab(other, eye)) > 12, f"{one} and {other}"


def test_no_two_backends_look_alike_and_shapes_do_without_colours() -> None:
    assert len({(marks.backend(index).css, marks.backend(index).shape) for index in range(42)}) == 42
    assert len({marks.backend(index).shape for index in range(7)}) == 7
    assert marks.backend(6).css != marks.backend(0).css


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([1.0, 1.0], [1, 2]),
        ([0.3, 4.0], [0.2, 0.5, 1, 2, 5]),
        ([0.9999999999999999, 10.000000000000002], [1, 2, 5, 10]),
        ([0.004, 90.0], [0.01, 0.1, 1, 10, 100]),
        ([1e-9, 1e9], [1e-9, 1e-7, 1e-5, 1e-3, 1e-1, 1e1, 1e3, 1e5, 1e7, 1e9]),
    ],
)
def test_an_axis_is_labelled_at_round_values_few_enough_to_be_read(values: Sequence[float], ticks: list[float]) -> None:
    axis = Axis(values, 200.0, 0.0)
    assert axis.ticks == pytest.approx(ticks)
    assert all(0 <= axis.at(value) <= 200 for value in values if value in axis.ticks)
    places = [axis.at(tick) for tick in axis.ticks]
    assert all(below - above >= 12 for below, above in pairwise(places))


def test_labels_that_would_overlap_are_left_out() -> None:
    assert apart([0, 10, 34, 50, 68, 200], 34) == [0, 2, 4, 5]
    assert apart([], 34) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.00620, "0.00620"),
        (0.9996, "1.00"),
        (2.5, "2.50"),
        (99.96, "100"),
        (1234.5, "1,234"),
        (-0.5, "−0.500"),  # noqa: RUF001 - a minus
    ],
)
def test_numbers_have_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (3e-10, "0.300 ns"),
        (1e-6, "1.00 µs"),
        (9.999e-4, "1.00 ms"),
        (0.25, "250 ms"),
        (-5.25e-4, "−525 µs"),  # noqa: RUF001 - a minus
        (75, "75.0 s"),
    ],
)
def test_times_have_a_unit(seconds: float, text: str) -> None:
    assert in_time(seconds) == text


def test_labels_have_no_zeros_at_their_end() -> None:
    assert [short(value) for value in (0.005, 10, 200, 1.5)] == ["0.005", "10", "200", "1.5"]
    assert [in_bytes(value) for value in (7, 16 << 10, 3 << 19)] == ["7 B", "16 KiB", "1.5 MiB"]
