"""Runs that differ in their convolution alone: which are found, and what is drawn of them."""

import copy

import pytest

from patchbench.comparing import compare
from patchbench.conv_widths import conv_width, width_families
from patchbench.report.comparison_figures import comparison_figures, conv_width_bars
from tests.core.report.made import EFFECTS, result


def trained(d_conv=None, *, seed=0, width=64, mixer="mamba", model=None, effects=EFFECTS, **made):
    """Return a Result of a training; without `d_conv` the mixer has its own default."""
    layer = {"name": mixer} | ({} if d_conv is None else {"d_conv": d_conv})
    found = result(effects, digest=f"seed {seed}", **made)
    found.provenance["training"] = {
        "model": {"hidden_size": width, "mixers": [layer, layer], **(model or {})},
        "training": {"seed": seed, "lr": 0.01},
    }
    found.provenance["model"]["num_parameters"] = 1000 + len(str(d_conv))
    return found


def widths(results):
    named = {str(number): one for number, one in enumerate(results)}
    return {family: list(by) for family, by in width_families(named).items()}


def test_families_are_told_apart_and_ordered_by_width():
    results = [trained(k) for k in (4, "long", 0, 2)]
    results += [trained(k, mixer="hyena", width=16) for k in (3, 0)]
    assert widths(results) == {
        "mamba of width 64": [0, 2, 4, "long"],
        "hyena of width 16": [0, 3],
    }


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (trained(0), True),
        (trained(0, seed=1), True),
        (trained(0, width=16), False),
        (trained(0, mixer="hyena"), False),
        (trained(0, config={"positions": ["key"]}), False),
        (trained(4), False),  # the same width twice is no ablation
        (result(), False),  # not trained here
    ],
    ids=["width", "seed too", "model's width", "mixer", "evaluation", "nothing", "no training"],
)
def test_what_differs_in_more_is_no_ablation(other, same):
    assert bool(widths([trained(4), other])) == same


def test_another_training_is_no_ablation():
    other = trained(0)
    other.provenance["training"]["training"]["lr"] = 0.02
    assert widths([trained(4), other]) == {}


@pytest.mark.parametrize(
    ("found", "width"),
    [
        (trained(3), 3),
        (trained(), 4),  # Mamba's own
        (trained(mixer="mamba", model={"mixer_options": {"mamba": {"d_conv": 2}}}), 2),
        (trained(model={"mixers": ["mamba", "mamba"]}), 4),
        (trained(model={"mixers": [{"name": "base_conv", "d_conv": 1}, "attention"]}), 1),
        (trained(model={"mixers": [{"name": "mamba", "d_conv": 1}, "mamba"]}), None),
        (trained(model={"mixers": ["attention"]}), None),
        (trained(model={"mixers": ["of_another_package"]}), None),
        (trained(model={"mixers": None}), None),
        (result(), None),
    ],
    ids=[
        *("by layer", "default", "by mixer", "by name", "one mixer of two", "two widths"),
        *("none", "unknown mixer", "no mixers", "no training"),
    ],
)
def test_a_models_width(found, width):
    assert conv_width(found) == width


def test_a_comparison_draws_its_ablation():
    named = {f"conv{k}": trained(k, right=36 if k else 2) for k in (4, 0)}
    drawn = comparison_figures(compare(named, positions=["value"]), named)
    accuracy, value = drawn["conv_widths/mamba of width 64"].data
    assert list(accuracy.x) == ["0", "4"]
    assert list(accuracy.y) == pytest.approx([0.05, 0.9])
    assert (list(value.x), value.name) == (["4"], "Attrib@value")
    assert value.y[0] == pytest.approx(0.75, abs=1e-9)
    assert "conv_widths" not in "".join(comparison_figures(compare(two()), two()))


def two():
    return {"one": result(), "two": copy.deepcopy(result())}


def test_seeds_are_pooled_by_the_mean():
    """Of equal numbers of examples and equal gaps, the pooled ratio is the mean of the ratios."""
    half = {site: effect / 2 for site, effect in EFFECTS.items()}
    seeds = [trained(4, seed=0, right=36), trained(4, seed=1, effects=half, right=32)]
    accuracy, _, value, _ = conv_width_bars({4: seeds, 0: [trained(0, right=2)]}).data
    assert list(accuracy.y) == pytest.approx([0.05, 0.85])
    assert value.y[0] == pytest.approx((0.75 + 0.375) / 2, abs=1e-9)


def test_a_run_that_is_there_twice_counts_once():
    named = {"a": trained(4), "b": trained(4), "c": trained(0), "d": trained(4, seed=1)}
    (by_width,) = width_families(named).values()
    assert {width: len(seeds) for width, seeds in by_width.items()} == {0: 1, 4: 2}
