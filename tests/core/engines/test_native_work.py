"""Which forwards the native engine makes of interventions: where they start, what they share."""

import json

import numpy as np
import pytest
import torch

import patchbench as pb
from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM
from patchbench.engines import ENGINES, make_batches
from patchbench.engines.native.batching import choose_cuts
from patchbench.engines.native.rounds import Sizes, donor_points, rounds
from patchbench.engines.native.schedule import Schedule
from patchbench.engines.native.selfcheck import TRICKS
from patchbench.engines.native.work import Work
from patchbench.interventions import Intervention
from patchbench.live_memory import LiveBytes
from patchbench.preparation import select_sites
from patchbench.sites import Site
from tests.adapters.lively import VOCAB
from tests.core.batches import random_batch, unrelated
from tests.core.native_runs import assert_equal, cut_everywhere, loaded, plan


def both(*sites: str) -> Intervention:
    return Intervention(sites=tuple(map(Site.parse, sites)), corruption="key")


TOGETHER = {
    "two positions": [both("L1.block_input@key", "L0.mixer_output@query")],
    "behind the read-out": plan("L0.mixer_output@answer"),
    "before and behind it": [both("L0.mixer_output@key", "L1.block_input@answer")],
    "both directions": [
        *plan("L1.block_input@key", "L0.mixer_output@query"),
        *plan("L1.block_input@key", "L0.mixer_output@query", direction="noise"),
    ],
}


@pytest.mark.parametrize("case", TOGETHER)
@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_documents_are_cut_before_all_that_matters(name, case):
    batch = unrelated(random_batch(size=5, vocab=VOCAB), VOCAB)
    expected = ENGINES["pyvene"]().run(loaded(name), TOGETHER[case], batch)
    engine = ENGINES["native"]()
    with cut_everywhere():
        assert_equal(engine.run(loaded(name), TOGETHER[case], batch), expected)
    assert not engine.counters.notes


def test_dear_values_are_computed_for_the_rows_that_need_them():
    """Looking at what the state takes in makes the whole forward leave the fast path."""
    batch = random_batch(size=3, vocab=VOCAB)
    interventions = plan(*(f"L1.{c}@{p}" for c in ("ssm_write", "gate") for p in ("key", "query")))
    work = Work(
        interventions,
        {item: batch.usable(item) for item in interventions},
        batch,
        loaded("mamba").hook_map,
    )
    groups = Schedule(work, batch, layers={1}, cuts=np.zeros(1, int)).groups(
        np.arange(len(work)), set(TRICKS)
    )
    slow = [{bool(work.slow[number]) for number in work.number[g.items]} for g in groups]
    assert slow == [{True}, {False}]


def test_what_a_round_keeps_fits_even_if_it_was_kept_before():
    """Two donors in turns, of which one fits at a time."""
    batch = random_batch(size=3, vocab=VOCAB)
    donors = ("L0.block_output@key", "L0.block_output@value") * 2
    targets = ("L1.block_input@bos", "L1.block_input@key", "L1.block_input@value", "embed@key")
    interventions = [
        Intervention(
            sites=(Site.parse(target),), source_sites=(Site.parse(donor),), corruption="key"
        )
        for donor, target in zip(donors, targets, strict=True)
    ]
    model, sizes = loaded("llama"), Sizes()
    points = [point for item in interventions for point in donor_points(model, item)]
    assert sizes.learn(model, points, batch) == 1
    each = len(batch) * model.model.config.hidden_size * 4
    found = {
        budget: [len(part) for part in rounds(interventions, model, batch, sizes, budget)]
        for budget in (each - 1, each, 2 * each)
    }
    assert found == {each - 1: [1, 1, 1, 1], each: [1, 1, 1, 1], 2 * each: [4]}


def test_an_engine_that_goes_on_for_another_does_as_that_would_have():
    """What was checked is not checked again, and forwards keep the size that was found."""
    batches = [random_batch(size=3, vocab=VOCAB, seed=seed) for seed in range(2)]
    sites = (f"L{layer}.{c}@key" for layer in (0, 1) for c in ("block_input", "mlp_output"))
    interventions, model = plan(*sites), loaded("llama")
    whole, begun, resumed = (ENGINES["native"]() for _ in range(3))
    whole.run(model, interventions, batches[0])
    begun.run(model, interventions, batches[0])
    settled = begun.state(model)
    assert settled["tuners"][0]["speeds"]
    resumed.restore(model, json.loads(json.dumps(settled)))
    assert resumed.state(model) == settled
    before = whole.counters.forwards
    rows = whole.run(model, interventions, batches[1])
    assert resumed.run(model, interventions, batches[1]).equals(rows)
    looks = 1  # how large activations are, which is no matter of rounding
    assert resumed.counters.forwards == whole.counters.forwards - before + looks


@pytest.mark.parametrize("name", ["attention", "mamba"])
def test_tensors_of_a_sweep_fit_beside_one_and_a_half_plain_forwards(name):
    """Where the logits of a vocabulary are what is large."""
    config = MixerLMConfig.preset(name, width=64, layers=2, vocab_size=8196)
    model = pb.load_model(MixerLMForCausalLM(config).eval())
    (batch,) = make_batches(pb.load_task("ar").dataset("test", 32), 32, ["key"])
    inner = {"attention": ["q", "attn_weights"], "mamba": ["conv_output", "ssm_write"]}[name]
    sites = select_sites(model.hook_map, ["block_input", *inner], None, ("key", "query"))
    engine = ENGINES["native"]()
    with torch.no_grad(), LiveBytes() as plain:
        model.model(torch.as_tensor(batch.clean))
    with LiveBytes() as live:
        engine.run(model, [Intervention(sites=(s,), corruption="key") for s in sites], batch)
    assert live.peak < 1.5 * plain.peak + engine.kept
    assert live.peak > engine.kept > 2**18


def test_cuts_are_as_few_as_a_forward_is_dear():
    first = np.array([1] * 50 + [2] * 50 + [30] * 50)
    assert choose_cuts(first, 32, overhead=1e9).tolist() == [1]
    assert choose_cuts(first, 32, overhead=0).tolist() == [1, 2, 30]
    assert choose_cuts(first, 32, overhead=100).tolist() == [1, 30]
