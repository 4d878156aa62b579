"""Figures and pages: their numbers are the rows', and no name becomes markup or a request."""

import json
import time

import numpy as np
import pytest

from patchbench.common import UserError
from patchbench.comparing import compare, find_results
from patchbench.report.comparison_figures import (
    accuracy_scatter,
    conv_width_bars,
    mechanism_triangle,
)
from patchbench.report.figures import figures, heat_map
from patchbench.report.html import render_report
from patchbench.results import Result
from tests.core.browser import chromium
from tests.core.rows import PROVENANCE, make_rows

EVIL = "</script><script>window.evil=1</script><img src=x onerror='window.evil=1'>"
EFFECTS = {
    "L0.block_input@key": 1.0,
    "L0.block_input@value": 0.0,
    "L0.block_input@query": 0.0,
    "L1.block_input@key": 0.25,
    "L1.block_input@value": 0.75,
    "L1.block_input@query": 0.0,
}


def result(effects=EFFECTS, *, name="m", n=40, right=36, digest="a", **rows) -> Result:
    model = PROVENANCE["model"] | {
        "name": name,
        "num_layers": 2,
        "components": ["block_input"],
    }
    origin = {
        "model": model,
        "notes": [name],
        "command": f"patchbench evaluate --model {name}",
        "dataset": {"rows": n, "sha256": digest},
        "task": PROVENANCE["task"] | {"config": {}},
        "example": {
            "tokens": ["a", name, "c", "d"],
            "roles": {"key": 0, "value": 1, "query": 2, "answer": 3},
            "corruptions": {"key": ["b", name, "c", "d"]},
        },
    }
    return Result.from_rows(
        make_rows(effects, n=n, right=right, **rows),
        config={"resamples": 300, "components": ["block_input"], "corruptions": ["key"]},
        provenance=PROVENANCE | origin,
    )


def test_a_heat_map_has_the_effects_in_their_places():
    drawn = heat_map(result(), "block_input").data[0]
    assert list(drawn.y) == ["L0", "L1"]
    shown = {
        (layer, position): drawn.z[i][j]
        for i, layer in enumerate(drawn.y)
        for j, position in enumerate(drawn.x)
    }
    for site, effect in EFFECTS.items():
        layer, _, position = site.partition(".block_input@")
        assert shown[layer, position] == pytest.approx(effect, abs=1e-9)
    assert drawn.zmin == -drawn.zmax  # white is 0


def test_below_the_gate_the_heat_map_is_grey():
    drawn = heat_map(result(right=2), "block_input")
    assert "gate" in drawn.layout.title.text
    colours = {shade for _, shade in drawn.data[0].colorscale}
    assert colours == {"#BFBFBF", "#FFFFFF"}


def test_the_strip_says_what_a_corruption_changes():
    drawn = figures(result())["example"]
    texts = list(drawn.data[-1].text)
    assert [("*" in text) for text in texts] == [True, False, False, False]
    assert "corrupted: b" in drawn.data[-1].hovertext[0]


def test_a_models_place_in_the_triangle_are_its_shares():
    point = mechanism_triangle({"m": result()}).data[0]
    assert (point.a[0], point.b[0], point.c[0]) == pytest.approx((0.75, 0.25, 0.0), abs=1e-9)
    assert mechanism_triangle({"m": result(right=2)}) is None  # below the gate it has no place
    scatter = accuracy_scatter({"m": result()}).data[0]
    assert (scatter.x[0], scatter.y[0]) == pytest.approx((0.9, 0.75))


def test_bars_by_the_width_of_the_convolution():
    with pytest.raises(UserError, match="no Result"):
        conv_width_bars({})
    bars = conv_width_bars({4: result(), 0: result(right=2)}).data
    assert list(bars[0].x) == ["0", "4"]
    assert list(bars[0].y) == pytest.approx([0.05, 0.9])
    assert list(bars[2].x) == ["4"]  # no effect below the gate


