"""Plotly figures as PNG files, drawn by an installed Chromium (it needs `playwright`).

Use:

    draw({"triangle": figure}, Path("figures"))        # figures/triangle.png
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

import plotly.graph_objects as go

WIDTH = 760


def draw(figures: Mapping[str, go.Figure], folder: Path) -> None:
    """Write each figure to `folder` by its name.

    Args:
        figures: by name.
        folder: is made where it is not there.
    """
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": 700}, color_scheme="light")
        for name, figure in figures.items():
            opaque = go.Figure(figure).update_layout(
                width=WIDTH, paper_bgcolor="white", plot_bgcolor="white"
            )
            page.set_content(opaque.to_html(include_plotlyjs=True, config={"staticPlot": True}))
            page.wait_for_selector(".plotly-graph-div .main-svg")
            page.locator(".plotly-graph-div").screenshot(path=folder / f"{name}.png")
        browser.close()
