"""`patchbench sweep --wandb`: one run for each model, in one group, with its curves."""

import json

import pytest

from tests.core.tracking.wandb_files import runs_in

TINY = ["paper_ar", "--arch", "delta_net", "--widths", "16", "--device", "cpu", "--workers", "1"]
TINY += ["--out", "swept", "--no-report", "--wandb", "recall", "--wandb-mode", "offline"]
for setting in ("steps=6", "log_every=2", "dev_n=16", "test_n=8", "warmup=2", "dynamics_every=0"):
    TINY += ["--train", setting]
for setting in ("num_pairs=2", "num_keys=4", "num_values=4"):
    TINY += ["--set", setting]
NAMES = ["delta_net-w16-s0", "delta_net-w16-s1"]


def test_runs_are_grouped_and_have_their_curves(place, run, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "of-one-run")
    code, _, stderr = run("sweep", *TINY, "--seeds", "0,1")
    assert code == 0, stderr
    found = {one["name"]: one for one in runs_in(place)}
    assert sorted(found) == NAMES
    assert {one["group"] for one in found.values()} == {"paper_ar swept"}
    assert len({one["id"] for one in found.values()} - {"of-one-run"}) == 2
    for name, one in found.items():
        folder = place / "swept/runs" / name
        history = json.loads((folder / "training.json").read_text())["history"]
        for curve in ("loss", "dev_accuracy"):
            drawn = {
                line["train/global_step"]: line[f"train/{curve}"]
                for line in one["history"]
                if f"train/{curve}" in line
            }
            assert drawn == {line["step"]: line[curve] for line in history}
        result = json.loads((folder / "result/result.json").read_text())
        assert one["summary"]["accuracy"] == result["summary"]["accuracy"]["value"]
        assert one["config"]["provenance"]["training"]["rate"] == 0.003
        assert len(one["artifacts"]) == 1
    # What was finished before is not logged twice, and that is said.
    code, _, stderr = run("sweep", *TINY, "--seeds", "0,1")
    assert code == 0
    assert "2 of the runs were finished before" in stderr
    assert "`patchbench log swept`" in stderr
    assert len(runs_in(place)) == 2


@pytest.mark.parametrize(
    ("options", "variables", "name", "group"),
    [
        (["--wandb-group", "g", "--wandb-name", "n"], {}, "n/delta_net-w16-s0", "g"),
        ([], {"WANDB_RUN_GROUP": "v", "WANDB_NAME": "x"}, "delta_net-w16-s0", "v"),
    ],
    ids=["options", "variables"],
)
def test_a_group_and_a_name_can_be_asked_for(
    place, run, monkeypatch, options, variables, name, group
):
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    code, _, stderr = run("sweep", *TINY, "--seeds", "0", *options)
    assert code == 0, stderr
    (found,) = runs_in(place)
    assert (found["name"], found["group"]) == (name, group)
