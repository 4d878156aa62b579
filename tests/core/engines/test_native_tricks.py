"""What the native engine leaves out changes no row, and it leaves nothing behind."""

from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import patchbench as pb
from patchbench import soft_controls
from patchbench.common import UserError
from patchbench.engines import ENGINES
from patchbench.engines.native.selfcheck import TRICKS
from patchbench.interventions import Intervention
from patchbench.sites import Position, Site
from tests.adapters.lively import VOCAB
from tests.core.batches import random_batch, unrelated
from tests.core.native_runs import MODELS, assert_equal, cut_everywhere, loaded, plan
from tests.tiny_models import tiny

SUBSETS = [subset for size in range(4) for subset in combinations(TRICKS, size)]


@st.composite
def runs(draw):
    """A model, tricks and a cache, interventions at one or several sites, and any documents."""
    name = draw(st.sampled_from(sorted(MODELS)))
    points = sorted(loaded(name).hook_map.points, key=str)
    heads = {key: point.heads for key, point in loaded(name).hook_map.points.items()}
    roles = ("bos", "key", "value", "query", "answer")

    def site():
        layer, component = draw(st.sampled_from(points))
        count = heads[layer, component]
        head = draw(st.integers(0, count - 1)) if count and draw(st.booleans()) else None
        position = Position(draw(st.sampled_from(roles)), draw(st.integers(-1, 1)))
        return Site(layer, component, position, head)

    interventions = []
    for _ in range(draw(st.integers(1, 6))):
        sites = tuple({site() for _ in range(draw(st.integers(1, 3)))})
        donors = None
        if draw(st.booleans()):
            donors = tuple(
                replace(s, position=Position(draw(st.sampled_from(roles)))) for s in sites
            )
        intervention = Intervention(
            sites=sites,
            source_sites=donors,
            corruption="key",
            direction=draw(st.sampled_from(("denoise", "noise"))),
            source=draw(st.sampled_from(("counterpart", "self"))),
        )
        if draw(st.integers(0, 3)) == 0:
            intervention = soft_controls.from_another(replace(intervention, source="counterpart"))
        interventions.append(intervention)
    size, length = draw(st.integers(1, 5)), draw(st.integers(8, 13))
    batch = random_batch(size=size, length=length, vocab=VOCAB, seed=draw(st.integers(0, 9)))
    if draw(st.booleans()):
        batch = unrelated(batch, VOCAB)
    if draw(st.booleans()):
        early = np.array(draw(st.lists(st.integers(6, length - 1), min_size=size, max_size=size)))
        positions = {**batch.positions, "query": early - 1, "answer": early}
        batch = replace(batch, positions=positions, answer=batch.clean[np.arange(size), early])
    if draw(st.booleans()):
        has = draw(st.lists(st.booleans(), min_size=size, max_size=size))
        batch = replace(batch, available={"key": np.array(has)})
    (batch,) = soft_controls.prepare([batch])
    settings = {
        "tricks": draw(st.sampled_from(SUBSETS)),
        "cache_bytes": draw(st.sampled_from((2**30, 20_000, 2_000))),
    }
    return name, settings, interventions, batch, draw(st.booleans())


@settings(max_examples=25, deadline=None, derandomize=True)
@given(runs())
def test_native_equals_pyvene_under_every_combination_of_tricks(run):
    name, how, interventions, batch, cut = run
    expected = ENGINES["pyvene"]().run(loaded(name), interventions, batch)
    engine = ENGINES["native"](**how)
    with cut_everywhere() if cut else nullcontext():
        assert_equal(engine.run(loaded(name), interventions, batch), expected)
    assert not any("switched off" in note for note in engine.counters.notes)


@pytest.mark.parametrize("tricks", SUBSETS, ids=lambda tricks: "+".join(tricks) or "none")
@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_each_combination_on_a_grid(name, tricks):
    batch = random_batch(size=4, vocab=VOCAB)
    components = [key for key in loaded(name).hook_map.points if key[1] != "ssm_write"]
    sites = [Site(*key, Position(role)) for key in components for role in ("key", "query")]
    interventions = [Intervention(sites=(site,), corruption="key") for site in sites]
    expected = ENGINES["pyvene"]().run(loaded(name), interventions, batch)
    assert_equal(ENGINES["native"](tricks=tricks).run(loaded(name), interventions, batch), expected)


