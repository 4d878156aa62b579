"""What the WANDB_ variables say, and what they must not say of several runs."""

import pytest

from tests.core.report.made import result
from tests.core.tracking.wandb_files import runs_in


@pytest.fixture
def logged(place, monkeypatch, run):
    """Set variables, log some of two runs offline, and return what was written, by name."""

    def call(variables, *arguments, runs=("one",)):
        for name in runs:
            result(name=f"model {name}").save(place / name)
        for name, value in {"MODE": "offline", **variables}.items():
            monkeypatch.setenv(f"WANDB_{name}", value)
        code, _, stderr = run("log", *runs, *arguments)
        assert code == 0
        found = {one["name"]: one for one in runs_in(place)}
        assert len(found) == stderr.count("wandb: recorded offline") == len(runs), stderr
        return found

    return call


VARIABLES = {
    "PROJECT": "of-project",
    "ENTITY": "of-entity",
    "NAME": "of-name",
    "RUN_GROUP": "of-group",
    "TAGS": "a,b",
    "RUN_ID": "of-id",
}


def test_the_variables_name_a_run(logged):
    (found,) = logged(VARIABLES, "--track", "wandb").values()
    shown = {name: found[name] for name in ("project", "entity", "name", "group", "tags", "id")}
    assert shown == {
        "project": "of-project", "entity": "of-entity", "name": "of-name", "group": "of-group",
        "tags": ["a", "b"], "id": "of-id",
    }  # fmt: skip


def test_options_come_before_variables(logged):
    options = ["--wandb", "p", "--wandb-entity", "e", "--wandb-name", "n", "--wandb-group", "g"]
    (found,) = logged(VARIABLES, *options, "--wandb-tags", "t").values()
    shown = [found[name] for name in ("project", "entity", "name", "group", "tags", "id")]
    assert shown == ["p", "e", "n", "g", ["t"], "of-id"]


def test_a_mode_that_is_asked_for_comes_before_the_variable(logged):
    logged({"MODE": "disabled"}, "--wandb", "p", "--wandb-mode", "offline")


def test_the_variable_alone_disables(place, monkeypatch, run):
    result().save(place / "one")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    code, _, stderr = run("log", "one", "--wandb", "p")
    assert (code, stderr) == (0, "wandb: disabled, nothing was logged\n")
    assert not (place / "wandb").exists()


def test_where_the_files_go(place, monkeypatch, run):
    result().save(place / "one")
    (place / "elsewhere").mkdir()
    monkeypatch.setenv("WANDB_DIR", str(place / "elsewhere"))
    code, _, _ = run("log", "one", "--wandb", "p", "--wandb-mode", "offline")
    assert code == 0
    assert len(runs_in(place / "elsewhere")) == 1
    assert not (place / "wandb").exists()


def test_defaults_without_variables(logged):
    (found,) = logged({}, "--track", "wandb").values()
    assert (found["project"], found["name"], found["group"]) == ("patchbench", "model one", "")


@pytest.mark.parametrize("resume", ["", "allow", "must"])
def test_several_runs_have_ids_and_names_of_their_own(logged, resume):
    """Otherwise the second would write over the first, or under its name."""
    variables = {"RUN_ID": "of-id", "NAME": "of-name", **({"RESUME": resume} if resume else {})}
    found = logged(variables, "--wandb", "p", runs=("one", "two"))
    assert set(found) == {"one", "two"}
    ids = {one["id"] for one in found.values()}
    assert len(ids) == 2
    assert "of-id" not in ids
    assert {one["summary"]["accuracy"] for one in found.values()} == {0.9}


def test_several_runs_are_in_the_group_of_the_variable(logged):
    found = logged({"RUN_GROUP": "of-group"}, "--wandb", "p", runs=("one", "two"))
    assert {one["group"] for one in found.values()} == {"of-group"}
