"""A headless Chromium for the tests of pages; they are skipped where there is none."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

# A browser that looks for updates keeps a machine without a network waiting.
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield a browser of Playwright."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("there is no Chromium")
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()