@pytest.mark.parametrize(("size", "length"), [(10, 10), (16, 12), (8, 16), (1, 9)])
def test_batches_as_large_as_documents_are_long_or_models_wide(size, length):
    batch = random_batch(size=size, length=length, vocab=VOCAB)
    for name in ("attention", "mamba"):
        interventions = plan("L0.mixer_output@value", "L1.block_input@key", "L1.gate@query")
        interventions = interventions[: 3 if name == "mamba" else 2]
        expected = ENGINES["pyvene"]().run(loaded(name), interventions, batch)
        assert_equal(ENGINES["native"]().run(loaded(name), interventions, batch), expected)


@pytest.mark.parametrize("name", ["gpt2", "attention", "mamba", "based"])
def test_a_prompt_of_one_token(name):
    batch = random_batch(size=3, length=10, vocab=VOCAB)
    short = replace(
        batch,
        clean=batch.clean[:, :2],
        corrupted={"key": (batch.clean[:, :2] + 1) % VOCAB},
        positions={"key": np.zeros(3, int), "answer": np.ones(3, int)},
    )
    interventions = plan("embed@key", "L0.mixer_output@key", "L1.block_input@answer")
    expected = ENGINES["pyvene"]().run(loaded(name), interventions, short)
    assert_equal(ENGINES["native"]().run(loaded(name), interventions, short), expected)


@pytest.mark.parametrize("name", ["gpt2", "attention", "mamba"])
def test_half_precision_within_its_rounding(name):
    """Logits of size 1–10 in bfloat16 are rounded to 2⁻⁸ of themselves in each operation."""
    model = pb.load_model(MODELS[name]().to(torch.bfloat16), dtype="auto")
    batch = random_batch(size=4, vocab=VOCAB)
    interventions = plan("embed@key", "L0.mixer_output@value", "L1.block_input@query")
    expected = ENGINES["pyvene"]().run(model, interventions, batch)
    rows = ENGINES["native"]().run(model, interventions, batch)
    for column in ("p_patched", "p_base"):
        np.testing.assert_allclose(rows[column].to_numpy(), expected[column].to_numpy(), atol=2e-2)


def hooks_of(model) -> list:
    return [
        (
            dict(module._forward_hooks),
            dict(module._forward_pre_hooks),
            module.__dict__.get("forward"),
        )
        for module in model.modules()
    ]


def test_hooks_of_others_stay_and_see_what_they_would_see():
    """Also one that changes what a block gives, even when the block does not run."""
    model = tiny("llama", vocab=VOCAB, layers=3)
    source = pb.load_model(model)
    seen = []
    model.model.layers[0].register_forward_hook(lambda m, a, output: output + 0.5)
    model.model.norm.register_forward_hook(lambda m, a, output: seen.append(len(output)))
    before = hooks_of(model)
    batch = random_batch(size=3, vocab=VOCAB)
    interventions = plan("L0.block_output@key", "L1.block_input@value", "L2.mixer_output@query")
    rows = ENGINES["native"]().run(source, interventions, batch)
    assert hooks_of(model) == before
    assert seen
    assert_equal(rows, ENGINES["pyvene"]().run(source, interventions, batch))


def test_an_exception_in_mid_sweep_leaves_nothing_behind():
    model = tiny("gpt2", vocab=VOCAB)
    source, batch = pb.load_model(model), random_batch(size=3, vocab=VOCAB)
    model.train()
    before, calls = hooks_of(model), []

    def fail(module, args):
        calls.append(1)
        if len(calls) == fail.at:
            raise ValueError("in mid-sweep")

    interventions = plan("L0.block_output@key", "L1.block_input@value", "L1.mixer_output@query")
    for fail.at in range(1, 9):
        calls.clear()
        handle = model.transformer.ln_f.register_forward_pre_hook(fail)
        # In the self-check a failure switches the trick off; elsewhere it is the user's to know.
        with suppress(UserError):
            ENGINES["native"]().run(source, interventions, batch)
        handle.remove()
        assert len(calls) >= fail.at
        assert hooks_of(model) == before
        assert model.training
        assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_site_that_does_not_fire_once_is_an_error():
    model = tiny("llama", vocab=VOCAB)
    source = pb.load_model(model)
    layer = model.model.layers[1]
    bypassed = layer.mlp.forward
    layer.mlp.__class__ = type(
        "Bypass", (type(layer.mlp),), {"__call__": lambda self, x: bypassed(x)}
    )
    with pytest.raises(UserError, match="fired 0 times"):
        ENGINES["native"]().run(source, plan("L1.mlp_output@key"), random_batch(vocab=VOCAB))


