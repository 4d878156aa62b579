"""What a comparison takes for granted, and what it says of it."""

import pytest

from patchbench.common import UserError
from patchbench.comparing import compare, middle_layer
from tests.core.report.made import EFFECTS, result
from tests.core.rows import make_rows


def deep(layers, measured):
    """Return a Result of a model of so many layers, of which some are measured."""
    made = result({f"L{layer}.block_input@value": 0.5 for layer in measured})
    made.provenance["model"]["num_layers"] = layers
    return made


@pytest.mark.parametrize(
    ("layers", "measured", "middle"),
    [
        (2, (0, 1), 1),
        (1, (0,), 1),
        (12, range(12), 6),
        (30, (0, 12, 24), 12),
        (30, (0, 14, 16), 14),  # the lower of two that are as near
        (30, (0, 29), 29),
    ],
)
def test_the_middle_is_a_measured_layer_and_never_the_first(layers, measured, middle):
    assert middle_layer(deep(layers, measured)) == middle


def test_a_layer_of_the_controls_alone_is_not_measured():
    """The random site of a control may lie in any layer."""
    control = make_rows({"L15.block_input@random": 0.0}, n=40, right=36, control="random site")
    sites = {f"L{layer}.block_input@value": 0.5 for layer in (12, 18)}
    made = result(tables=[make_rows(sites, n=40, right=36), control])
    made.provenance["model"]["num_layers"] = 30
    assert middle_layer(made) == 12
    with pytest.raises(UserError, match="no run has layer 15: measured: 12, 18"):
        compare({"one": made, "two": made}, layer=15)


def test_a_component_or_layer_of_no_run_is_refused():
    both = {"one": result(), "two": result()}
    with pytest.raises(UserError, match="no run has the component 'block_inptu'"):
        compare(both, component="block_inptu")
    with pytest.raises(UserError, match="no run has layer 7"):
        compare(both, layer=7)
    with pytest.raises(UserError):
        compare(both, positions=("key", "no position"))


def test_positions_that_nobody_measured_are_told():
    compared = compare({"one": result(), "two": result()}, positions=("key", "value+2"))
    assert compared.warnings == ["no run has an Attrib of block_input at value+2"]


def test_what_differs_between_runs_is_told():
    other = result(n=30, right=28, digest="b")
    other.summary["task"]["seed"] = 1
    other.summary["model"]["dtype"] = "bfloat16"
    warnings = " ".join(compare({"one": result(), "two": other}).warnings)
    for name in ("task's seed", "number of items", "dtype"):
        assert f"differ in {name}" in warnings
    assert compare({"one": result(), "two": result(EFFECTS)}).warnings == []
