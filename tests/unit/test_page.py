"""The page of reports: well-formed, whole, escaped, and without anything that it would have to fetch."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec
import pytest

from kvbridge.capabilities import Capabilities
from kvbridge.conformance.page import write_page
from kvbridge.conformance.page.top import MEANINGS
from kvbridge.conformance.results import Outcome, Report
from tests.html_tree import Node, parse
from tests.sample_reports import HOSTILE, conforming, failing, modest, report

if TYPE_CHECKING:
    from pathlib import Path


def written(folder: Path, *reports: Report) -> str:
    path = folder / "page.html"
    write_page(path, reports)
    return path.read_bytes().decode("utf-8")


def parsed(folder: Path, *reports: Report) -> Node:
    return parse(written(folder, *reports))


def row_of(page: Node, id_: str) -> Node:
    (row,) = (node for node in page.all("tbody") if node.attributes.get("id") == id_)
    return row


def cells_of(page: Node, id_: str) -> list[Node]:
    (line, *_) = row_of(page, id_).all("tr")
    return line.all("td")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Node:
    return parsed(tmp_path_factory.mktemp("page"), conforming(), failing(), modest())


def test_every_requirement_has_one_row_with_a_cell_for_each_run(page: Node) -> None:
    rows = {row.attributes["id"]: row for row in page.all("tbody") if "data-requirement" in row.attributes}
    assert list(rows) == [result.id for result in conforming().results]
    for result in conforming().results:
        head = rows[result.id].all("th", scope="row")
        assert len(head) == 1
        assert head[0].words == f"{result.id} {result.level}{result.sentence}"
        assert len(cells_of(page, result.id)) == 3


def test_a_cell_says_outcome_time_and_reason_in_words(page: Node) -> None:
    cpu, rdma, files = cells_of(page, "buffer/06-lease-late-read")
    assert cpu.words.startswith("cpu✓ passed")
    assert re.search(r"\d+ ms$", cpu.words)
    assert "✗ failed 2.0 s" in rdma.words
    assert rdma.all("summary")[0].words == "the lease ended at 1.00 s, the read at 1.41 s, and the fill succeeded."
    assert "Expected LeaseExpiredError" in rdma.all("p", **{"class": "whole"})[0].text
    assert "passed" in files.words
    assert "! waived" in cells_of(page, "buffer/05-lease")[2].words
    assert cells_of(page, "pipe/01-bytes")[2].words == "files– unclaimednot claimed: pipe"  # noqa: RUF001 - its symbol
    assert "○ not run" in cells_of(page, "fault/08-two-hosts")[1].words


def test_a_should_that_fails_says_whether_it_counts(tmp_path: Path, page: Node) -> None:
    soft = cells_of(page, "backend/10-import-light")[1]
    assert "soft" in soft.classes()
    assert "does not count in this run" in soft.words
    strict = parsed(tmp_path, failing(strict=True))
    assert "does not count" not in cells_of(strict, "backend/10-import-light")[0].words
    assert "Counts as a failure: the run is strict." in cells_of(strict, "fault/08-two-hosts")[0].words


def test_evidence_is_there_to_be_opened(page: Node) -> None:
    evidence = row_of(page, "fault/05-peer-killed").all("details")
    assert [details.all("summary")[0].words for details in evidence] == ["Evidence: rdma, 9 lines"]
    assert "kvbridge.conformance.expect.Fault" in evidence[0].all("pre")[0].text
    assert all("open" not in details.attributes for details in page.all("details"))


def test_huge_evidence_is_cut_in_the_middle_and_says_so(tmp_path: Path) -> None:
    change = {"outcome": Outcome.FAILED, "reason": "r", "details": "first\n" + "x" * 10**6 + "\nlast"}
    text = written(tmp_path, report("big", Capabilities(), {"backend/01-probe": change}))
    assert len(text) < 200_000
    (pre,) = parse(text).all("pre")
    assert pre.text.startswith("first")
    assert pre.text.endswith("last")
    assert "980,011 characters left out here; the JSON report has them" in pre.text


def test_cards_give_the_verdict_and_what_speaks_against_a_backend(page: Node) -> None:
    cards = {card.all("h3")[0].words: card for card in page.all("article", **{"class": "card"})}
    assert list(cards) == ["cpu", "rdma", "files"]
    tones = {name: card.classes()[1] for name, card in cards.items()}
    assert tones == {"cpu": "good", "rdma": "bad", "files": "mixed"}
    assert "conforms to contract 1.0" in cards["cpu"].words
    assert "fails 3 requirements" in cards["rdma"].words
    assert [link.words for link in cards["rdma"].all("a")] == [result.id for result in failing().failures]
    assert "conforms, but for 1 waived failure" in cards["files"].words
    assert "20 requirements do not apply: it does not claim pipe, pages, cuda, cross_host." in cards["files"].words


def test_runs_are_described(page: Node) -> None:
    (section,) = page.all("section", id="runs")
    rows = {
        row.all("th")[0].all("span")[0].words: [cell.words for cell in row.all("td")] for row in section.all("tr")[1:]
    }
    assert rows["distribution"] == ["kvbridge 0.1.0", "kvbridge-rdma 0.3.1", "kvbridge-files 0.3.1"]
    assert rows["contract"] == ["1.0"] * 3
    assert rows["peers"] == ["processes"] * 3
    assert rows["options"][1] == '{"device": "mlx5_0", "gid_index": 3, "queue_pairs": 4}'
    assert rows["started"] == ["2026-03-14 09:26 UTC"] * 3
    assert rows["platform"] == ["Linux-6.8-x86_64"] * 3
    assert rows["kvbridge"] == ["0.1.0"] * 3


def test_capabilities_stand_side_by_side_and_differences_are_marked(page: Node) -> None:
    (section,) = page.all("section", id="capabilities")
    rows = {row.all("code")[0].words: row for row in section.all("tr")[1:]}
    assert set(rows) == set(msgspec.structs.asdict(Capabilities()))
    said = ["– no", "✓ yes tested by 1 requirement", "– no"]  # noqa: RUF001 - its symbol
    assert [cell.words for cell in rows["cuda"].all("td")] == said
    assert rows["cuda"].all(**{"class": "tag"})
    assert not rows["buffer"].all(**{"class": "tag"})


def test_every_capability_has_a_meaning_for_who_chooses() -> None:
    assert set(MEANINGS) == set(Capabilities.__struct_fields__)


def test_conditions_that_differ_are_a_warning(tmp_path: Path, page: Node) -> None:
    assert not page.all(**{"class": "warning"})
    (warning,) = parsed(tmp_path, conforming(), conforming(contract="2.0")).all(**{"class": "warning"})
    assert "Different contract versions: 1.0 for cpu (run 1); 2.0 for cpu (run 2)." in warning.words


def test_headings_are_in_order_and_tables_have_heads(page: Node) -> None:
    levels = [int(node.tag[1]) for node in page.all() if re.fullmatch("h[1-6]", node.tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for table in page.all("table"):
        assert table.all("caption")
        assert all(head.attributes.get("scope") in {"col", "row"} for head in table.all("th"))
        for row in table.all("tr"):
            assert "evidence" in row.classes() or row.all("th"), "each row has a head"


def test_ids_are_unique_and_every_reference_leads_somewhere(page: Node) -> None:
    ids = Counter(node.attributes["id"] for node in page.all() if "id" in node.attributes)
    assert not [id_ for id_, count in ids.items() if count > 1]
    for node in page.all():
        for reference in (node.attributes.get("aria-labelledby") or "").split():
            assert reference in ids
    links = [unquote((link.attributes["href"] or "").removeprefix("#")) for link in page.all("a")]
    assert set(links) <= set(ids)
    assert set(links) >= {result.id for result in conforming().results}


def test_without_a_script_everything_is_shown_and_no_filter_is(page: Node) -> None:
    hidden = [node.attributes.get("id") for node in page.all() if "hidden" in node.attributes]
    assert sorted(map(str, hidden)) == ["filters", "nothing"]


def test_rows_know_whether_they_differ_and_failed(page: Node) -> None:
    rows = [row for row in page.all("tbody") if "data-requirement" in row.attributes]
    failed = [row.attributes["id"] for row in rows if "data-failed" in row.attributes]
    assert failed == [
        "backend/10-import-light",
        "pipe/03-order",
        "buffer/05-lease",
        "buffer/06-lease-late-read",
        "fault/05-peer-killed",
    ]
    differing = {row.attributes["id"] for row in rows if "data-differs" in row.attributes}
    assert differing > {"pipe/01-bytes", "fault/08-two-hosts"}
    assert "buffer/01-insert-select" not in differing


def test_one_report_offers_no_differences(tmp_path: Path, page: Node) -> None:
    def choices(node: Node) -> list[str | None]:
        return [choice.attributes["value"] for choice in node.all("input", type="radio")]

    assert choices(page) == ["all", "differs", "failed"]
    assert choices(parsed(tmp_path, failing())) == ["all", "failed"]


def hostile() -> Report:
    attack = f'{HOSTILE}</script><img src="https://example.org/x">"\' onload="alert(1)" \udcff'
    change = {"outcome": Outcome.FAILED, "sentence": attack, "reason": attack + "\n" + attack, "details": attack}
    extra = report("x", Capabilities(), {"backend/01-probe": {**change, "id": f"backend/{attack}"}})
    fields: dict[str, Any] = {
        "distribution": attack,
        "contract": attack,
        "kvbridge": attack,
        "started": attack,
        "selected": (attack,),
        "faults": (attack,),
        "machine": {attack: attack},
        "capabilities": {attack: attack},
        "options": {"a": attack.replace("\udcff", "")},
    }
    return msgspec.structs.replace(extra, backend=attack, **fields)


def test_text_of_a_report_never_becomes_markup(tmp_path: Path) -> None:
    text = written(tmp_path, conforming(), hostile())
    page = parse(text)
    assert len(page.all("script")) == 1
    assert not page.all("img")
    assert not [name for node in page.all() for name in node.attributes if name.startswith("on")]
    assert "alert(1)</script>" in page.text
    assert "größe ≤ 5 µs — 消えた" in page.text
    assert not set("\x00\x1b") & set(text)


def test_nothing_is_fetched(tmp_path: Path) -> None:
    page = parsed(tmp_path, conforming(), failing(), modest(), hostile())
    for node in page.all():
        assert not {"src", "srcset", "action", "data", "poster"} & set(node.attributes)
        for name, value in node.attributes.items():
            assert name != "href" or (value or "").startswith(("#", "data:,"))
    (style,) = page.all("style")
    assert not re.search(r"url\(|@import|//", style.text)
    assert not re.search(r"https?:|fetch|XMLHttp|import\b", page.all("script")[0].text)
    plain = written(tmp_path, conforming(), failing(), modest())
    assert not re.search(r"https?://|src=", plain)


def test_the_policy_allows_the_pages_own_script_only(page: Node) -> None:
    (policy,) = (node for node in page.all("meta") if node.attributes.get("http-equiv") == "Content-Security-Policy")
    allowed = policy.attributes["content"] or ""
    digest = base64.b64encode(hashlib.sha256(page.all("script")[0].text.encode()).digest()).decode()
    assert "default-src 'none'" in allowed
    assert re.findall(r"script-src ([^;]*)", allowed) == [f"'sha256-{digest}'"]


def test_no_report_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="found no report, expected at least one"):
        write_page(tmp_path / "page.html", [])


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1])
@pytest.mark.parametrize(
    ("text", "grounds"),
    [
        ("ink", "paper sheet faint good-fill bad-fill mixed-fill"),
        ("soft", "paper sheet faint bad-fill mixed-fill"),
        ("link", "paper sheet faint"),
        ("good", "sheet faint good-fill"),
        ("bad", "sheet faint bad-fill"),
        ("mixed", "sheet faint mixed-fill"),
        ("other", "sheet faint"),
        ("on-band", "band"),
        ("on-band-soft", "band"),
    ],
)
def test_text_stands_out_in_light_and_dark(page: Node, scheme: int, text: str, grounds: str) -> None:
    blocks = re.findall(r":root \{(.*?)\n\s*\}", page.all("style")[0].text, re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[scheme]))
    for ground in grounds.split():
        dark, light = sorted((luminance(colours[text]), luminance(colours[ground])))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, f"{text} on {ground}"