def test_a_model_that_looks_past_its_blocks_is_found_out():
    """The last block's input is not all that the model reads: resuming would be wrong."""
    model = tiny("gpt2", vocab=VOCAB)
    kept = {}
    first, norm = model.transformer.h[0], model.transformer.ln_f
    inner = first.attn.forward

    def keep(*args, **kwargs):
        output = inner(*args, **kwargs)
        kept["value"] = output[0]
        return output

    first.attn.forward = keep
    plain = norm.forward
    norm.forward = lambda x: plain(x + kept["value"][: len(x), -x.shape[1] :])
    source, batch = pb.load_model(model), random_batch(size=4, vocab=VOCAB)
    interventions = plan("L0.block_input@key", "L1.block_input@key", "L1.mlp_output@value")
    expected = ENGINES["pyvene"]().run(source, interventions, batch)
    engine = ENGINES["native"]()
    assert_equal(engine.run(source, interventions, batch), expected)
    assert any("patched layer" in note for note in engine.counters.notes)


def test_shared_blocks_are_found_out():
    model = tiny("llama", vocab=VOCAB, layers=3)
    model.model.layers[2] = model.model.layers[1]
    from patchbench.adapters.hook_map import hook_map_for
    from patchbench.adapters.loading import LoadedModel

    source = LoadedModel(model=model, tokenizer=None, hook_map=hook_map_for(model), name="shared")
    batch = random_batch(size=3, vocab=VOCAB)
    engine = ENGINES["native"]()
    rows = engine.run(source, plan("L0.mixer_output@key"), batch)
    notes = " ".join(engine.counters.notes)
    assert "share" in notes
    assert "keeping its past" in notes
    assert_equal(rows, ENGINES["pyvene"]().run(source, plan("L0.mixer_output@key"), batch))


@pytest.mark.parametrize("fills", [False, True], ids=["takes no cache", "fills it, and no more"])
def test_a_model_that_ignores_its_cache_is_found_out(fills):
    model = tiny("gpt2", vocab=VOCAB)
    inner = model.transformer.forward

    def forward(*args, **kwargs):
        for name in ("cache", "past_key_values"):
            if (cache := kwargs.get(name)) is not None and (cache.get_seq_length() or not fills):
                kwargs |= {name: None, "use_cache": False}
        return inner(*args, **kwargs)

    model.transformer.forward = forward
    batch, source = random_batch(size=4, vocab=VOCAB), pb.load_model(model)
    interventions = plan("L0.mixer_output@key", "L1.block_input@query", "L1.mlp_output@value")
    engine = ENGINES["native"]()
    with cut_everywhere():
        rows = engine.run(source, interventions, batch)
    assert any("resuming at the patched position" in note for note in engine.counters.notes)
    assert_equal(rows, ENGINES["pyvene"]().run(source, interventions, batch))


def test_attention_that_looks_back_a_little_is_not_cut():
    model = tiny("mistral", vocab=VOCAB)
    model.config.sliding_window = 4
    batch = random_batch(size=3, vocab=VOCAB)
    interventions = plan("L0.mixer_output@key", "L1.block_input@query")
    engine, source = ENGINES["native"](), pb.load_model(model)
    rows = engine.run(source, interventions, batch)
    assert any("looks back 4 tokens" in note for note in engine.counters.notes)
    assert_equal(rows, ENGINES["pyvene"]().run(source, interventions, batch))


def test_a_small_cache_costs_forwards_and_changes_no_row():
    batch = random_batch(size=4, vocab=VOCAB)
    interventions = [
        Intervention(sites=(Site(*key, Position(role)),), corruption="key")
        for key in loaded("llama").hook_map.points
        for role in ("key", "value", "query")
    ]
    large, small = ENGINES["native"](), ENGINES["native"](cache_bytes=4000)
    expected = large.run(loaded("llama"), interventions, batch)
    assert_equal(small.run(loaded("llama"), interventions, batch), expected)
    assert small.counters.forwards > large.counters.forwards
    assert small.kept < large.kept


def test_out_of_memory_halves_the_patched_forwards_and_says_so():
    model = tiny("gpt2", vocab=VOCAB)
    source, batch = pb.load_model(model), random_batch(size=6, vocab=VOCAB)
    interventions = plan(*(f"L1.{c}@query" for c in ("block_input", "mixer_output", "mlp_output")))
    expected = ENGINES["native"]().run(source, interventions, batch)

    def narrow(module, args, kwargs):
        if len(kwargs["input_ids"]) > 6:
            raise torch.OutOfMemoryError

    handle = model.register_forward_pre_hook(narrow, with_kwargs=True)
    engine = ENGINES["native"]()
    assert_equal(engine.run(source, interventions, batch), expected)
    handle.remove()
    assert any("halved" in note for note in engine.counters.notes)
