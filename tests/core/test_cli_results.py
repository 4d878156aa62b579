"""`show`, `compare`, `log` and `leaderboard` on the command line: mistakes, warnings, defaults."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys

import pyarrow as pa
import pytest

from patchbench.adapters.bundled import bundled_models
from tests.core.report.made import EFFECTS, result
from tests.core.rows import make_rows

FOLDERS = {model.folder.name: model.folder / "result" for model in bundled_models()}


def edit(folder, change):
    """Change the parsed result.json of a folder."""
    path = folder / "result.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


DAMAGES = {
    "nothing there": (lambda f: shutil.rmtree(f), "matches no folder: name"),
    "empty": (lambda f: [file.unlink() for file in f.iterdir()], "holds no Result"),
    "half written": (lambda f: (f / "result.json").unlink(), "holds no Result"),
    "corrupt json": (lambda f: (f / "result.json").write_text('{"a'), "run the evaluation again"),
    "no rows": (lambda f: (f / "rows.parquet").unlink(), "rows.parquet is missing: run"),
    "other rows": (lambda f: (f / "rows.parquet").write_text("x"), "run the evaluation again"),
    "other schema": (lambda f: edit(f, lambda c: c.update(schema="x")), 'it lacks "schema"'),
    "newer": (lambda f: edit(f, lambda c: c.update(version=99)), "update patchbench"),
    "older": (lambda f: edit(f, lambda c: c.update(version=0)), "run the evaluation again"),
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, with two runs that can be compared."""
    for name in ("one", "two"):
        result(name=name).save(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check_refused(outcome, says):
    """Exit code 2, nothing on stdout, one line that ends with a remedy."""
    code, stdout, stderr = outcome
    assert (code, stdout) == (2, ""), stderr
    assert len(stderr.splitlines()) == 1
    assert says in stderr
    what, _, remedy = stderr.removeprefix("patchbench: ").strip().rpartition(": ")
    assert what
    assert remedy


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "command",
    [["show"], ["compare", "one"], ["log", "--wandb", "p"], ["leaderboard"], ["pool"]],
    ids=" ".join,
)
def test_a_damaged_folder_is_refused_by_every_command(run, place, command, damage):
    harm, says = DAMAGES[damage]
    harm(place / "two")
    check_refused(run(*command, "two"), says)
    assert not (place / "wandb").exists()


MISTAKES = {
    "show": "see `patchbench show --help`",
    "compare": "see `patchbench compare --help`",
    "leaderboard": "see `patchbench leaderboard --help`",
    "log --wandb p": "see `patchbench log --help`",
    "show .": ". holds 2 Results: use `patchbench compare`",
    "show x*": "x* matches no folder",
    "compare x* one": "x* matches no folder",
    "compare one": "name at least two",
    "compare one one/ one/result.json": "1 Result to compare: name at least two",
    "compare one two --csv --json": "--csv, --latex and --json exclude one another",
    "compare one two --csv --latex": "--csv, --latex and --json exclude one another",
    "compare one two --latex --json": "--csv, --latex and --json exclude one another",
    "compare one two --csv out.csv": "out.csv matches no folder",
    "compare one two --cvs": "Possible options: --csv",
    "compare one two --reference tow": "there is no run 'tow': one of one, two",
    "compare one two --corruption swap": "the swap corrupted and denoised: name another",
    "compare one two --component block_inptu": "did you mean 'block_input'",
    "compare one two --positions 1+1": "1+1",
    "compare one two --layer 7": "no run has layer 7: measured: 0, 1",
    "compare one two --layer -1": "no run has layer -1: measured: 0, 1",
    "compare one two --layer first": "--layer",
    "compare one two --html one": "one is a folder: name a file",
    "compare one two --html there.html": "there.html exists: name another file, or",
    "compare one two --html no/where.html": "no is no folder: make it first",
    "compare one two --html /proc/x.html": "/proc/x.html cannot be written",
    "compare one two --wandb-mode offline": "--wandb PROJECT",
    "show one --html one": "one is a folder: name a file",
    "show one --html there.html": "there.html exists: name another file, or",
    "show one --html /proc/x.html": "/proc/x.html cannot be written",
    f"show one --html {'n' * 255}": "cannot be written (File name too long)",
    f"show one --html {'n' * 256}": "cannot be written (File name too long)",
    "leaderboard . --out one": "one is a folder: name a file",
    "leaderboard . --out there.html": "there.html exists: name another file, or",
    "leaderboard . --out no/where.html": "no is no folder: make it first",
    "leaderboard . --corruption kye": "the kye corrupted and denoised: name another",
    "leaderboard . --layer 7": "no run has layer 7: measured: 0, 1",
    "leaderboard . --positions 1+1": "1+1",
    "log one": "pass --wandb PROJECT or --track trackio",
    "log one --track wandbb": "did you mean 'wandb'",
    "log one --wandb p --wandb-mode ofline": "did you mean 'offline'",
    "log one --wandb a/b": "a name without /",
}  # fmt: skip


@pytest.mark.parametrize("arguments", MISTAKES)
def test_a_mistake_is_one_line_with_a_remedy(run, place, arguments):
    (place / "there.html").write_text("mine")
    check_refused(run(*arguments.split()), MISTAKES[arguments])
    assert (place / "there.html").read_text() == "mine"
    assert {path.name for path in place.iterdir()} == {"one", "two", "there.html"}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/dev/full is Linux's")
