"""The README's table of families, made by loading a tiny random model of each.

A ✓ claims what the tests of families check for every one of them: patches are those of hooks by
hand, and the parts add up to the block.

Use:

    python -m tests.adapters.families_table            # writes it into the README
"""

import re
from pathlib import Path

from patchbench.adapters import load_model
from patchbench.adapters.families import FAMILIES
from tests.adapters.test_families import BLOCKS, NOT_A_SUM
from tests.tiny_models import tiny

README = Path(__file__).parents[2] / "README.md"
HEAD = (
    "| families | blocks, mixer, MLP | attention heads | inside recurrent mixers | remark |",
    "|---|---|---|---|---|",
)
BEGIN, END = "<!-- families: python -m tests.adapters.families_table -->\n", "<!-- end -->"
# Recurrent, and without a twin that could show what is inside.
PLAIN = ("recurrent_gemma", "rwkv")
ATTENTION = ("q", "k", "v", "head_output")


def marks(name: str) -> tuple[str, str, str, str]:
    """Return what a family's row says, without its name."""
    points = load_model(tiny(name), device="cpu").hook_map.points
    twins = {at[1] for at, point in points.items() if ".hook_points." in point.path}
    stock = {at[1] for at, point in points.items() if ".hook_points." not in point.path}
    blocks = BLOCKS.get(name, {})
    whole = name not in NOT_A_SUM and not (isinstance(blocks, dict) and blocks.get("no_mlp"))
    heads = ", ".join(f"`{word}`" for word in ATTENTION if word in stock)
    assert not (twins and name in PLAIN)
    inside = "✓" if twins else "no" if name in PLAIN else ""
    return "✓" if whole else "◐", heads, inside, FAMILIES[name].note or ""


def table() -> str:
    """Return the table; families with equal marks share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name in FAMILIES:
        rows.setdefault(marks(name), []).append(name)
    lines = [f"| {', '.join(names)} | {' | '.join(row)} |" for row, names in rows.items()]
    return "\n".join([*HEAD, *(re.sub(" +", " ", line) for line in lines)]) + "\n"


def written() -> str:
    """Return the table that stands in the README."""
    return README.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    README.write_text(before + BEGIN + table() + END + rest.partition(END)[2], encoding="utf-8")
