"""Draw what `patchbench evaluate` prints, as the picture in the README.

Use:

    python examples/demo_picture.py examples/demo.svg
"""

import re
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI

from patchbench.demo import demo
from patchbench.report import demo as printed


def main(path: str, **settings: Any) -> None:
    """Run the demo and write what it prints to `path`."""
    results = demo(**settings)
    console = Console(record=True, width=80, highlight=False)
    with patch.object(printed, "make_console", lambda: console):
        printed.print_demo(results, quiet=True)
    drawn = console.export_svg(title="patchbench evaluate", theme=DIMMED_MONOKAI)
    # The viewer's own monospaced font: a picture fetches nothing.
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    Path(path).write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
