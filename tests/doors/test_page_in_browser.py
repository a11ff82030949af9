"""The page in a real browser: it is painted, fits every width, and its filters work."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvbridge.capabilities import Capabilities
from kvbridge.conformance.page import write_page
from kvbridge.conformance.results import Outcome
from tests.doors import browser
from tests.sample_reports import HOSTILE, conforming, failing, modest, report

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

WIDE, NARROW, HEIGHT = 1200, 360, 900
DARK = "--blink-settings=preferredColorScheme=0"

PROBE = """<script>
addEventListener("load", () => {
  const box = (element) => {
    const { left, top, right, bottom } = element.getBoundingClientRect();
    return { left, top, right, bottom };
  };
  const form = document.getElementById("filters");
  const change = (name, value) => {
    form.elements[name].value = value;
    form.dispatchEvent(new Event("input"));
  };
  const go = (hash) => {
    history.replaceState(null, "", hash);
    dispatchEvent(new HashChangeEvent("hashchange"));
  };
  STEPS
  const root = document.documentElement;
  const outside = [...document.querySelectorAll("main *")].filter((element) =>
    element.getBoundingClientRect().right > innerWidth + 1 && !element.closest(".scroll, pre, caption"));
  root.dataset.probe = JSON.stringify({
    inner: [innerWidth, innerHeight],
    scroll: root.scrollWidth,
    outside: outside.map((element) => element.outerHTML.slice(0, 80)),
    band: box(document.querySelector(".top")),
    cards: [...document.querySelectorAll(".card")].map(box),
    verdicts: [...document.querySelectorAll(".verdict")].map(box),
    filters: !form.hidden,
    rows: [...document.querySelectorAll("[data-requirement]")].filter((row) => row.offsetHeight).map((row) => row.id),
    parts: [...document.querySelectorAll(".part")].filter((part) => part.offsetHeight).length,
    cells: document.querySelector(".results td").offsetTop > document.querySelector(".results th[scope=row]").offsetTop,
    said: form.elements.shown.value,
    only: form.elements.only.value,
    find: form.elements.find.value,
    nothing: !document.getElementById("nothing").hidden,
    hash: location.hash,
    hacked: window.hacked || 0,
  });
});
</script>"""

# A browser's window has a least width; a frame in it has none.
FRAME = """<!DOCTYPE html>
<style>body {{ margin: 0 }} iframe {{ border: 0; width: {width}px; height: {height}px }}</style>
<iframe src="{source}"></iframe>
<script>
addEventListener("load", () => {{
  const found = document.querySelector("iframe").contentDocument.documentElement.dataset.probe;
  if (found) document.documentElement.dataset.probe = found;
}});
</script>"""


def probed(
    folder: Path, page: Path, *, width: int = WIDE, state: str = "", steps: str = "", policy: bool = False
) -> dict[str, Any]:
    """What a script finds in the page, given its state in the address, after some steps in it."""
    text = page.read_text(encoding="utf-8")
    if not policy:
        text, removed = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
        assert removed == 1  # it would keep the probe from running
    variant = folder / "probed.html"
    variant.write_text(text.replace("</body>", f"{PROBE.replace('STEPS', steps)}</body>"), encoding="utf-8")
    frame = folder / "frame.html"
    frame.write_text(FRAME.format(width=width, height=HEIGHT, source=f"{variant.name}{state}"), encoding="utf-8")
    dom = browser.dom(folder / "profile", frame.as_uri(), width=WIDE + 100, height=HEIGHT + 100)
    found = re.search(r'data-probe="([^"]*)"', dom)
    return {} if found is None else dict(json.loads(unescape(found[1])))


def painted(pixels: NDArray[np.int64], box: dict[str, float], *, top: int, height: int) -> NDArray[np.int64]:
    """The most frequent colour of a strip of a box, from `top` pixels below its upper edge."""
    left, right, upper = round(box["left"]) + 12, round(box["right"]) - 12, round(box["top"]) + top
    colours, counts = np.unique(pixels[upper : upper + height, left:right].reshape(-1, 3), axis=0, return_counts=True)
    return np.asarray(colours[counts.argmax()])


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    browser.installed()
    path = tmp_path_factory.mktemp("page") / "page.html"
    write_page(path, [conforming(), failing(), modest()])
    return path


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_without_a_browser_ci_fails_and_a_desk_skips(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(outcome, match="found no browser named chromium"):
        browser.installed()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_band_and_verdicts_are_painted_in_their_colours(tmp_path: Path, page: Path, scheme: str) -> None:
    where = probed(tmp_path, page)
    flags = [DARK] if scheme == "dark" else []
    pixels = browser.screenshot(tmp_path / "shot", page.as_uri(), *flags, width=WIDE, height=HEIGHT)
    band = painted(pixels, where["band"], top=4, height=6)
    assert band[2] > band[0], f"the band is blue, found {band}"
    good, bad, mixed = (painted(pixels, card, top=1, height=3) for card in where["cards"])
    assert good[1] > good[0] + 40, f"the first card is green, found {good}"
    assert bad[0] > max(bad[1:]) + 80, f"the second card is red, found {bad}"
    assert mixed[0] > mixed[1] > mixed[2] + 60, f"the third card is amber, found {mixed}"
    paper = painted(pixels, {**where["band"], "top": where["band"]["bottom"]}, top=4, height=8)
    assert (paper.min() > 230) if scheme == "light" else (paper.max() < 60)
    for box in where["verdicts"]:
        left, right, top, bottom = (round(box[side]) for side in ("left", "right", "top", "bottom"))
        assert pixels[top:bottom, left:right].std() > 5, "a verdict is written in its box"


@pytest.mark.parametrize("width", [NARROW, 700, WIDE])
def test_nothing_reaches_beyond_the_window(tmp_path: Path, width: int) -> None:
    browser.installed()
    hostile = report(
        "x" * 60,
        Capabilities(),
        {"backend/01-probe": {"outcome": Outcome.FAILED, "reason": HOSTILE + "y" * 300, "details": "z" * 3000}},
        options={"path": "p" * 200},
    )
    path = tmp_path / "page.html"
    write_page(path, [conforming(), failing(), hostile])
    path.write_text(path.read_text().replace("<details", "<details open"))
    found = probed(tmp_path, path, width=width)
    assert found["inner"][0] == width
    assert found["scroll"] <= width
    assert found["outside"] == []
    assert found["cells"] is (width < 800), "cells stand under their requirement where there is no room beside it"


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_many_backends_scroll_in_their_tables_only(tmp_path: Path, width: int) -> None:
    browser.installed()
    path = tmp_path / "page.html"
    write_page(path, [conforming(), failing(), modest()] * 3)
    found = probed(tmp_path, path, width=width)
    assert found["scroll"] <= width
    assert found["outside"] == []


def test_filters_appear_and_all_is_shown_at_first(tmp_path: Path, page: Path) -> None:
    found = probed(tmp_path, page)
    assert found["filters"]
    assert len(found["rows"]) == len(conforming().results)
    assert found["said"] == f"all {len(found['rows'])} shown"


def test_the_address_can_ask_for_failures(tmp_path: Path, page: Path) -> None:
    found = probed(tmp_path, page, state="#only=failed")
    assert found["rows"] == [
        "backend/10-import-light",
        "pipe/03-order",
        "buffer/05-lease",
        "buffer/06-lease-late-read",
        "fault/05-peer-killed",
    ]
    assert found["said"] == f"5 of {len(conforming().results)} shown"
    assert found["only"] == "failed"
    assert found["parts"] == 4, "parts without a row are left out"


def test_the_address_can_ask_for_differences_and_words(tmp_path: Path, page: Path) -> None:
    found = probed(tmp_path, page, state="#only=differs&find=Waived+lease")
    assert found["rows"] == ["buffer/05-lease"]
    assert (found["only"], found["find"]) == ("differs", "Waived lease")


def test_what_is_chosen_is_kept_in_the_address(tmp_path: Path, page: Path) -> None:
    found = probed(tmp_path, page, steps='change("only", "failed"); change("find", "Producer");')
    assert found["rows"] == ["buffer/06-lease-late-read", "fault/05-peer-killed"]
    assert found["hash"] == "#only=failed&find=Producer"
    assert not found["nothing"]


def test_filters_that_nothing_fits_say_so(tmp_path: Path, page: Path) -> None:
    found = probed(tmp_path, page, steps='change("find", "nothing has this");')
    assert (found["rows"], found["parts"], found["nothing"]) == ([], 0, True)


def test_a_link_to_a_requirement_that_is_filtered_out_shows_it(tmp_path: Path, page: Path) -> None:
    found = probed(tmp_path, page, state="#only=failed", steps='go("#pipe/01-bytes");')
    assert len(found["rows"]) == len(conforming().results)
    assert found["only"] == "all"


def test_a_link_to_a_requirement_that_is_shown_keeps_the_filters(tmp_path: Path, page: Path) -> None:
    found = probed(tmp_path, page, state="#only=failed", steps='go("#pipe/03-order");')
    assert len(found["rows"]) == 5


def test_a_report_cannot_run_a_script(tmp_path: Path) -> None:
    browser.installed()
    attack = '</script></pre><script>window.hacked = 1</script><img src="x" onerror="window.hacked = 1">'
    change = {"outcome": Outcome.FAILED, "reason": attack, "details": attack, "sentence": attack}
    path = tmp_path / "page.html"
    write_page(path, [report(f"b{attack}", Capabilities(), {"backend/01-probe": change}, machine={attack: attack})])
    assert probed(tmp_path, path)["hacked"] == 0
    assert probed(tmp_path, path, policy=True) == {}, "the page's policy stops a script that is not its own"
