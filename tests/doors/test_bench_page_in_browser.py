"""Pages of reports in a real browser: charts are painted, and nothing reaches beyond the window."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvbridge.bench.page import write_page
from kvbridge.bench.transfer_case import NIGHTLY
from tests.doors import browser
from tests.doors.test_page_in_browser import DARK, FRAME
from tests.sample_bench_reports import buffer_report, report, row, serve_report

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

NAMES = ["cpu", "files", "mooncake", "mooncake-store", "nccl", "nixl", "somebody-elses-very-long-name" * 2]
WIDE, NARROW, HEIGHT = 1280, 360, 1100

PROBE = """<script>
addEventListener("load", () => {
  const root = document.documentElement;
  const box = (element) => {
    const { left, top, right, bottom } = element.getBoundingClientRect();
    return { left, top, right, bottom };
  };
  for (const details of document.querySelectorAll("details")) details.open = true;
  const inside = (one, other) => one.left >= other.left - 1 && one.right <= other.right + 1 &&
    one.top >= other.top - 1 && one.bottom <= other.bottom + 1;
  const overlap = (one, other) => one.left < other.right && other.left < one.right && one.top < other.bottom - 2 &&
    other.top < one.bottom - 2;
  const charts = [...document.querySelectorAll(".chart")];
  const cut = [], covered = [];
  for (const chart of charts) {
    const texts = [...chart.querySelectorAll("text")].map((text) => ({ said: text.textContent, ...box(text) }));
    cut.push(...texts.filter((text) => !inside(text, box(chart))).map((text) => text.said));
    texts.forEach((text, index) => {
      for (const other of texts.slice(index + 1)) {
        if (overlap(text, other)) covered.push([text.said, other.said]);
      }
    });
  }
  const outside = [...document.querySelectorAll("main *")].filter((element) =>
    element.getBoundingClientRect().right > innerWidth + 1 && !element.closest(".scroll"));
  const found = {
    scroll: root.scrollWidth, cut, covered, outside: outside.map((element) => element.outerHTML.slice(0, 80)),
    charts: charts.length,
  };
  for (const details of document.querySelectorAll("details")) details.open = false;
  found.boxes = charts.slice(0, 2).map(box);
  root.dataset.probe = JSON.stringify(found);
});
</script>"""


def page(folder: Path) -> Path:
    rows = [
        row(name, case, (index + 1) * (1e-4 + case.nbytes * case.flight / 1e10), raw=index > 3)
        for index, name in enumerate(NAMES)
        for case in NIGHTLY
    ]
    path = folder / "page.html"
    write_page(path, report(rows, machine={"processor": "p" * 200}))
    return path


def probed(folder: Path, path: Path, width: int) -> dict[str, Any]:
    """What a script finds in the page, its tables open; without the page's policy, which would keep it from running."""
    text, removed = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", path.read_text(encoding="utf-8"))
    assert removed == 1
    variant, frame = folder / "probed.html", folder / "frame.html"
    variant.write_text(text.replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
    frame.write_text(FRAME.format(width=width, height=HEIGHT, source=variant.name), encoding="utf-8")
    dom = browser.dom(folder / "profile", frame.as_uri(), width=WIDE + 100, height=HEIGHT + 100)
    found = re.search(r'data-probe="([^"]*)"', dom)
    assert found is not None
    return dict(json.loads(unescape(found[1])))


def columns(pixels: NDArray[np.int64], box: dict[str, float], colour: str) -> float:
    """The part of a box's columns that have a colour somewhere: a line across it has most, its points few."""
    left, right, top, bottom = (round(box[side]) for side in ("left", "right", "top", "bottom"))
    wanted = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)])
    return float((np.abs(pixels[top:bottom, left:right] - wanted).max(axis=2) < 30).any(axis=0).mean())


def test_charts_are_painted_in_both_schemes_and_nothing_overlaps_or_reaches_out(tmp_path: Path) -> None:
    browser.installed()
    path = page(tmp_path)
    for width in (NARROW, WIDE):
        found = probed(tmp_path, path, width)
        assert found["charts"] == 18
        assert found["scroll"] <= width
        assert found["outside"] == []
        assert found["cut"] == [], "a label is cut off at the edge of its chart"
        assert found["covered"] == [], "labels cover each other"
    blocks = re.findall(r":root \{(.*?)\n\s*\}", path.read_text(), re.DOTALL)
    for scheme, flags in enumerate(([], [DARK])):
        pixels = browser.screenshot(tmp_path / f"shot-{scheme}", path.as_uri(), *flags, width=WIDE, height=HEIGHT)
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[scheme]))
        for box in found["boxes"]:
            for hue in range(6):
                assert columns(pixels, box, colours[f"hue-{hue}"]) > 0.5, f"the line of backend {hue}, scheme {scheme}"
            assert columns(pixels, box, colours["sheet"]) == 1, "the ground of the chart"


@pytest.mark.parametrize(
    ("found", "charts"),
    [(serve_report({name: 0.1 * (index + 1) for index, name in enumerate(NAMES)}), 1), (buffer_report(), 2)],
)
def test_on_pages_of_other_benchmarks_nothing_overlaps_or_reaches_out(
    tmp_path: Path, found: dict[str, Any], charts: int
) -> None:
    browser.installed()
    path = tmp_path / "page.html"
    write_page(path, found)
    for width in (NARROW, WIDE):
        seen = probed(tmp_path, path, width)
        assert seen["charts"] == charts
        assert seen["scroll"] <= width
        assert seen["outside"] == []
        assert (seen["cut"], seen["covered"]) == ([], [])
