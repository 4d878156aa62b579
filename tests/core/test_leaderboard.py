"""`patchbench leaderboard`: every Result once, in one order, on one page."""

import json
import re
import shutil
import sys

import pytest

from patchbench import cli
from patchbench.adapters.bundled import bundled_models
from patchbench.common import UserError
from patchbench.leaderboard import leaderboard
from tests.core.browser import chromium

FOLDERS = {model.folder.name: model.folder / "result" for model in bundled_models()}


@pytest.fixture
def runs(tmp_path):
    """Two folders that have two Results in common."""
    for place, names in {
        "a": ["ar-mamba", "ar-attention", "ar-based"],
        "b": ["ar-attention", "ar-based", "ar-mamba_noconv"],
    }.items():
        for index, name in enumerate(names):
            shutil.copytree(FOLDERS[name], tmp_path / place / f"run{index}" / "result")
    return tmp_path


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["patchbench", "leaderboard", *map(str, arguments)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


def cells(html):
    body = html[html.index("<tbody>") : html.index("</tbody>")]
    return [
        re.findall(r"<td[^>]*>(?:<span>)?(.*?)(?:</span>)?</td>", row)
        for row in body.split("<tr>")[1:]
    ]


def test_the_numbers_are_those_of_the_files(runs, monkeypatch, capsys):
    code, stdout, _ = run(monkeypatch, capsys, runs / "a", "--json")
    assert code == 0
    entries = {entry["model"]: entry for entry in json.loads(stdout)["entries"]}
    assert len(entries) == 3
    for name in ("ar-mamba", "ar-attention", "ar-based"):
        content = json.loads((FOLDERS[name] / "result.json").read_text())
        entry = entries[content["summary"]["model"]["name"]]
        assert entry["accuracy"] == content["summary"]["accuracy"]
        assert entry["parameters"] == content["provenance"]["model"]["num_parameters"]
        assert entry["date"] == content["provenance"]["created"][:10]
        (wanted,) = (
            effect["attrib"]
            for run in content["summary"]["runs"]
            if (run["corruption"], run["direction"]) == ("key", "denoise")
            for effect in run["effects"]
            if effect["site"] == "L1.block_input@value"
        )
        assert entry["attrib"]["value"] == wanted


def test_merging_is_idempotent_and_has_no_order(runs, monkeypatch, capsys):
    pages = []
    for index, places in enumerate(["ab", "ba", "abab"]):
        out = runs / f"page{index}.html"
        code, _, stderr = run(monkeypatch, capsys, *(runs / p for p in places), "--out", out)
        assert code == 0, stderr
        pages.append(out.read_bytes())
    assert pages[0] == pages[1] == pages[2]
    rows = cells(pages[0].decode())
    assert len(rows) == 4
    accuracies = [float(row[2].split()[0]) for row in rows]
    assert accuracies == sorted(accuracies, reverse=True)
    below = [row for row in rows if "noconv" in row[0]]
    assert below[0][4:7] == ["–"] * 3


def test_a_damaged_result_is_left_out_and_told(runs, monkeypatch, capsys):
    rows = runs / "a" / "run1" / "result" / "rows.parquet"
    rows.write_bytes(rows.read_bytes()[:-1])
    code, stdout, stderr = run(monkeypatch, capsys, runs / "a", "--json")
    assert code == 0
    assert len(json.loads(stdout)["entries"]) == 2
    assert stderr.count("\n") == 1
    assert "left out" in stderr
    assert "run1" in stderr
    with pytest.raises(UserError, match="no Result can be read"):
        leaderboard([rows.parent])


def test_a_page_is_not_replaced_unasked(runs, monkeypatch, capsys):
    out = runs / "index.html"
    out.write_text("mine")
    code, _, stderr = run(monkeypatch, capsys, runs / "a", "--out", out)
    assert (code, out.read_text()) == (2, "mine")
    assert "--overwrite" in stderr


def test_the_page_sorts_by_number_and_by_date(runs):
    """In a browser: 10 comes after 9, a date by its day, and what has no number first or last."""
    from patchbench.report.page import Block, PageTable, render_page

    rows = [["9", "2026-12-02"], ["10", "2026-02-11"], ["9.5 [1, 2]", "2026-12-01"]]
    table = PageTable(header=["number", "date"], rows=rows)
    page_file = runs / "sorted.html"
    page_file.write_text(render_page("t", blocks=[Block("b", tables=[table])], results={}))
    with chromium() as browser:
        page = browser.new_page()
        page.goto(page_file.as_uri())
        found = []
        for column in range(2):
            page.locator("th button").nth(column).click()
            found.append(page.locator(f"td:nth-child({column + 1})").all_inner_texts())
    assert found == [
        ["9", "9.5 [1, 2]", "10"],
        ["2026-02-11", "2026-12-01", "2026-12-02"],
    ]
