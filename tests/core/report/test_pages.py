"""Pages and comparisons: no name becomes markup or a request, and what a mouse does a key does."""

import json
import time
from contextlib import contextmanager

import numpy as np
import pytest

from patchbench.common import UserError
from patchbench.comparing import compare
from patchbench.finding import find_results
from patchbench.report.compare import write_comparison_page
from patchbench.report.comparison_figures import (
    accuracy_scatter,
    conv_width_bars,
    mechanism_triangle,
)
from patchbench.report.figures import figures, heat_map, profile
from patchbench.report.html import render_report
from patchbench.report.page import Block, render_page
from patchbench.report.training_figures import training_dynamics
from tests.core.browser import chromium
from tests.core.report.made import EFFECTS, EVIL, dynamics, result, scored
from tests.core.rows import make_rows


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
        page.goto(path.as_uri(), timeout=1000 * PATIENCE)
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


PATIENCE = 120  # seconds, on a machine that has much else to do


@contextmanager
def opened(path, width=1280, scheme="light"):
    """Yield a page whose figures are drawn, and what its console said."""
    with chromium() as browser:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page, said = context.new_page(), []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(path.as_uri(), timeout=1000 * PATIENCE)
        until = time.monotonic() + PATIENCE
        while page.locator("figure .plot-container").count() < page.locator("figure").count():
            assert time.monotonic() < until
            page.wait_for_timeout(100)
        yield page, said


def test_arrow_keys_walk_over_the_points(tmp_path):
    path = tmp_path / "report.html"
    path.write_text(render_report(result(name="a & b")), encoding="utf-8")
    with opened(path) as (page, said):
        page.locator("figure", has=page.locator(".heatmaplayer")).focus()
        heard = []
        for key in ["ArrowRight"] * 2 + ["ArrowLeft"] * 3:
            page.keyboard.press(key)
            page.wait_for_selector(".hoverlayer .hovertext")
            heard.append(page.locator("#said").inner_text().split(",")[0])
        assert heard == [
            *("L0.block_input@key", "L0.block_input@value", "L0.block_input@key"),
            *("L1.block_input@query", "L1.block_input@value"),
        ]
        assert page.locator("figure .hoverlayer .hovertext").count() == 1
        page.keyboard.press("Escape")
        assert page.locator("figure .hoverlayer .hovertext").count() == 0
        assert said == []


def test_the_tab_key_reaches_all_that_a_mouse_does(tmp_path):
    path = tmp_path / "report.html"
    path.write_text(render_report(result()), encoding="utf-8")
    with opened(path) as (page, said):
        wanted = page.locator("figure, th button, summary, .modebar-btn, .legendtoggle")
        page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        wanted.evaluate_all("nodes => nodes.forEach((n, i) => { n.dataset.number = i; })")
        reached = set()
        for _ in range(3 * wanted.count()):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.dataset.number ?? null"))
        assert {str(number) for number in range(wanted.count())} <= reached
        # Enter on a name in the legend hides its line and its band, and shows them again.
        figure = page.locator("figure", has=page.locator(".legendtoggle")).first
        hidden = "node => node.data.filter((t) => t.visible === 'legendonly').length"
        for lines in (2, 0):
            page.wait_for_timeout(100)
            figure.locator(".legendtoggle").first.focus()
            page.keyboard.press("Enter")
            page.wait_for_timeout(300)
            assert figure.evaluate(hidden) == lines
        assert said == []


NAMES = [EVIL, "a & 'b' \"c\" <d>", "🙂 emoji", "שלום", "\u202eoverride", "x" * 120]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (400, "light")])
def test_a_comparison_shows_names_as_they_are(tmp_path, width, scheme):
    results = {name: result(name=name) for name in NAMES}
    path = tmp_path / "compare.html"
    write_comparison_page(compare(results), results, path)
    with opened(path, width, scheme) as (page, said):
        shown = page.locator("td:first-child").all_text_contents()
        assert set(shown) == set(NAMES)
        assert page.evaluate("window.evil") is None
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        legend = page.locator(".legendtext").all_text_contents()
        assert {"a & 'b' \"c\" <d>", "🙂 emoji", "שלום"} <= set(legend)
        assert said == []


