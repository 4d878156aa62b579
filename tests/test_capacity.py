"""The capacity plan's page is what its measurements give, by a scheduler that schedules."""

import importlib
import itertools
import json
import sys
from pathlib import Path

import pytest

CAPACITY = Path(__file__).parents[1] / "examples" / "capacity"


@pytest.fixture(scope="module")
def plan():
    sys.path.insert(0, str(CAPACITY))
    try:
        yield importlib.import_module("plan")
    finally:
        sys.path.remove(str(CAPACITY))
        for name in ("plan", "measure"):
            sys.modules.pop(name, None)


def step_by_step(seconds, cores):
    """Walk through time: whenever a core is free, it takes the next run."""
    waiting, left, now = list(seconds), [], 0
    while waiting or left:
        while waiting and len(left) < cores:
            left.append(waiting.pop(0))
        step = min(left)
        now += step
        left = [one - step for one in left if one > step]
    return now


@pytest.mark.parametrize("cores", [1, 2, 3, 7])
def test_runs_go_to_the_next_free_core(plan, cores):
    for seconds in itertools.permutations([5, 4, 3, 3, 2, 9], 6):
        assert plan.simulate(seconds, cores, 0.0, 0) == step_by_step(seconds, cores)


def test_scatter_keeps_the_mean(plan):
    ends = [plan.simulate([1.0] * 50, 1, 0.2, seed) for seed in range(200)]
    assert sum(ends) / len(ends) == pytest.approx(50, rel=0.01)


def test_what_was_not_measured_is_said(plan):
    with pytest.raises(LookupError, match=r"0 measurements of .*run measure\.py"):
        plan.Costs([]).step("mamba", 64, "ar")


def test_the_grid_is_the_papers(plan):
    runs = len(plan.ARCHITECTURES) * len(plan.WIDTHS) * plan.RATES * plan.SEEDS * len(plan.TASKS)
    assert runs == 7 * 5 * 7 * 3 * 8


def test_every_size_is_measured_once(plan):
    points = json.loads(plan.FILE.read_text(encoding="utf-8"))["points"]
    keys = [json.dumps({k: v for k, v in p.items() if k != "seconds"}) for p in points]
    assert len(set(keys)) == len(keys)
    assert all(0 < point["seconds"] < 600 for point in points)


def test_the_page_is_what_the_measurements_give(plan, tmp_path):
    page = tmp_path / "README.md"
    settings = {"core_dollars": 0.04, "scatter": 0.2}
    plan.main(measurements=plan.FILE, out=page, **settings)
    assert page.read_text() == (CAPACITY / "README.md").read_text()
