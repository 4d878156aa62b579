"""Tracking: what is in the offline files of W&B, and what a bad server costs."""

import contextlib
import json
import shutil
import socket
import sqlite3
import time

import pytest

from patchbench.adapters.bundled import bundled_models
from patchbench.common import UserError
from patchbench.tracking import Tracking
from tests.core.tracking.wandb_files import runs_in

FOLDERS = {model.folder.name: model.folder / "result" for model in bundled_models()}
TRAINED = ["--task", "ar/tiny", "--steps", "6", "--dev-n", "16", "--test-n", "8"]
TRAINED += ["--train-n", "64", "--arch", "delta_net", "--width", "16", "--device", "cpu"]


def test_a_logged_result_is_all_in_the_offline_file(place, run):
    folder = FOLDERS["ar-mamba"]
    options = ["--wandb", "recall", "--wandb-mode", "offline", "--wandb-tags", "a,b"]
    code, _, stderr = run("log", folder, *options, "--wandb-name", "mine")
    assert code == 0
    assert stderr.startswith("wandb: recorded offline")
    (logged,) = runs_in(place)
    assert (logged["name"], logged["project"], logged["tags"]) == ("mine", "recall", ["a", "b"])
    content = json.loads((folder / "result.json").read_text())
    assert logged["config"]["n"] == content["config"]["n"]
    assert logged["config"]["provenance"]["created"] == content["provenance"]["created"]
    summary, (first, *_) = logged["summary"], content["summary"]["runs"]
    assert summary["accuracy"] == content["summary"]["accuracy"]["value"]
    assert summary["accuracy/low"] == content["summary"]["accuracy"]["low"]
    effects = {effect["site"]: effect["attrib"] for effect in first["effects"]}
    assert effects
    for site, attrib in effects.items():
        name = f"attrib/{first['corruption']}/{site}"
        found = [summary[name + end] for end in ("", "/low", "/high")]
        assert found == [attrib["value"], attrib["low"], attrib["high"]]
    (table,) = (logged["folder"] / "files/media/table").rglob("*.table.json")
    rows = json.loads(table.read_text())
    at = rows["columns"].index("site"), rows["columns"].index("attrib")
    shown = {row[at[0]]: row[at[1]] for row in rows["data"] if row[0] == first["corruption"]}
    assert shown == {site: attrib["value"] for site, attrib in effects.items()}
    plots = list((logged["folder"] / "files/media/plotly").rglob("*.json"))
    assert any("heat_map" in str(plot) for plot in plots)
    history = json.loads((folder.parent / "training.json").read_text())["history"]
    assert {
        line["train/global_step"]: line["train/dev_accuracy"]
        for line in logged["history"]
        if "train/dev_accuracy" in line
    } == {line["step"]: line["dev_accuracy"] for line in history}
    (artifact,) = logged["artifacts"]
    assert {entry.path for entry in artifact.manifest.contents} == {"result.json", "rows.parquet"}


def test_several_are_a_run_each_in_one_group(place, monkeypatch, run):
    folders = [FOLDERS["ar-mamba"], FOLDERS["ar-attention"]]
    monkeypatch.setenv("WANDB_MODE", "offline")
    code, _, stderr = run("log", *folders, "--wandb", "recall")
    assert code == 0, stderr
    logged = runs_in(place)
    assert sorted(r["name"] for r in logged) == ["ar-attention", "ar-mamba"]
    assert len({r["group"] for r in logged} - {""}) == 1