def every_figure():
    """Return every figure that there is, by name."""
    wide = {
        f"L{layer}.block_input@{position}": 0.5
        for layer in range(3)
        for position in ["key", "value", *(f"value+{offset}" for offset in range(1, 25)), "query"]
    }
    controls = {"L1.block_input@other_value": 0.1}
    tables = [make_rows(EFFECTS, n=40, right=36)]
    tables.append(make_rows(controls, n=40, right=36, control="wrong position"))
    runs = {"one": result(), "another": result({s: e / 2 for s, e in EFFECTS.items()})}
    return figures(scored({"L1.block_input@value": 0.5}, result(tables=tables))) | {
        "wide": heat_map(result(wide), "block_input"),
        "long": profile(result(wide), "block_input"),
        "triangle": mechanism_triangle(runs),
        "scatter": accuracy_scatter(runs),
        "bars": conv_width_bars(
            {0: [result(right=2)], 4: [result()], "long": [result()]}, of="mamba of width 64"
        ),
        "training": training_dynamics(dynamics()),
    }


def test_text_and_error_bars_follow_the_page_into_the_dark(tmp_path):
    path = tmp_path / "page.html"
    bars = conv_width_bars({0: [result(right=2)], 4: [result()]})
    blocks = [Block("bars", figures=[bars, heat_map(result(), "block_input")])]
    path.write_text(render_page("page", blocks=blocks, results={}), encoding="utf-8")
    with opened(path) as (page, said):
        from playwright.sync_api import expect  # known to be there by now

        for scheme, ink in {"light": "51, 51, 51", "dark": "224, 224, 224"}.items():
            page.emulate_media(color_scheme=scheme)
            # The page's policy leaves no other way to wait: it forbids what is evaluated within.
            for title in page.locator(".gtitle").all():
                expect(title).to_have_css("fill", f"rgb({ink})")
            drawn = page.locator(".yerror").evaluate_all("ns => ns.map((n) => n.style.stroke)")
            assert set(drawn) == {f"rgb({ink})"}
        assert said == []


def test_many_verdicts_are_counted_and_folded(tmp_path):
    few = {str(number): result() for number in range(4)}
    many = few | {"4": result(right=2)}
    for results, folded in ((few, False), (many, True)):
        html = render_page("page", blocks=[], results=results)
        assert ("<details><summary>5 verdicts: 4 " in html) == folded
        assert html.count('<p class="verdict') == len(results)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_every_figure_is_drawn_within_the_page(tmp_path, width, scheme):
    """No text is cut at the sides, none is lost in the background, and the page does not scroll."""
    drawn = every_figure()
    path = tmp_path / "figures.html"
    blocks = [Block(name, figures=[figure]) for name, figure in drawn.items()]
    path.write_text(render_page("figures", blocks=blocks, results={}), encoding="utf-8")
    with opened(path, width, scheme) as (page, said):
        assert page.locator("figure .main-svg").count() >= len(drawn)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        cut = page.locator("figure").evaluate_all(
            """nodes => nodes.flatMap((node) => {
                 const box = node.getBoundingClientRect();
                 return [...node.querySelectorAll("svg text")]
                   .filter((text) => {
                     const own = text.getBoundingClientRect();
                     return own.width && (own.left < box.left - 1 || own.right > box.right + 1);
                   })
                   .map((text) => `${node.getAttribute("aria-label")}: ${text.textContent}`);
               })"""
        )
        assert cut == []
        ink = page.locator("figure .gtitle").evaluate_all("ns => ns.map((n) => n.style.fill)")
        assert set(ink) == {"rgb(224, 224, 224)" if scheme == "dark" else "rgb(51, 51, 51)"}
        assert said == []
