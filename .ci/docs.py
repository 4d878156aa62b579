"""API documentation from the docstrings, as HTML; fails on a warning and on what is missing.

python .ci/docs.py build/api
"""

import importlib
import re
import sys
import warnings
from pathlib import Path
from textwrap import dedent
from typing import Literal

import pdoc
import pdoc.docstrings
import pdoc.render

# The public API, and then what extensions and other tools are written against.
MODULES = (
    "patchbench",
    "patchbench.adapters",
    "patchbench.tasks",
    "patchbench.training",
    "patchbench.recipes",
    "patchbench.adapters.hook_points",
    "patchbench.adapters.mixers",
    "patchbench.engines",
    "patchbench.foreign_sites",
    "patchbench.mib",
    "patchbench.report",
    "patchbench.report.figures",
    "patchbench.tasks.assembly",
    "patchbench.tasks.lm_eval",
)
_USE = re.compile(r"^Use:\n((?:\n|[ \t]+.+$)+)", re.MULTILINE)
_google = pdoc.docstrings.google


def fenced(docstring: str) -> str:
    """Convert sections, with "Use:" as code: to pdoc it is one more section of prose."""
    return _google(_USE.sub(lambda m: f"\n```python\n{dedent(m[1]).strip()}\n```\n\n", docstring))


def prepare() -> dict[str, list[str]]:
    """Import `MODULES`, lay them out for pdoc, and return the public names of each."""
    public = {}
    for name in MODULES:
        module = importlib.import_module(name)
        public[name] = list(getattr(module, "__all__", ()))
        for attribute in public[name]:  # pdoc looks into the module's dict, where the lazy are not
            setattr(module, attribute, getattr(module, attribute))
        parent, _, own = name.rpartition(".")
        if parent:  # pdoc looks for submodules in the parent's folder, where the rooms are not
            vars(sys.modules[parent]).setdefault("__all__", []).append(own)
    # Fields that a config inherits are annotated by the names of transformers' module.
    vars(sys.modules["patchbench.adapters.config"]).setdefault("Literal", Literal)
    return public


def missing(out: Path, public: dict[str, list[str]]) -> list[str]:
    """Return the public names that are on no page."""
    found = []
    for name, attributes in public.items():
        page = (out / f"{name.replace('.', '/')}.html").read_text(encoding="utf-8")
        found += [f"{name}.{a} is on no page" for a in attributes if f'id="{a}"' not in page]
    return found


def main(out: Path) -> int:
    """Build, print what is wrong, and return the exit code."""
    public = prepare()
    pdoc.docstrings.google = fenced
    version = sys.modules["patchbench"].__version__
    pdoc.render.configure(docformat="google", footer_text=f"patchbench {version}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pdoc.pdoc("patchbench", output_directory=out)
    wrong = [str(warning.message) for warning in caught] + missing(out, public)
    for line in wrong:
        print(f"docs: {' '.join(line.split())}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