def test_a_comparison_is_one_run_more_in_the_group(place, run):
    folders = [FOLDERS["ar-mamba"], FOLDERS["ar-attention"]]
    options = ["--wandb", "recall", "--wandb-mode", "offline", "--wandb-group", "g", "--json"]
    code, stdout, stderr = run("compare", *folders, *options)
    assert code == 0, stderr
    logged = {r["name"]: r for r in runs_in(place)}
    assert {r["group"] for r in logged.values()} == {"g"}
    assert set(logged) == {"ar-mamba", "ar-attention", "comparison"}
    (table,) = (logged["comparison"]["folder"] / "files/media/table").rglob("*.table.json")
    rows = json.loads(table.read_text())
    at = rows["columns"].index("accuracy")
    wanted = [row["accuracy"]["value"] for row in json.loads(stdout)["rows"]]
    assert [row[at] for row in rows["data"]] == pytest.approx(wanted, abs=1e-9)


def test_training_curves_and_result_are_in_one_run(place, run):
    options = ["--out", "run", "--wandb", "recall", "--wandb-mode", "offline"]
    code, _, stderr = run("train", *TRAINED, *options)
    assert code == 0, stderr
    (logged,) = runs_in(place)
    assert logged["name"] == "run"
    steps = [line for line in logged["history"] if "train/dev_accuracy" in line]
    history = json.loads((place / "run/training.json").read_text())["history"]
    assert [line["train/dev_accuracy"] for line in steps] == [
        line["dev_accuracy"] for line in history if "dev_accuracy" in line
    ]
    result = json.loads((place / "run/result/result.json").read_text())
    assert logged["summary"]["accuracy"] == result["summary"]["accuracy"]["value"]
    assert len(logged["artifacts"]) == 1


@pytest.mark.parametrize("answers", [False, True], ids=["refuses", "hangs"])
def test_a_bad_server_costs_a_line_and_bounded_time(place, monkeypatch, run, answers):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if answers:
            server.listen()  # accepts, and never says a word
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        monkeypatch.setattr("patchbench.tracking.BEGIN", 3)
        monkeypatch.setattr("patchbench.tracking.END", 3)
        folder = shutil.copytree(FOLDERS["ar-mamba"], place / "kept")
        started = time.monotonic()
        code, _, stderr = run("log", folder, "--wandb", "recall")
        assert time.monotonic() - started < 80  # W&B itself would wait 90 to begin
    assert code == 0
    assert stderr.count("\n") == 1
    assert stderr.startswith("warning: wandb")
    (logged,) = runs_in(place)
    assert logged["summary"]["accuracy"] > 0


def test_trackio_has_the_same_names(place, monkeypatch, run):
    monkeypatch.setenv("TRACKIO_DIR", str(place / "trackio"))
    pytest.importorskip("trackio")  # reads the variable as it is imported
    options = ["--track", "trackio", "--wandb", "recall"]
    code, _, stderr = run("log", FOLDERS["ar-mamba"], *options)
    assert (code, stderr.startswith("trackio: logged")) == (0, True), stderr
    (database,) = (place / "trackio").glob("recall*.db")
    with contextlib.closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("select step, metrics from metrics order by id").fetchall()
    *curves, (_, logged) = [(step, json.loads(metrics)) for step, metrics in rows]
    content = json.loads((FOLDERS["ar-mamba"] / "result.json").read_text())
    assert logged["accuracy/low"] == content["summary"]["accuracy"]["low"]
    history = json.loads((FOLDERS["ar-mamba"].parent / "training.json").read_text())["history"]
    assert [(step, line["train/dev_accuracy"]) for step, line in curves] == [
        (line["step"], line["dev_accuracy"]) for line in history
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "ofline"}, "did you mean 'offline'"),
        ({"tracker": "wandbb"}, "did you mean 'wandb'"),
        ({"project": "a/b"}, "a name without /"),
        ({"tracker": "trackio", "tags": ["a"]}, "trackio has no entity"),
    ],
    ids=str,
)
def test_what_cannot_be_is_told_before_the_work(options, said):
    with pytest.raises(UserError, match=said):
        Tracking(**{"project": "p", **options})


def test_options_without_a_project_are_refused(run):
    code, _, stderr = run("log", "x", "--wandb-tags", "a")
    assert (code, "--wandb PROJECT" in stderr) == (2, True)
