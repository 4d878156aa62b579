"""Activations that come from another site than the one they replace, against hooks by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import patchbench as pb
from patchbench.common import UserError
from patchbench.engines import ENGINES
from patchbench.interventions import Intervention
from patchbench.sites import Site
from tests.core.batches import random_batch
from tests.tiny_models import tiny

ENGINE_NAMES = ("pyvene", "nnsight", "native")


def moved(*pairs: tuple[str, str], **settings) -> Intervention:
    donors, sites = zip(*pairs, strict=True)
    return Intervention(
        sites=tuple(map(Site.parse, sites)),
        source_sites=tuple(map(Site.parse, donors)),
        corruption="key",
        **settings,
    )


def by_hand(model, batch, moves) -> np.ndarray:
    """p(answer) with features moved: (donor module, position, features), (module, the same)."""
    found = []
    for number in range(len(batch)):
        kept = {}
        handles = [
            donor.register_forward_hook(
                lambda _, __, output, key=key, kept=kept: kept.update({key: output.clone()})
            )
            for key, ((donor, _, _), _) in enumerate(moves)
        ]
        with torch.no_grad():
            model(torch.tensor(batch.clean[number][None]))
        for handle in handles:
            handle.remove()

        def put(_, __, output, key, number=number, kept=kept):
            (_, source, taken), (_, target, replaced) = moves[key]
            patched = output.clone()
            values = kept[key][0, batch.positions[source][number], taken]
            patched[0, batch.positions[target][number], replaced] = values
            return patched

        handles = [
            module.register_forward_hook(lambda *args, key=key: put(*args, key=key))
            for key, (_, (module, _, _)) in enumerate(moves)
        ]
        with torch.no_grad():
            logits = model(torch.tensor(batch.corrupted["key"][number][None])).logits[0, -2]
        for handle in handles:
            handle.remove()
        found.append(float(logits.double().softmax(-1)[batch.answer[number]]))
    return np.array(found)


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_another_layer_and_position(engine):
    model, batch = tiny("llama"), random_batch()
    layers = model.model.layers
    every = slice(None)
    truth = by_hand(
        model,
        batch,
        [
            ((layers[0], "value", every), (layers[1].mlp, "query", every)),
            ((model.model.embed_tokens, "bos", every), (layers[0], "key", every)),
        ],
    )
    pair = moved(
        ("L0.block_output@value", "L1.mlp_output@query"), ("embed@bos", "L0.block_output@key")
    )
    rows = ENGINES[engine]().run(pb.load_model(model), [pair], batch)
    np.testing.assert_allclose(rows["p_patched"].to_numpy(), truth, atol=1e-6)
    assert rows["site"][0].as_py() == (
        "L0.block_output@value -> L1.mlp_output@query & embed@bos -> L0.block_output@key"
    )
    assert (rows["layer"][0].as_py(), rows["role"][0].as_py()) == (1, "query")
    assert np.abs(rows["p_patched"].to_numpy() - rows["p_base"].to_numpy()).max() > 1e-3


@pytest.fixture(scope="module")
def headed():
    """A model with 4 heads of 8 features."""
    from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM

    torch.manual_seed(0)
    config = MixerLMConfig.preset(
        "attention", width=32, layers=2, vocab_size=64, num_heads=4, initializer_range=0.3
    )
    return MixerLMForCausalLM(config).eval()


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_another_head_of_another_component(engine, headed):
    batch, loaded = random_batch(), pb.load_model(headed)
    source, target = (loaded.hook_map.point(*at) for at in ((0, "q"), (1, "v")))
    modules = [headed.get_submodule(point.path) for point in (source, target)]
    truth = by_hand(
        headed,
        batch,
        [((modules[0], "value", slice(24, 32)), (modules[1], "key", slice(8, 16)))],
    )
    moves = moved(("L0.q[3]@value", "L1.v[1]@key"))
    rows = ENGINES[engine]().run(loaded, [moves], batch)
    np.testing.assert_allclose(rows["p_patched"].to_numpy(), truth, atol=1e-6)
    assert np.abs(rows["p_patched"].to_numpy() - rows["p_base"].to_numpy()).max() > 1e-4


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_the_base_run_may_be_the_source(engine):
    """A self patch from the block before changes nothing, as its output is the next one's input."""
    batch, loaded = random_batch(), pb.load_model(tiny("gpt2"))
    same = moved(("L0.block_output@value", "L1.block_input@value"), source="self")
    rows = ENGINES[engine]().run(loaded, [same], batch)
    np.testing.assert_allclose(rows["p_patched"].to_numpy(), rows["p_base"].to_numpy(), atol=1e-6)


@pytest.mark.parametrize("engine", ENGINE_NAMES)
@pytest.mark.parametrize(
    ("pair", "says"),
    [
        (("L0.q@key", "L1.v[1]@key"), r"shape|features"),
        (("L0.q[9]@key", "L1.v[1]@key"), "heads are 0–3"),
        (("L0.block_inptu@key", "L1.v@key"), "block_input"),
    ],
    ids=["another width", "no such head", "no such component"],
)
def test_what_does_not_fit_is_refused(engine, headed, pair, says):
    with pytest.raises(UserError, match=says):
        ENGINES[engine]().run(pb.load_model(headed), [moved(pair)], random_batch())


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_a_source_of_one_feature_is_not_repeated(engine):
    """Left alone, pyvene writes the one value into every feature."""
    from dataclasses import replace

    model = tiny("gpt2")
    model.transformer.h[0].mlp.add_module("narrow", torch.nn.Linear(32, 1))
    mlp = model.transformer.h[0].mlp
    forward = mlp.forward
    mlp.forward = lambda hidden: forward(hidden) + mlp.narrow(hidden)
    loaded = pb.load_model(model)
    point = loaded.hook_map.point(0, "mlp_output")
    narrow = replace(point, component="gate", path=f"{point.path}.narrow")
    hook_map = replace(loaded.hook_map, points={**loaded.hook_map.points, (0, "gate"): narrow})
    loaded = replace(loaded, hook_map=hook_map)
    with pytest.raises(UserError, match=r"width|features"):
        ENGINES[engine]().run(
            loaded, [moved(("L0.gate@key", "L1.block_input@key"))], random_batch()
        )


def test_an_example_without_the_donor_position_gets_no_row():
    """Its activations would be those of the first token."""
    batch = random_batch()
    key = batch.positions["key"].copy()
    key[1] = -1
    batch = replace(batch, positions={**batch.positions, "key": key})
    move = moved(("L1.block_input@key", "L1.block_input@query"))
    assert batch.usable(move).tolist() == [True, False, True, True]