def test_differences_against_a_plain_bootstrap():
    one, other = result(digest="a"), result({s: e / 2 for s, e in EFFECTS.items()}, right=20)
    row = compare({"one": one, "other": other}).rows[1]
    assert row.paired
    assert row.differences["value"].value == pytest.approx(-0.375)
    assert row.differences["accuracy"].value == pytest.approx(-0.4)
    rng, draws = np.random.default_rng(1), []
    correct = [np.arange(40) < right for right in (20, 36)]
    for _ in range(4000):
        chosen = rng.integers(0, 40, 40)
        draws.append(correct[0][chosen].mean() - correct[1][chosen].mean())
    low, high = np.quantile(draws, [0.025, 0.975])
    assert row.differences["accuracy"].low == pytest.approx(low, abs=0.04)
    assert row.differences["accuracy"].high == pytest.approx(high, abs=0.04)


def test_only_the_same_items_are_paired():
    same = compare({"one": result(), "two": result()}).rows[1]
    others = compare({"one": result(), "two": result(digest="b")}).rows[1]
    assert same.paired
    assert not others.paired
    # What equal runs have in common leaves nothing, and of independent ones both spreads.
    assert (same.differences["accuracy"].low, same.differences["accuracy"].high) == (0, 0)
    assert others.differences["accuracy"].low < 0 < others.differences["accuracy"].high


def test_what_cannot_be_compared(tmp_path):
    with pytest.raises(UserError, match="at least two"):
        compare({"one": result()})
    with pytest.raises(UserError, match="swap corrupted"):
        compare({"one": result(), "two": result()}, corruption="swap")
    with pytest.raises(UserError, match="no run 'three'"):
        compare({"one": result(), "two": result()}, reference="three")
    with pytest.raises(UserError, match="holds no Result"):
        find_results([str(tmp_path)])
    with pytest.raises(UserError, match="matches no folder"):
        find_results([str(tmp_path / "x*")])


def test_folders_globs_and_sweeps_name_the_same_runs(tmp_path):
    for name in ("a", "b"):
        result().save(tmp_path / name / "result", report=name == "a")
    assert (tmp_path / "a" / "result" / "report.html").stat().st_size > 1e6
    for patterns in ([f"{tmp_path}"], [f"{tmp_path}/*"], [f"{tmp_path}/a", f"{tmp_path}/b/"]):
        assert list(find_results(patterns)) == ["a", "b"]


def test_no_name_becomes_markup():
    page = render_report(result(name=EVIL))
    assert "<script>window.evil" not in page
    assert "<img src=x" not in page
    assert "http-equiv" in page


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_the_report_in_a_browser(tmp_path, width, scheme):
    path = tmp_path / "report.html"
    path.write_text(render_report(result(name=EVIL)), encoding="utf-8")
    with chromium() as browser:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        said, asked = [], []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("figure .main-svg")
        figures_there = page.locator("figure").count()
        until = time.monotonic() + 20
        while page.locator("figure .plot-container").count() < figures_there:
            assert time.monotonic() < until
            page.wait_for_timeout(100)
        assert page.evaluate("window.evil") is None
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        cell = page.locator("figure .heatmaplayer").first
        cell.scroll_into_view_if_needed()
        box = cell.bounding_box()
        page.mouse.move(box["x"] + 10, box["y"] + 10)
        page.wait_for_selector(".hoverlayer .hovertext")
        hovers = page.locator(".hoverlayer").all_text_contents()
        assert any("L0.block_input@key" in text for text in hovers)
        # The figures and the table can be reached by the keyboard, and Enter sorts.
        button = page.locator("th button").first
        button.focus()
        page.keyboard.press("Enter")
        assert page.locator("th[aria-sort=ascending]").count() == 1
        assert page.locator("figure[tabindex='0']").count() == figures_there
    assert said == []
    assert asked == [path.as_uri()]


def test_json_of_a_comparison_is_json():
    content = compare({"one": result(), "two": result(digest="b")}).to_json()
    assert json.loads(json.dumps(content)) == content
