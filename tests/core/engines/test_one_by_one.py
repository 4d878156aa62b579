"""The plain engines against hooks written by hand, and against themselves where batches differ."""

from dataclasses import replace

import numpy as np
import pyarrow.compute as pc
import pytest
import torch

import patchbench as pb
from patchbench.adapters.loading import LoadedModel
from patchbench.common import UserError
from patchbench.effects import ROW_SCHEMA
from patchbench.engines import ENGINES
from patchbench.engines.pyvene import PyveneEngine
from patchbench.interventions import Intervention
from patchbench.sites import Site
from tests.core.batches import PATHS, module_of, patched_logits, random_batch
from tests.tiny_models import tiny

POSITIONS = ("key", "value+1", "query")
COMPONENTS = ("block_input", "block_output", "mixer_input", "mixer_output", "mlp_output")
PAIRS = [
    pytest.param(family, component, id=f"{family}-{component}")
    for family in PATHS
    for component in COMPONENTS
    if not (component == "mlp_output" and "mamba" in family)
]


def plan(*sites: str, **settings) -> list[Intervention]:
    return [Intervention(sites=(Site.parse(site),), corruption="key", **settings) for site in sites]


@pytest.fixture(params=["pyvene", "nnsight"])
def run(request):
    def run_engine(model, interventions, batch, **settings):
        loaded = model if isinstance(model, LoadedModel) else pb.load_model(model)
        engine = ENGINES[request.param](**settings)
        return engine.run(loaded, interventions, batch), engine

    return run_engine


@pytest.mark.parametrize(("family", "component"), PAIRS)
def test_engine_equals_hooks_by_hand(run, family, component):
    model, batch = tiny(family), random_batch()
    sites = [f"L{layer}.{component}@{place}" for layer in (0, 1) for place in POSITIONS]
    rows, _ = run(model, plan(*sites), batch)
    assert len(rows) == len(sites) * len(batch)
    for row in rows.to_pylist():
        number = row["example"] - 100
        at = int(batch.positions[row["role"]][number]) + row["offset"]
        module, io = module_of(model, family, row["layer"], component)
        clean, corrupted = batch.clean[number], batch.corrupted["key"][number]
        logits = patched_logits(model, module, io, corrupted, clean, at)[-2].double()
        answer, other = batch.answer[number], batch.counterfactual["key"][number]
        assert row["p_patched"] == pytest.approx(float(logits.softmax(-1)[answer]), abs=1e-6)
        assert row["logit_patched"] == pytest.approx(float(logits[answer]), abs=2e-5)
        with torch.no_grad():
            source = model(torch.tensor(clean[None])).logits[0, -2].double().log_softmax(-1)
        kl = float((source.exp() * (source - logits.log_softmax(-1))).sum())  # KL(source ‖ patched)
        assert row["kl_patched"] == pytest.approx(kl, abs=1e-5)
        if other >= 0:
            difference = float(logits[answer] - logits[other])
            assert row["logit_diff_patched"] == pytest.approx(difference, abs=4e-5)
        else:
            assert row["logit_diff_patched"] is None


@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_base_and_source_runs_are_the_plain_model(run, direction):
    model, batch = tiny("gpt2"), random_batch()
    rows, _ = run(model, plan("L1.block_input@value", direction=direction), batch)
    with torch.no_grad():
        log_p = {
            name: model(torch.tensor(tokens)).logits[:, -2].double().log_softmax(-1)
            for name, tokens in (("clean", batch.clean), ("corrupted", batch.corrupted["key"]))
        }
    base, source = ("corrupted", "clean") if direction == "denoise" else ("clean", "corrupted")
    index = np.arange(len(batch))
    for run_name, column in ((base, "logp_base"), (source, "logp_source")):
        truth = log_p[run_name][index, batch.answer].numpy()
        np.testing.assert_allclose(rows[column].to_numpy(), truth, atol=1e-5)
    kl = (log_p[source].exp() * (log_p[source] - log_p[base])).sum(-1)
    np.testing.assert_allclose(rows["kl_base"].to_numpy(), kl, atol=1e-5)
    right = log_p["clean"].argmax(-1).numpy() == batch.answer
    assert rows["correct"].to_pylist() == right.tolist()
    other = batch.candidates[:, 1]
    better = log_p["clean"][index, batch.answer] > log_p["clean"][index, other]
    assert rows["correct_in_context"].to_pylist() == better.tolist()