@pytest.mark.parametrize(
    "arguments", [["compare", "one", "two", "--csv"], ["show", "one"]], ids=" ".join
)
def test_a_full_disk_behind_stdout_is_one_line(place, arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from patchbench.cli import main; main()", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "No space left on device): make room" in done.stderr


@pytest.fixture
def other(place):
    """Save a run that differs from the first two in its items, and in more; None: corruption."""

    def save(change):
        if change is None:
            rows = make_rows(EFFECTS, n=30, right=28)
            values = pa.array(["value"] * rows.num_rows, rows.schema.field("corruption").type)
            at = rows.column_names.index("corruption")
            made = result(n=30, tables=[rows.set_column(at, rows.schema.field(at), values)])
        else:
            made = result(n=30, right=28, digest="b")
            change(made)
        made.save(place / "other")

    return save


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r.summary["task"].update(name="atr"), "the runs differ in task: atr, t"),
        (lambda r: r.summary["task"].update(split="dev"), "the runs differ in split: None, dev"),
        (
            lambda r: r.provenance["task"].update(config={"num_pairs": 2}),
            "the runs differ in task's settings",
        ),
        (lambda r: None, "the runs differ in number of items: 30, 40"),
        (
            None,
            "without the key corrupted and denoised: other",
        ),
        (
            lambda r: r.provenance["model"].update(num_layers=3),
            "the runs differ in number of layers: 2, 3",
        ),
    ],
    ids=["task", "split", "task settings", "n", "corruption", "layers"],
)
def test_what_is_hard_to_compare_is_said_in_every_form(run, other, change, said):
    other(change)
    shown = "compare", "one", "other"
    code, stdout, stderr = run(*shown)
    assert (code, stderr) == (0, "")
    assert re.search(f"warning: .*{said}", " ".join(stdout.split()))
    code, stdout, _ = run(*shown, "--json")
    warnings = json.loads(stdout)["warnings"]
    assert any(said in warning for warning in warnings)
    for flag in ("--csv", "--latex"):
        code, stdout, stderr = run(*shown, flag)
        assert stderr.splitlines() == [f"warning: {warning}" for warning in warnings]
        assert "warning" not in stdout
    assert run(*shown, "--html", "page.html")[0] == 0
    with open("page.html") as page:
        assert said in page.read().replace("&#39;", "'")


def test_alike_runs_have_no_warning_and_their_differences_are_paired(run, place):
    _, stdout, _ = run("compare", "one", "two", "--json")
    content = json.loads(stdout)
    assert content["warnings"] == []
    assert [row["paired"] for row in content["rows"]] == [None, True]


@pytest.mark.parametrize("flags", [[], ["--layer", "0"]], ids=["default", "layer 0"])
def test_the_layer_is_the_middle_one_unless_asked(run, place, flags):
    layer = 0 if flags else 1
    _, stdout, _ = run("compare", "one", "two", "--json", *flags)
    for row in json.loads(stdout)["rows"]:
        assert row["layer"] == layer
        value = row["attrib"]["value"]["value"]
        assert value == pytest.approx(EFFECTS[f"L{layer}.block_input@value"], abs=1e-9)
    _, stdout, _ = run("compare", "one", "two", "--csv", *flags)
    lines = list(csv.DictReader(io.StringIO(stdout)))
    assert [line["layer"] for line in lines] == [str(layer)] * 2


def test_figures_of_a_comparison_are_of_what_was_asked(run, place):
    options = ["--layer", "0", "--positions", "key", "--html", "page.html"]
    assert run("compare", "one", "two", *options)[0] == 0
    with open("page.html") as page:
        text = page.read()
    figures = text[text.index('id="figures">') + len('id="figures">') :]
    drawn = json.loads(figures[: figures.index("</script>")])
    (triangle,) = (f for f in drawn.values() if "ternary" in f["layout"])
    assert "L0" in triangle["layout"]["title"]["text"]
    # Entering layer 0 all of it is at the key.
    assert [round(point["b"][0], 6) for point in triangle["data"]] == [1.0, 1.0]


def test_latex_has_no_negative_zero(run, place):
    effects = {**EFFECTS, "L1.block_input@value": -0.001}
    result(effects, name="three").save(place / "three")
    code, stdout, _ = run("compare", "one", "three", "--latex")
    assert code == 0
    assert "-0.00" not in stdout
    assert stdout.count(r"\\") == 3
    assert r"$0.25 \pm" in stdout


def test_positions_that_no_result_has_are_told(run, place):
    code, stdout, stderr = run("leaderboard", ".", "--positions", "key,valeu", "--json")
    assert code == 0
    assert stderr == "warning: no Result has an Attrib of block_input at valeu\n"
    code, stdout, _ = run("compare", "one", "two", "--positions", "key,valeu")
    assert "warning: no run has an Attrib of block_input at valeu" in stdout


def test_show_json_is_the_summary(run):
    code, stdout, _ = run("show", FOLDERS["ar-mamba"], "--json")
    assert code == 0
    content = json.loads((FOLDERS["ar-mamba"] / "result.json").read_text())
    assert json.loads(stdout) == content["summary"]
