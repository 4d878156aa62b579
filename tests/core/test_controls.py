"""Controls: exact where the hooks are right, loud where they are not."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import patchbench as pb
from patchbench import controls
from patchbench.common import ControlError
from patchbench.engines.base import make_batches
from tests.tiny_models import tiny

TASK = {"num_pairs": 3, "num_keys": 8, "num_values": 8}


@pytest.fixture(scope="module")
def task():
    return pb.load_task("ar", **TASK)


@pytest.mark.parametrize("family", ["gpt2", "llama", "mamba"])
@pytest.mark.parametrize("corruption", ["key", "value", "swap"])
def test_hard_controls_are_exact(family, corruption, task):
    result = pb.evaluate(
        tiny(family),
        task,
        n=8,
        corruptions=[corruption],
        directions=["denoise", "noise"],
        layers=[1],
        positions=["value"],
    )
    for run in result.summary["runs"]:
        assert [c["control"] for c in run["controls"]] == ["identity", "restore", "placebo"]
        assert all(c["error"] <= 1e-6 and c["n"] == 8 for c in run["controls"])


@pytest.mark.parametrize(
    ("wrong", "control"),
    [("L1.block_input", "restore"), ("L0.mixer_output", "restore")],
)
def test_a_hook_at_the_wrong_place_stops_the_run(wrong, control, task):
    """The map calls another value "block_input of layer 0": restoring there is not exact."""
    model = tiny("gpt2")
    loaded = pb.load_model(model)
    layer, component = wrong.split(".")
    points = dict(loaded.hook_map.points)
    points[0, "block_input"] = replace(
        points[int(layer[1:]), component], layer=0, component="block_input"
    )
    lying = replace(loaded, hook_map=replace(loaded.hook_map, points=points))
    with pytest.raises(ControlError, match=control):
        pb.evaluate(lying, task, n=8, layers=[1], positions=["value"])


def _rows(control: str | None, patched: float) -> dict:
    return {
        "control": control,
        "site": "L0.block_input@key",
        "corruption": "key",
        "direction": "denoise",
        "p_base": 0.1,
        "p_source": 0.9,
        "p_patched": patched,
    }


EXACT = [_rows("identity", 0.1), _rows("restore", 0.9), _rows("placebo", 0.1), _rows(None, 0.5)]


def test_check_accepts_exact_rows_and_names_what_is_off():
    assert all(c.passed for c in controls.check(pa.Table.from_pylist(EXACT), dtype="float32"))
    for index, control in enumerate(("identity", "restore", "placebo")):
        for patched in (0.1 + 0.5, np.nan):
            rows = list(EXACT)
            rows[index] = _rows(control, patched)
            with pytest.raises(ControlError, match=control):
                controls.check(pa.Table.from_pylist(rows), dtype="float32")


@pytest.mark.parametrize("off", [5e-5, 2e-4, -2e-4])
@pytest.mark.parametrize("index", range(3), ids=["identity", "restore", "placebo"])
def test_a_ten_thousandth_is_the_limit(index, off):
    rows = list(EXACT)
    exact = rows[index]
    rows[index] = {**exact, "p_patched": exact["p_patched"] + off}
    if abs(off) < 1e-4:
        assert controls.check(pa.Table.from_pylist(rows), dtype="float32")[index].passed
    else:
        with pytest.raises(ControlError, match=exact["control"]):
            controls.check(pa.Table.from_pylist(rows), dtype="float32")


@pytest.mark.parametrize(
    ("corruption", "restored"),
    [
        ("key", "L0.block_input@key"),
        ("value", "L0.block_input@value"),
        ("swap", "L0.block_input@value & L0.block_input@partner"),
    ],
)
def test_controls_are_where_their_effect_is_known(corruption, restored):
    hook_map = pb.load_model(tiny("gpt2", layers=4)).hook_map
    found = controls.interventions(hook_map, corruption=corruption, direction="noise")
    first = restored.partition(" & ")[0].replace("L0", "L2")
    assert [(c.control, c.label, c.source) for c in found] == [
        ("identity", first, "self"),
        ("restore", restored, "counterpart"),
        ("placebo", "L2.block_input@answer", "counterpart"),
    ]
    assert {(c.corruption, c.direction) for c in found} == {(corruption, "noise")}


def test_one_row_that_is_off_among_many_is_an_error():
    rows = pa.Table.from_pylist([*EXACT * 500, _rows("identity", 0.1 + 1e-3)])
    with pytest.raises(ControlError, match=r"off by 1\.00e-03"):
        controls.check(rows, dtype="float32")


def test_a_control_without_rows_is_an_error():
    with pytest.raises(ControlError, match="placebo"):
        controls.check(pa.Table.from_pylist([EXACT[0], EXACT[1], EXACT[3]]), dtype="float32")


def test_partner_is_where_the_swap_put_the_answer(task):
    batch = controls.with_partner(make_batches(task.dataset("test", 16), 16, ["swap"])[0])
    rows = np.arange(16)
    partner = batch.positions["partner"]
    assert (batch.corrupted["swap"][rows, partner] == batch.answer).all()
    assert (batch.clean[rows, partner] == batch.counterfactual["swap"]).all()


def test_without_a_swap_there_is_no_partner(task):
    (batch,) = make_batches(task.dataset("test", 4), 4, ["swap"])
    swapped = batch.corrupted["swap"].copy()
    swapped[1] = batch.clean[1]
    found = controls.with_partner(replace(batch, corrupted={"swap": swapped}))
    assert (found.positions["partner"] >= 0).tolist() == [True, False, True, True]