@pytest.mark.parametrize("family", ["gpt2", "mamba"])
@pytest.mark.parametrize(("size", "length"), [(8, 12), (10, 10), (32, 12), (8, 32)])
def test_rows_do_not_depend_on_the_batch(run, family, size, length):
    """Also where the batch is as large as the documents are long, or as the model is wide."""
    loaded = pb.load_model(tiny(family, width=32))
    batch = random_batch(size=size, length=length)
    interventions = plan("L0.mixer_output@value", "L1.block_input@key", "L1.block_output@query")
    together, _ = run(loaded, interventions, batch)
    found = {(row["site"], row["example"]): row["p_patched"] for row in together.to_pylist()}
    assert len(found) == len(interventions) * size
    for number in range(0, size, max(1, size // 4)):
        alone, _ = run(loaded, interventions, batch.select(slice(number, number + 1)))
        for row in alone.to_pylist():
            expected = found[row["site"], row["example"]]
            assert row["p_patched"] == pytest.approx(expected, abs=1e-6)


def test_equal_length_rows_may_be_read_out_at_different_positions(run):
    model, batch = tiny("gpt2"), random_batch()
    moved = np.array([9, 8, 9, 7])
    batch = replace(
        batch,
        positions={**batch.positions, "answer": moved},
        answer=batch.clean[np.arange(4), moved],
    )
    rows, _ = run(model, plan("L1.block_input@key"), batch)
    with torch.no_grad():
        logits = model(torch.tensor(batch.clean)).logits.double()
    truth = logits.softmax(-1)[np.arange(4), moved - 1, batch.answer]
    np.testing.assert_allclose(rows["p_source"].to_numpy(), truth, atol=1e-6)


def test_logits_are_computed_at_the_read_out_only_and_are_equal(run):
    model, batch = tiny("llama"), random_batch()
    seen = []
    handle = model.lm_head.register_forward_hook(lambda _, args, __: seen.append(args[0].shape))
    few, _ = run(model, plan("L1.block_input@key"), batch)
    handle.remove()
    assert {shape[1] for shape in seen[-3:]} == {1}
    whole = tiny("llama")
    forward = whole.forward
    # A family that always computes all logits.
    whole.forward = lambda input_ids, use_cache=None: forward(input_ids, use_cache=use_cache)
    every, _ = run(whole, plan("L1.block_input@key"), batch)
    for column in ("p_patched", "logit_patched", "kl_patched"):
        np.testing.assert_allclose(few[column].to_numpy(), every[column].to_numpy(), atol=1e-5)


def test_sites_of_one_intervention_are_patched_together(run):
    """Layer 0's input at every position is the source run; at some positions it is not."""
    model, batch = tiny("gpt2"), random_batch()
    sites = ("key", "value", "value+1", "query")
    joint = Intervention(
        sites=tuple(Site.parse(f"L0.block_input@{site}") for site in sites), corruption="key"
    )
    rows, _ = run(model, [joint, *plan("L0.block_input@value")], batch)
    both = rows.filter(pc.field("site") == joint.label)
    np.testing.assert_allclose(both["p_patched"].to_numpy(), both["p_source"].to_numpy(), atol=1e-6)
    np.testing.assert_allclose(both["kl_patched"].to_numpy(), 0, atol=1e-9)
    alone = rows.filter(pc.field("site") == "L0.block_input@value")
    np.testing.assert_allclose(alone["p_patched"].to_numpy(), alone["p_base"].to_numpy(), atol=1e-6)
    assert np.abs(alone["p_source"].to_numpy() - alone["p_base"].to_numpy()).max() > 1e-3


@pytest.mark.parametrize("direction", ["denoise", "noise"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "mamba"])
def test_an_identity_patch_changes_nothing_at_all(run, family, direction):
    interventions = plan(
        "L0.mixer_output@value", "embed@key", source="self", control="identity", direction=direction
    )
    rows, _ = run(tiny(family), interventions, random_batch())
    assert rows["p_patched"].to_pylist() == rows["p_base"].to_pylist()
    assert rows["control"].to_pylist() == ["identity"] * 8


def test_a_head_is_its_slice_of_the_features(run):
    from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM

    torch.manual_seed(0)
    config = MixerLMConfig.preset(
        "attention", width=32, layers=2, vocab_size=64, num_heads=4, initializer_range=0.3
    )
    model, batch = MixerLMForCausalLM(config).eval(), random_batch()
    loaded = pb.load_model(model)
    point = loaded.hook_map.point(1, "v")
    width = 32 // 4
    rows, _ = run(loaded, plan("L1.v[2]@key", "L1.v@key"), batch)
    module = model.get_submodule(point.path)
    effects = {}
    for site in ("L1.v[2]@key", "L1.v@key"):
        part = rows.filter(pc.field("site") == site)
        effects[site] = part["p_patched"].to_numpy()
    for number in range(len(batch)):
        at = int(batch.positions["key"][number])
        kept = {}
        handle = module.register_forward_hook(
            lambda _, __, output, kept=kept: kept.update(value=output.clone())
        )
        with torch.no_grad():
            model(torch.tensor(batch.clean[number][None]))
        handle.remove()

        def swap(_, __, output, kept=kept, at=at):
            patched = output.clone()
            patched[:, at, 2 * width : 3 * width] = kept["value"][:, at, 2 * width : 3 * width]
            return patched

        handle = module.register_forward_hook(swap)
        with torch.no_grad():
            logits = model(torch.tensor(batch.corrupted["key"][number][None])).logits[0, -2]
        handle.remove()
        truth = float(logits.double().softmax(-1)[batch.answer[number]])
        assert effects["L1.v[2]@key"][number] == pytest.approx(truth, abs=1e-6)
    assert np.abs(effects["L1.v[2]@key"] - effects["L1.v@key"]).max() > 1e-5


@pytest.mark.parametrize(
    ("site", "says"),
    [
        ("L1.block_inptu@key", "block_input"),
        ("L2.block_input@key", "layers 0–1"),
        ("L1.block_input@vlaue", "value"),
        ("L1.block_input[0]@key", "no heads"),
    ],
)
def test_a_site_that_does_not_exist_is_refused(run, site, says):
    with pytest.raises(UserError, match=says):
        run(tiny("gpt2"), plan(site), random_batch())


def test_an_example_without_the_position_gets_no_row_and_is_counted(run):
    """Neither wrapped around nor clipped; the other rows are as without it."""
    batch = random_batch()
    key = batch.positions["key"].copy()
    key[1] = -1
    lacking = replace(batch, positions={**batch.positions, "key": key})
    loaded = pb.load_model(tiny("gpt2"))
    sites = plan("L1.block_input@key", "L1.block_input@query+2", "L1.block_input@bos-1")
    rows, engine = run(loaded, sites, lacking)
    full, _ = run(loaded, sites[:1], batch)
    assert rows["example"].to_pylist() == [100, 102, 103]
    kept = full.filter(pc.field("example") != 101)
    np.testing.assert_allclose(
        rows["p_patched"].to_numpy(), kept["p_patched"].to_numpy(), atol=1e-6
    )
    assert engine.counters.skipped == {
        "L1.block_input@key (key)": 1,
        "L1.block_input@query+2 (key)": 4,
        "L1.block_input@bos-1 (key)": 4,
    }


def test_an_example_without_the_corruption_gets_no_row(run):
    batch = random_batch()
    batch = replace(batch, available={"key": np.array([True, False, True, True])})
    rows, engine = run(tiny("gpt2"), plan("L1.block_input@key"), batch)
    assert rows["example"].to_pylist() == [100, 102, 103]
    assert sum(engine.counters.skipped.values()) == 1


def test_each_run_goes_through_the_model_once(run):
    batch = random_batch()
    interventions = [
        *plan("L0.block_input@key", "L1.block_input@key", "L1.mixer_output@value"),
        *plan("L0.block_input@key", "L1.mixer_output@query", direction="noise"),
    ]
    rows, engine = run(tiny("gpt2"), interventions, batch)
    assert engine.counters.forwards == 2 + len(interventions)  # clean and corrupted, then each
    assert engine.counters.forward_rows == engine.counters.forwards * len(batch)
    assert rows.schema.equals(ROW_SCHEMA)


def test_a_small_cache_costs_forwards_and_changes_no_row(run):
    batch = random_batch()
    interventions = plan(*(f"L{n}.{c}@{p}" for n in (0, 1) for c in COMPONENTS for p in POSITIONS))
    pair = Intervention(sites=tuple(i.sites[0] for i in interventions[:9]), corruption="key")
    interventions.append(pair)
    order = [("site", "ascending"), ("example", "ascending")]
    large, _ = run(tiny("gpt2"), interventions, batch)
    small, engine = run(tiny("gpt2"), interventions, batch, cache_bytes=4 * 32 * 4 * 3)
    assert engine.counters.forwards > len(interventions) + 2
    assert small.sort_by(order).equals(large.sort_by(order))


def test_out_of_memory_halves_the_batch_and_says_so(run):
    model, batch = tiny("gpt2"), random_batch(size=8)
    forward = model.forward

    def narrow(input_ids, logits_to_keep=0, use_cache=None):
        if len(input_ids) > 3:
            raise torch.OutOfMemoryError
        return forward(input_ids, logits_to_keep=logits_to_keep, use_cache=use_cache)

    loaded = pb.load_model(model)
    expected, _ = run(loaded, plan("L1.block_input@key"), batch)
    model.forward = narrow
    rows, engine = run(loaded, plan("L1.block_input@key"), batch)
    assert rows["example"].to_pylist() == expected["example"].to_pylist()
    np.testing.assert_allclose(
        rows["p_patched"].to_numpy(), expected["p_patched"].to_numpy(), atol=1e-6
    )
    assert any("halved" in note for note in engine.counters.notes)


def test_nan_predictions_are_an_error(run):
    model = tiny("gpt2")
    loaded = pb.load_model(model)
    with torch.no_grad():
        model.transformer.wte.weight[int(random_batch().clean[0, 0])] = torch.nan
    with pytest.raises(UserError, match="NaN"):
        run(loaded, plan("L1.block_input@key"), random_batch())


def test_engines_are_found_by_name():
    assert isinstance(ENGINES["pyvene"](), PyveneEngine)
    with pytest.raises(UserError, match="pyvene"):
        ENGINES["pyven"]
