"""What is shipped: every package is listed, one version, a public surface that resolves."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import patchbench
import patchbench.adapters
import patchbench.tasks

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_folder_with_code_is_a_listed_package():
    rooms = {"patchbench": "patchbench", "adapters": "patchbench.adapters"}
    rooms["tasks"] = "patchbench.tasks"
    found = set()
    for room, name in rooms.items():
        for file in (ROOT / room).rglob("*.py"):
            parts = file.parent.relative_to(ROOT / room).parts
            found.add(".".join((name, *parts)))
    assert found == set(PROJECT["tool"]["setuptools"]["packages"])


def test_every_data_file_ships():
    """Weights, records, templates: a wheel has only what a pattern names."""
    settings = PROJECT["tool"]["setuptools"]
    shipped = set()
    for package, patterns in settings["package-data"].items():
        folder = ROOT / settings["package-dir"].get(package, package.replace(".", "/"))
        shipped |= {file for pattern in patterns for file in folder.glob(pattern)}
    rooms = [ROOT / room for room in settings["package-dir"].values()]
    files = {file for room in rooms for file in room.rglob("*") if file.is_file()}
    left_out = {f for f in files - shipped if f.suffix not in (".py", ".pyc")}
    assert not left_out


def test_one_version():
    assert patchbench.__version__ == PROJECT["project"]["version"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[(\d+\.\d+\.\d+)\]", changes, re.MULTILINE)
    assert newest is not None
    assert newest[1] == patchbench.__version__


def test_the_citation_is_of_this_version_and_has_what_its_format_demands():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["project"]["version"]
    assert citation["license"] == PROJECT["project"]["license"]
    # Required by the schema of CFF 1.2.0, of the software and of what it refers to.
    assert citation["cff-version"] == "1.2.0"
    assert citation["message"]
    for work in (citation, *citation["references"]):
        assert {"title", "type", "authors"} <= {key for key, value in work.items() if value}
        for author in work["authors"]:
            assert author.get("name") or author["family-names"]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md"])
def test_every_file_that_a_page_names_is_there(page):
    words = re.findall(r"`([\w./-]+/[\w./-]*)`", (ROOT / page).read_text(encoding="utf-8"))
    paths = [word for word in words if "NAME" not in word]
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_public_name_resolves():
    for module in (patchbench, patchbench.adapters, patchbench.tasks):
        for name in module.__all__:
            assert getattr(module, name) is not None, f"{module.__name__}.{name}"


def test_rooms_know_nothing_of_each_other():
    """Adapters and tasks import neither each other nor the core."""
    for room, allowed in (("adapters", "adapters"), ("tasks", "tasks")):
        for file in (ROOT / room).rglob("*.py"):
            for line in file.read_text(encoding="utf-8").splitlines():
                words = line.split()
                if len(words) > 1 and words[0] in ("from", "import"):
                    target = words[1]
                    if target == "patchbench" or target.startswith("patchbench."):
                        second = target.split(".")[1] if "." in target else ""
                        assert second in (allowed, "common"), f"{file}: {line}"
