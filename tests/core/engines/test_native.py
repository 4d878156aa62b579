"""The native engine against hooks written by hand, one document at a time, for every architecture.

The truth shares no code with the engine: `patched_logits` runs whole documents through modules
named here.
"""

import numpy as np
import pytest

import patchbench as pb
from patchbench.engines import ENGINES
from patchbench.interventions import Intervention
from patchbench.sites import Site
from tests.adapters.lively import EVERY_PRESET, VOCAB, lively
from tests.core.batches import PATHS, patched_logits, places_of, random_batch, unrelated
from tests.tiny_models import tiny

POSITIONS = ("key", "value", "value+1", "query", "answer")
OUTER = ("block_input", "block_output", "mixer_input", "mixer_output", "mlp_output")
# Families of transformers whose past is more than keys and values.
RECURRENT = ("mamba", "mamba2")


def plan(*sites: str, **settings) -> list[Intervention]:
    return [Intervention(sites=(Site.parse(site),), corruption="key", **settings) for site in sites]


def run(model, interventions, batch, **settings):
    engine = ENGINES["native"](**settings)
    return engine.run(pb.load_model(model), interventions, batch), engine


MODELS = [
    *(pytest.param(lambda n=name: lively(n), VOCAB, id=name) for name in EVERY_PRESET),
    *(pytest.param(lambda n=name: tiny(n), 64, id=f"transformers-{name}") for name in PATHS),
]


@pytest.mark.parametrize(("make", "vocab"), MODELS)
def test_every_component_equals_hooks_by_hand(make, vocab):
    """Every place at every position in one run; each is compared at one position in turn."""
    model = make()
    batch = unrelated(random_batch(size=3, length=12, vocab=vocab), vocab)
    places = places_of(model)
    rows, engine = run(model, plan(*(f"{p}@{at}" for p in places for at in POSITIONS)), batch)
    assert len(rows) == len(places) * len(POSITIONS) * len(batch)
    notes = " ".join(engine.counters.notes)
    assert ("position is off" in notes) == (model.config.model_type in RECURRENT)
    assert "switched off" not in notes
    by_site = {}
    for row in rows.to_pylist():
        by_site.setdefault(row["site"], []).append(row)
    for turn, (place, (module, io)) in enumerate(places.items()):
        position = POSITIONS[turn % len(POSITIONS)]
        for row in by_site[f"{place}@{position}"]:
            number = row["example"] - 100
            at = int(batch.positions[row["role"]][number]) + row["offset"]
            clean, corrupted = batch.clean[number], batch.corrupted["key"][number]
            logits = patched_logits(model, module, io, corrupted, clean, at)[-2].double()
            answer = batch.answer[number]
            assert row["logit_patched"] == pytest.approx(float(logits[answer]), abs=2e-5, rel=1e-5)
            assert row["p_patched"] == pytest.approx(float(logits.softmax(-1)[answer]), abs=1e-5)
    effects = np.abs(rows["logit_patched"].to_numpy() - rows["logit_base"].to_numpy())
    assert np.mean(effects) > 1e-3


@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_rows_are_those_of_the_reference_engine(direction):
    model, batch = tiny("llama"), random_batch(size=5)
    sites = [f"L{layer}.{c}@{p}" for layer in (0, 1) for c in OUTER for p in POSITIONS]
    interventions = plan("embed@key", *sites, direction=direction)
    rows, _ = run(model, interventions, batch)
    expected = ENGINES["pyvene"]().run(pb.load_model(model), interventions, batch)
    assert rows.schema.equals(expected.schema)
    for name in rows.schema.names:
        mine, theirs = rows[name], expected[name]
        if name.split("_")[0] in ("p", "logp", "logit", "kl"):
            mine, theirs = (c.to_numpy().astype(float) for c in (mine, theirs))
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5, err_msg=name)
        else:
            assert mine.equals(theirs), name
