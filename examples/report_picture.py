"""Draw the top of a report, as the picture in the README: a run of a bundled model in Chromium.

Use (it needs `playwright` and an installed Chromium):

    python examples/report_picture.py examples/report.png
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import patchbench as pb
from patchbench import demo

MODEL = "patchbench/ar-mamba"
WIDTH = 1040


def main(path: str, **settings: Any) -> None:
    """Evaluate the model, write its report, and write what the page shows first to `path`.

    Args:
        path: of the PNG.
        **settings: of `patchbench.evaluate`.
    """
    from playwright.sync_api import sync_playwright

    result = pb.evaluate(
        pb.load_model(MODEL, device="cpu"),
        demo.bundled_task(MODEL),
        **{"components": list(demo.COMPONENTS), "positions": list(demo.POSITIONS), **settings},
    )
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        result.save(Path(folder) / "run", report=True)
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        page = browser.new_page(
            viewport={"width": WIDTH, "height": 900}, color_scheme="light", reduced_motion="reduce"
        )
        page.goto((Path(folder) / "run" / "report.html").as_uri())
        page.wait_for_function(
            "document.querySelectorAll('figure').length ==="
            " document.querySelectorAll('figure .plot-container').length"
        )
        # Down to the second heat map; then the picture is still readable beside a text.
        heat_map = page.locator("figure", has=page.locator(".heatmaplayer image")).nth(1)
        box = heat_map.bounding_box()
        assert box is not None
        height = box["y"] + box["height"]
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": height}
        page.screenshot(path=path, clip=clip, full_page=True)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
