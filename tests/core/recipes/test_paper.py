"""The paper's recipes: which runs they have, with which settings."""

import dataclasses
import json

import pytest

from patchbench.common import UserError
from patchbench.recipes import RECIPES, RunConfig, SweepConfig, list_recipes

PAPER = [name for name in RECIPES if name.startswith("paper_")]
AR_RATES = [3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2]
ATR_RATES = AR_RATES[:5]
# Of a recipe: variants of architectures, task, what mini changes in it.
MINI = {
    "paper_ar": (8, "ar/mini", {}),
    "paper_ar_conv": (10, "ar/mini", {}),
    "paper_ar_layers": (6, "ar/mini", {}),
    "paper_atr_easy": (8, "atr/easy", {"max_sentence_length": 44}),
    "paper_atr_medium": (8, "atr/medium", {"max_sentence_length": 44}),
    "paper_atr_large_vocab": (
        8, "atr/large_vocab", {"max_sentence_length": 44, "num_terminals": 512},
    ),
    "paper_atr_noconv": (3, "atr/easy", {"max_sentence_length": 44}),
    "paper_sibling": (3, "atr/sibling", {"max_sentence_length": 44}),
}  # fmt: skip


def test_all_are_there_and_said_in_one_line():
    assert set(PAPER) == {*MINI, "paper_held_out"}
    for info in list_recipes():
        assert 10 < len(info.description) < 90


@pytest.mark.parametrize("name", MINI)
def test_mini(name):
    variants, task, overrides = MINI[name]
    runs = RECIPES[name](scale="mini").runs
    assert len(runs) == 3 * variants
    assert {run.task for run in runs} == {task}
    assert all(run.overrides == overrides for run in runs)
    # A sweep that is stopped early has something of everything.
    assert [run.training["seed"] for run in runs] == sorted(run.training["seed"] for run in runs)
    assert all(run.task_seed == run.training["seed"] for run in runs)
    assert len({run.group for run in runs}) == variants


@pytest.mark.parametrize("name", PAPER)
def test_paper_has_its_widths_rates_and_steps(name):
    runs = RECIPES[name](scale="paper").runs
    assert {run.model["width"] for run in runs} == {16, 32, 64, 128, 256}
    for run in runs:
        config = run.train_config()
        ar = run.task.startswith("ar")
        assert list(config.rates) == (AR_RATES if ar else ATR_RATES)
        assert config.total_steps == (50_016 if ar else 100_032)
        assert (config.batch_size, config.schedule, config.train_n) == (32, "cosine", 100_032)
        assert config.weight_decay == 0
        assert run.load_task().config.num_pairs == 16 if ar else True
        assert config.test_n >= 1024


def test_the_published_settings_of_mini_mamba():
    (run,) = RECIPES["paper_ar"](archs=["mamba"], seeds=[2]).runs
    assert run.name == "mamba-w64-s2"
    assert run.model == {
        "arch": "mamba", "width": 64, "init": "pytorch", "options": {"initializer_range": 0.3},
    }  # fmt: skip
    assert run.training == {
        "lr": 0.005, "steps": 12_000, "data": "fresh", "schedule": "cosine", "warmup": 100,
        "stop_at": 0.99, "dev_n": 1024, "seed": 2,
        "curriculum": [
            "drawn_keys=16,drawn_values=16,num_pairs=4:3500",
            "drawn_keys=32,drawn_values=32,num_pairs=6:1500",
        ],
    }  # fmt: skip
    assert 450 < run.estimate < 480  # as recorded


def test_convolutions_and_layers_reach_the_model():
    by_label = {run.group: run for run in RECIPES["paper_ar_conv"](seeds=[0]).runs}
    for label, widths in {
        "mamba-conv0": [0, 0],
        "mamba-conv2": [2, 2],
        "based-conv1": [1, None],
        "based-convlong": ["long", None],
    }.items():
        run = by_label[f"{label}-w64"]
        model = run.spec().build(run.load_task(), seed=0)
        assert [layer.get("d_conv") for layer in model.config.mixers] == widths
    for run in RECIPES["paper_ar_layers"](seeds=[0], archs=["attention"]).runs:
        model = run.spec().build(run.load_task(), seed=0)
        assert f"-l{len(model.config.mixers)}-" in run.name


def test_held_out_asks_other_pairs_in_test():
    runs = RECIPES["paper_held_out"](seeds=[0]).runs
    assert {run.load_task().config.held_out for run in runs} == {0.2}
    assert {run.name.split("-")[0] for run in runs} == {"ar", "atr"}


@pytest.mark.parametrize("name", PAPER)
def test_every_mini_run_can_be(name):
    for run in RECIPES[name](scale="mini", seeds=[0]).runs:
        run.check()


def test_a_choice_of_everything():
    config = RECIPES["paper_ar"](
        archs=["based", "h3"],
        widths=[16, 32],
        rates=[1e-3, 1e-2],
        seeds=[5],
        training={"steps": 7, "warmup": 2},
        overrides={"num_pairs": 3},
    )
    assert [run.name for run in config.runs] == [
        "based-w16-s5", "based-w32-s5", "h3-w16-s5", "h3-w32-s5",
    ]  # fmt: skip
    for run in config.runs:
        assert run.train_config().rates == (1e-3, 1e-2)
        assert run.train_config().total_steps == 7
        assert run.load_task().config.num_pairs == 3
        assert run.estimate is None
    assert RECIPES["paper_ar"](rates=[2e-3], seeds=[0]).runs[0].train_config().rates == (2e-3,)


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ({"scale": "huge"}, "unknown scale 'huge'"),
        ({"archs": ["mambo"]}, "did you mean .*'mamba'"),
        ({"training": {"lr": 1e-3}}, "give rates"),
        ({"training": {"seed": 1}}, "give rates and seeds"),
        ({"seeds": []}, "has no runs"),
        ({"seeds": [1, 1]}, "two runs 'attention-w64-s1'"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_mistake_is_named(choice, says):
    with pytest.raises(UserError, match=says):
        RECIPES["paper_ar"](**choice)


def test_runs_are_frozen_and_come_back_from_json():
    for name in PAPER:
        for run in RECIPES[name](seeds=[1]).runs:
            assert RunConfig.from_json(json.loads(json.dumps(run.to_json()))) == run
            with pytest.raises(dataclasses.FrozenInstanceError):
                run.name = "other"


def test_only_and_groups():
    config = RECIPES["paper_ar"](seeds=[0, 1])
    chosen = config.only("mamba*-s1")
    assert [run.name for run in chosen.runs] == ["mamba-w64-s1", "mamba_noconv-w64-s1"]
    assert {len(runs) for runs in config.groups().values()} == {2}
    with pytest.raises(UserError, match="fits no run"):
        config.only("mambo*")


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "x" * 101])
def test_a_name_that_is_no_folder_is_refused(name):
    with pytest.raises(UserError, match="a name of letters"):
        RunConfig(name=name, group="g", model={}, task="ar", training={})


def test_a_sweep_without_runs_is_refused():
    with pytest.raises(UserError, match="has no runs"):
        SweepConfig(recipe="mine", runs=())
