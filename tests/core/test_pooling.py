"""Results pooled: their effects and verdicts over seeds, and what is not pooled."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import false_discovery_control

import patchbench as pb
from patchbench.results import Result
from tests.core.rows import PROVENANCE, make_rows

STORED = {
    "L0.block_input@key": 1.0,
    "L0.block_input@value": 0.0,
    "L1.block_input@key": 0.0,
    "L1.block_input@value": 0.9,
    "L1.block_input@query": 0.0,
}
VALUE = "L1.block_input@value"
FETCHED = STORED | {"L1.block_input@value": 0.0, "L1.block_input@query": 1.0}


def one(
    seed: int,
    effects=STORED,
    *,
    config=None,
    grammar=None,
    trained=True,
    asked=None,
    name=None,
    task_seed=None,
    **rows,
):
    items = rows.get("n", 60)
    model = PROVENANCE["model"] | {
        "name": name or f"runs/{seed}",
        "num_layers": 2,
        "components": ["block_input"],
    }
    settings = {"num_pairs": 4} | ({} if grammar is None else {"grammar_seed": grammar})
    provenance = PROVENANCE | {
        "model": model,
        "task": PROVENANCE["task"]
        | {
            "seed": seed if task_seed is None else task_seed,
            "config": settings | (config or {}),
        },
        "dataset": {
            "rows": items,
            "sha256": f"digest {seed if task_seed is None else task_seed} {grammar} {items}",
        },
    }
    if trained:
        provenance["training"] = {"model": {"width": 8}, "training": {"seed": seed, "lr": 0.1}}
    asked = {"seed": 0, "resamples": 300, "components": ["block_input"], "split": "test"} | (
        asked or {}
    )
    table = make_rows(effects, **({"n": 60, "right": 56} | rows))
    return Result.from_rows(table, config=asked, provenance=provenance)


def test_effects_are_of_equal_seeds_and_the_verdicts_are_counted():
    third = STORED | {"L1.block_input@value": 0.6}
    pooled = pb.pool([one(0), one(1), one(2, third)])
    found = pooled.attrib("L1.block_input@value")
    assert found.value == pytest.approx((0.9 + 0.9 + 0.6) / 3)
    assert found.low < 0.6
    assert found.n == 180
    assert (pooled.label, pooled.agreement.value, pooled.agreement.n) == ("induction", 1.0, 3)
    assert pooled.accuracy.value == pytest.approx(56 / 60)
    run = pooled.summary["runs"][0]
    each = next(e["each"] for e in run["effects"] if e["site"] == "L1.block_input@value")
    assert list(each.values()) == pytest.approx([0.9, 0.9, 0.6])
    assert json.loads(json.dumps(pooled.summary, allow_nan=False)) == pooled.summary


def test_the_false_discovery_rate_is_over_all_sites_that_are_shared():
    extra = {"L1.block_input@value+1": 0.5}
    seeds = [one(0), one(1, STORED | extra), one(2, STORED | {"L1.block_input@key": 0.1})]
    (run,) = pb.pool(seeds).summary["runs"]
    assert (run["family"], run["false_discoveries"]) == (5, 0.05)
    p, q = ({e["site"]: e[f"{name}_value"] for e in run["effects"]} for name in "pq")
    assert q == dict(zip(p, false_discovery_control(list(p.values())), strict=True))
    assert q["L1.block_input@value"] < 0.05
    assert q["L1.block_input@query"] == 1.0
    # One seed of three has it: nothing that holds over seeds.
    assert q["L1.block_input@key"] > 0.05


def test_who_is_below_the_gate_counts_for_the_verdict_and_not_for_the_effects():
    pooled = pb.pool({"a": one(0), "b": one(1, FETCHED), "c": one(2, right=3)})
    assert pooled.summary["runs"][0]["above_gate"] == ["a", "b"]
    assert pooled.attrib("L1.block_input@value").value == pytest.approx(0.45)
    labels = pooled.summary["verdict"]["labels"]
    assert labels == {"induction": 1, "direct retrieval, early": 1, "not solved": 1}
    assert pooled.agreement.value == pytest.approx(1 / 3)
    assert pooled.accuracy.value == pytest.approx((56 + 56 + 3) / 180)


def test_grammars_are_a_level_below_seeds():
    runs = [one(seed, grammar=grammar) for seed in (0, 1) for grammar in (5, 6)]
    pooled = pb.pool(runs)
    assert (pooled.summary["seeds"], pooled.summary["grammars"]) == (2, 2)
    assert {unit.grammar for unit in pooled.units.values()} == {"5", "6"}


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ([one(0)], "1 Result to pool"),
        ([one(0), one(0)], "are of one seed, on the same examples"),
        ([one(0), one(0, name="a later checkpoint")], "are of one seed, on the same examples"),
        (
            [one(0, task_seed=7), one(1, task_seed=7, n=20, right=20)],
            "60 and 20 items of one dataset: evaluate both on as many",
        ),
        ([one(0), one(1, config={"num_pairs": 8})], r"task.num_pairs: 4 → 8"),
        ([one(0), one(1, asked={"split": "dev"})], r"evaluation.split: test → dev"),
        ([one(0), one(1, asked={"corruptions": ["swap"]})], r"evaluation.corruptions: None →"),
        ([one(0), one(1, {"L0.block_input@query": 1.0})], "no site in common"),
    ],
    ids=[
        "one",
        "twice",
        "twice by other names",
        "parts of one dataset",
        "task",
        "split",
        "corruption",
        "sites",
    ],
)
def test_what_is_not_one_experiment_is_refused(results, message):
    with pytest.raises(pb.UserError, match=message):
        pb.pool(results)


def test_a_grammar_is_the_tasks_seed_where_it_has_none_of_its_own():
    runs = [one(seed, config={"grammar_seed": None}) for seed in (3, 4)]
    assert {unit.grammar for unit in pb.pool(runs).units.values()} == {"3", "4"}


@pytest.mark.parametrize(("twins", "primary"), [(True, "logit_diff"), (False, "p")])
def test_the_logit_difference_comes_first_where_all_have_it(twins, primary):
    pooled = pb.pool([one(0, twins=twins), one(1, STORED | {VALUE: 0.7}, twins=twins)])
    (run,) = pooled.summary["runs"]
    assert run["primary"] == primary
    effect = next(e for e in run["effects"] if e["site"] == VALUE)
    assert ("attrib_logit_diff" in effect) == twins
    assert list(effect["each"].values()) == pytest.approx([0.9, 0.7])
    assert pooled.attrib(VALUE, metric=primary).value == pytest.approx(0.8)


def test_an_accuracy_is_between_0_and_1_and_of_each_example_once():
    pooled = pb.pool([one(0, right=60), one(1, right=44)])
    assert pooled.accuracy.value == pytest.approx(104 / 120)
    assert pooled.accuracy.low >= 0
    assert pooled.accuracy.high == 1.0
    shuffled = []
    for seed, right in ((0, 60), (1, 44)):
        result = one(seed, right=right)
        order = np.random.default_rng(seed).permutation(len(result.rows))
        shuffled.append(replace(result, rows=result.rows.take(order)))
    assert pb.pool(shuffled).accuracy == pooled.accuracy


def test_runs_of_two_examples_pool_to_no_interval():
    runs = [one(seed, n=2, right=2) for seed in range(2)]
    pooled = pb.pool(runs)
    assert (pooled.accuracy.low, pooled.accuracy.high, pooled.accuracy.n) == (0.0, 1.0, 4)
    assert pooled.summary["runs"][0]["effects"] == []
    assert json.dumps(pooled.summary, allow_nan=False)


def test_runs_of_different_numbers_of_examples_weigh_alike():
    pooled = pb.pool([one(0, n=60), one(1, STORED | {VALUE: 0.5}, n=20, right=20)])
    assert pooled.attrib(VALUE).value == pytest.approx(0.7)
    assert pooled.attrib(VALUE).n == 80


def test_without_a_recorded_training_each_model_is_a_seed():
    pooled = pb.pool([one(0, trained=False), one(1, trained=False)])
    assert pooled.summary["seeds"] == 2


def test_the_command_prints_the_agreement_in_80_columns(tmp_path, monkeypatch, capsys):
    from patchbench import cli

    for seed in range(3):
        one(seed).save(tmp_path / f"s{seed}")

    def run(*more: str) -> str:
        monkeypatch.setattr("sys.argv", ["patchbench", "pool", f"{tmp_path}/s*", *more])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        assert not stopped.value.code
        return capsys.readouterr().out

    text = run()
    assert "verdict  induction in 3 of 3 seeds, agreement 1.000 [0.439, 1.000]" in text
    assert "pooled Attrib of block_input" in text
    assert "2 of 5 sites differ from 0 (false discovery rate 5%)" in text
    assert max(map(len, text.splitlines())) <= 80
    summary = json.loads(run("--json"))
    assert summary["verdict"]["count"] == 3
