"""What a grid says of single sites, from effects and resamples that are made by hand."""

import numpy as np
import pytest

from patchbench.grid import Grid, place
from patchbench.mechanism import _label, _strongest
from patchbench.sites import Site
from patchbench.statistics import Estimate


def grid(sites: dict[str, tuple[float, float, float]], *, found=True, drawn=None, layers=2) -> Grid:
    """Return a grid of site → (value, low, high)."""
    effects = [Estimate(*limits, n=50) for limits in sites.values()]
    values = np.array([effect.value for effect in effects])
    return Grid(
        sites=[Site.parse(name) for name in sites],
        effects=effects,
        drawn=np.tile(values, (100, 1)) if drawn is None else drawn,
        found=np.full(len(sites), found),
        num_layers=layers,
        metric="p",
        n=50,
    )


@pytest.mark.parametrize(
    ("limits", "found", "carries", "lacks"),
    [
        ((0.8, 0.6, 0.9), True, True, False),
        ((0.8, 0.6, 0.9), False, False, False),  # no discovery of the grid
        ((0.8, 0.5, 0.9), True, False, False),
        ((0.2, 0.1, 0.49), True, False, True),
        ((0.2, 0.1, 0.5), True, False, False),
        ((0.8, np.nan, np.nan), True, False, False),
    ],
)
def test_a_site_carries_lacks_or_is_undecided(limits, found, carries, lacks):
    one = grid({"L1.block_input@value": limits}, found=found)
    assert (one.carries(0), one.lacks(0)) == (carries, lacks)


@pytest.mark.parametrize(
    ("site", "layer"),
    [
        ("L0.block_input@value", None),
        ("L1.block_input@value", 1),
        ("L0.block_output@value", 1),
        ("L1.block_output@value", None),  # behind the last layer
        ("L1.mixer_output@value", None),
    ],
)
def test_a_boundary_lies_between_two_layers(site, layer):
    assert grid({site: (1.0, 1.0, 1.0)}).boundary(0) == layer


@pytest.mark.parametrize(
    ("position", "kind"),
    [
        ("key", "key"), ("key+1", "other"), ("value", "value"), ("value+2", "value"),
        ("value-1", "other"), ("query", "query"), ("query+1", "query"), ("query-1", "other"),
        ("answer-1", "query"), ("answer", "placebo"), ("answer+1", "placebo"), ("divider", "other"),
    ],
)  # fmt: skip
def test_what_a_position_is_to_the_association(position, kind):
    assert place(Site.parse(f"L1.block_input@{position}")) == kind


@pytest.mark.parametrize(("missing", "known"), [(2, True), (3, False)])
def test_a_layer_that_many_resamples_do_not_have_is_not_given(missing, known):
    """2.5 % of 100 resamples may be without it."""
    drawn = np.full((100, 1), 0.9)
    drawn[:missing] = 0.1
    one = grid({"L1.block_input@value": (0.9, 0.4, 0.9)}, drawn=drawn)
    assert (one.first_layer("value", default=None) is not None) == known
    late = one.first_layer("value", default=2)
    assert late is not None
    assert (late.value, late.low, late.high) == (1, 1, 1 if known else 2)


def test_the_strongest_is_the_one_that_is_surest():
    sites = {"L1.block_input@value": (0.95, 0.55, 1.2), "L2.block_input@value": (0.9, 0.85, 0.95)}
    assert _strongest(grid(sites, layers=4), [0, 1]) == 1


@pytest.mark.parametrize(("found", "label"), [(True, "distributed"), (False, None)])
def test_only_discoveries_add_up_to_distributed(found, label):
    parts = {"key": 0.3, "value": 0.3, "query": 0.35}
    sites = {f"L1.block_input@{at}": (x, x - 0.1, x + 0.1) for at, x in parts.items()}
    assert _label(grid(sites, found=found), None, None)[0] == label


def test_why_nothing_is_decided_is_what_was_not_met():
    at = "L1.block_input@value"
    others = {"L1.block_input@key": (0.0, 0.0, 0.0), "L1.block_input@query": (0.0, 0.0, 0.0)}
    for limits, found, says in (
        ((0.9, 0.8, 1.0), False, f"{at} is above a half, and no discovery of the grid"),
        ((0.6, 0.4, 0.8), True, f"the interval at {at} includes a half"),
        ((0.6, np.nan, np.nan), True, f"{at} has no interval"),
    ):
        label, sites, why = _label(grid({at: limits} | others, found=found), None, None)
        assert (label, sites, why) == (None, [0], says)


def test_together_is_a_sum_within_each_resample():
    """Two that vary against one another have a sum that does not."""
    first = np.linspace(0, 1, 100)
    drawn = np.stack([first, 1 - first], axis=1)
    sites = {"L1.block_input@key": (0.5, 0.0, 1.0), "L1.block_input@query": (0.5, 0.0, 1.0)}
    both = grid(sites, drawn=drawn).together([0, 1])
    assert (both.value, both.low, both.high) == pytest.approx((1, 1, 1))
