"""Presets: found by name, changed by options, and each with the records that its word rests on."""

import pytest

from patchbench.adapters import PRESETS as ARCHITECTURES
from patchbench.common import UserError
from patchbench.training import TrainConfig
from patchbench.training.presets import PRESETS, find_preset, list_presets, records

KEYS = [(*key, arch) for key, by_arch in PRESETS.items() for arch in by_arch]
# On one core.
SECONDS = {("ar", "tiny"): 120, ("atr", "tiny"): 120, ("ar", "mini"): 600, ("atr", "mini"): 600}
RECORDED = {(r["family"], r["preset"], r["arch"]) for r in records()}
RUN = [key for key in KEYS if key in RECORDED]


@pytest.mark.parametrize("key", KEYS, ids="-".join)
def test_a_preset_can_be_built(key):
    preset = PRESETS[key[:2]][key[2]]
    task = preset.load_task(seed=0)
    config = TrainConfig.of(dict(preset.settings))
    assert sum(steps for _, steps in config.stages) == config.total_steps
    model = preset.spec().build(task, seed=0)
    assert model.config.hidden_size == preset.model["width"]
    assert model.config.vocab_size == task.vocab_size


def test_every_architecture_has_an_ar_preset_of_each_size():
    for size in ("tiny", "mini", "paper"):
        assert set(PRESETS["ar", size]) == set(ARCHITECTURES)


@pytest.mark.parametrize("key", RUN, ids="-".join)
def test_the_records_bear_out_the_preset(key):
    runs = [r for r in records() if (r["family"], r["preset"], r["arch"]) == key]
    assert {run["seed"] for run in runs} <= {0, 1, 2}
    solves = PRESETS[key[:2]][key[2]].solves
    for run in runs:
        assert run["cpu_seconds"] <= SECONDS[key[:2]]
        if key[0] == "ar":
            assert run["accuracy"]["value"] > 0.75 if solves else run["accuracy"]["value"] < 0.55
        elif solves:
            assert run["accuracy_beyond_heuristics"]["low"] > 0.25


def test_no_record_is_left_over():
    assert {(r["family"], r["preset"], r["arch"]) for r in records()} == set(RUN)


def test_the_listing_has_a_line_for_each():
    lines = list_presets()
    assert [(line["task"].split("/")[0], line["preset"], line["arch"]) for line in lines] == KEYS
    assert {line["accuracy"] for line in lines if line["seeds"] == 0} == {"not run"}


def test_options_change_a_preset():
    preset = find_preset("tiny", "mamba", "ar")
    other = preset.changed(
        model={"width": 16, "options": {"d_conv": 2}},
        settings={"epochs": 2, "data": "fixed"},
        overrides={"num_pairs": 3},
    )
    assert other.model["width"] == 16
    assert other.model["options"] == {**preset.model["options"], "d_conv": 2}
    assert "steps" not in other.settings
    assert other.load_task(0).config.num_pairs == 3
    assert "d_conv 2" in other.describe()
    assert "num_pairs" not in preset.overrides


def test_another_variant_takes_the_place_of_the_presets_own():
    assert find_preset("tiny", "mamba", "ar/reverse").task == "ar/reverse"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tinny", "mamba", "ar"), "tiny"),
        (("tiny", "mambo", "ar"), "mamba"),
        (("tiny", None, "ar"), "--arch"),
        (("tiny", "mamba", "xr"), "ar"),
    ],
)
def test_an_unknown_name_says_what_there_is(arguments, words):
    with pytest.raises(UserError, match=words):
        find_preset(*arguments)
