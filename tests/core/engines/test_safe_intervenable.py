"""pyvene's silent traps, one test each: what the plain class does, and what the safe one does.

Where the plain class is shown to fail, the test also says when the trap is gone from pyvene.
"""

import json
import logging

import numpy as np
import pytest
import pyvene as pv
import torch

import patchbench as pb
from patchbench.adapters.pyvene_mapping import register_with_pyvene
from patchbench.common import UserError
from patchbench.engines.safe_intervenable import SafeIntervenable, swap_config
from patchbench.interventions import Intervention
from patchbench.sites import Site
from tests.core.batches import module_of, patched_logits
from tests.tiny_models import tiny

LENGTH, SIZE = 7, 3


@pytest.fixture
def model():
    return tiny("gpt2")


@pytest.fixture
def tokens():
    rng = np.random.default_rng(0)
    return rng.integers(64, size=(2, SIZE, LENGTH))


def wrap(model, *sites, kind=SafeIntervenable):
    hook_map = pb.load_model(model).hook_map
    config = swap_config(hook_map, model, [Site.parse(site) for site in sites])
    return kind(config, model)


def ids(array) -> dict:
    return {"input_ids": torch.tensor(array)}


def where(*positions: int) -> dict:
    """Locations of one site: one position for each example."""
    rows = [[position] for position in positions]
    return {"sources->base": ([rows], [rows])}


def call(wrapped, tokens, locations):
    base, source = tokens
    with torch.no_grad():
        return wrapped(ids(base), [ids(source)], locations)[1].logits


def by_hand(model, component, tokens, positions):
    module, io = module_of(model, "gpt2", 1, component)
    base, source = tokens
    return torch.stack(
        [
            patched_logits(model, module, io, base[row], source[row], position)
            for row, position in enumerate(positions)
        ]
    )


def hooks_of(model) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


# 1. Other people's hooks.


@pytest.mark.parametrize("component", ["block_input", "mixer_output"])
def test_foreign_hooks_fire_during_a_call_and_survive_it(model, tokens, component):
    fired = {"hook": 0, "pre": 0}
    block = model.transformer.h[1]
    block.register_forward_hook(lambda *_: fired.update(hook=fired["hook"] + 1))
    block.register_forward_pre_hook(lambda *_: fired.update(pre=fired["pre"] + 1))
    wrapped = wrap(model, f"L1.{component}@key")
    fired.update(hook=0, pre=0)
    call(wrapped, tokens, where(1, 2, 3))
    assert fired == {"hook": 2, "pre": 2}  # source and base
    model(**ids(tokens[0]))
    assert fired == {"hook": 3, "pre": 3}
    assert hooks_of(model) == 2


def test_plain_pyvene_removes_foreign_hooks(model, tokens):
    model.transformer.h[1].register_forward_hook(lambda *_: None)
    call(wrap(model, "L1.block_input@key", kind=pv.IntervenableModel), tokens, where(1, 2, 3))
    assert hooks_of(model) == 0


@pytest.mark.parametrize("family", ["gpt2", "llama", "mamba"])
def test_hidden_states_are_still_recorded_afterwards(family, tokens):
    model = tiny(family)
    before = model(**ids(tokens[0]), output_hidden_states=True).hidden_states
    call(wrap(model, "L1.block_input@key"), tokens, where(1, 2, 3))
    after = model(**ids(tokens[0]), output_hidden_states=True).hidden_states
    assert len(before) == len(after) == 3
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


def test_own_hooks_go_when_the_model_fails(model, tokens):
    wrapped = wrap(model, "L1.block_input@key")
    foreign = model.transformer.h[0].register_forward_hook(lambda *_: None)

    def fail(*_):
        raise RuntimeError("in the middle")

    handle = model.transformer.ln_f.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        call(wrapped, tokens, where(1, 2, 3))
    assert hooks_of(model) == 2
    handle.remove()
    expected = by_hand(model, "block_input", tokens, (1, 2, 3))
    assert torch.allclose(call(wrapped, tokens, where(1, 2, 3)), expected, atol=1e-5)
    foreign.remove()


# 2. Sites that do not fire.


def test_a_site_that_never_fires_is_an_error(model, tokens):
    register_with_pyvene(model)
    model.transformer.h[1].unused = torch.nn.Identity()
    representation = pv.RepresentationConfig(
        component="transformer.h.1.unused.output", intervention_type=pv.VanillaIntervention
    )
    plain = pv.IntervenableModel(pv.IntervenableConfig([representation]), model)
    unpatched = model(**ids(tokens[0])).logits
    assert torch.equal(call(plain, tokens, where(1, 2, 3)), unpatched)  # the trap
    wrapped = SafeIntervenable(pv.IntervenableConfig([representation]), model)
    with pytest.raises(UserError, match=r"h\.1\.unused\.output fired 0 times"):
        call(wrapped, tokens, where(1, 2, 3))
    assert hooks_of(model) == 0


def test_a_site_that_fires_twice_is_an_error(model, tokens):
    register_with_pyvene(model)
    shared = model.transformer.drop  # one module at two places of the forward
    model.transformer.h[1].register_forward_pre_hook(lambda _, args: (shared(args[0]), *args[1:]))
    representation = pv.RepresentationConfig(
        component="transformer.drop.output", intervention_type=pv.VanillaIntervention
    )
    wrapped = SafeIntervenable(pv.IntervenableConfig([representation]), model)
    with pytest.raises(UserError, match="fired 2 times"):
        call(wrapped, tokens, where(1, 2, 3))


# 3. Model classes that pyvene does not know.


def test_a_class_of_ones_own_can_be_patched(tokens):
    class Mine(type(tiny("gpt2"))):
        pass

    model = Mine(tiny("gpt2").config).eval()
    model.load_state_dict(tiny("gpt2").state_dict())
    assert Mine not in pv.type_to_module_mapping
    logits = call(wrap(model, "L1.block_input@key"), tokens, where(1, 2, 3))
    assert torch.allclose(logits, by_hand(model, "block_input", tokens, (1, 2, 3)), atol=1e-5)


# 4. One call with an integer position.


def test_an_integer_position_does_not_stick(model, tokens):
    wrapped = wrap(model, "L1.block_input@key")
    together = call(wrapped, tokens, {"sources->base": (2, 2)})
    assert torch.allclose(together, by_hand(model, "block_input", tokens, (2, 2, 2)), atol=1e-5)
    expected = by_hand(model, "block_input", tokens, (1, 4, 3))
    assert torch.allclose(call(wrapped, tokens, where(1, 4, 3)), expected, atol=1e-5)
    plain = wrap(model, "L1.block_input@key", kind=pv.IntervenableModel)
    call(plain, tokens, {"sources->base": (2, 2)})
    assert not torch.allclose(call(plain, tokens, where(1, 4, 3)), expected, atol=1e-2)


# 5. The model's own state, and the caller's lists.


def test_mode_and_gradients_are_left_alone(model, tokens):
    model.train()
    model.transformer.h[0].eval()
    model.transformer.wpe.weight.requires_grad_(False)
    state = [m.training for m in model.modules()]
    grads = [p.requires_grad for p in model.parameters()]
    wrapped = wrap(model, "L1.block_input@key")
    call(wrapped, tokens, where(1, 2, 3))
    assert [m.training for m in model.modules()] == state
    assert [p.requires_grad for p in model.parameters()] == grads
    wrapped.disable_model_gradients()  # asked for
    assert not any(p.requires_grad for p in model.parameters())


def test_sources_and_representations_of_the_caller_stay(model, tokens):
    wrapped = wrap(model, "L0.block_input@key", "L1.block_input@key")
    sources = [ids(tokens[1])]
    rows = [[[1], [2], [3]]] * 2
    with torch.no_grad():
        wrapped(ids(tokens[0]), sources, {"sources->base": (rows, rows)})
    assert len(sources) == 1
    cached = {key: torch.zeros(SIZE, 1, 32) for key in wrapped.sorted_keys}
    with torch.no_grad():
        wrapped(ids(tokens[0]), None, {"sources->base": (None, rows)}, cached)
    assert set(cached) == set(wrapped.sorted_keys)


# 6. JSON.


def test_an_intervention_goes_to_json_and_from_there_to_pyvene(model, tokens):
    declared = Intervention(sites=(Site.parse("L1.mixer_output@key"),), corruption="key")
    again = Intervention.from_json(json.dumps(json.loads(declared.to_json())))
    config = again.to_pyvene(pb.load_model(model).hook_map, model)
    assert isinstance(config, pv.IntervenableConfig)
    logits = call(SafeIntervenable(config, model), tokens, where(1, 2, 3))
    assert torch.allclose(logits, by_hand(model, "mixer_output", tokens, (1, 2, 3)), atol=1e-5)


# 7. Positions.


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([[1], [2, 3], [4]], "different numbers of positions"),
        ([[1], [-1], [4]], "position -1"),
        ([[1], [LENGTH], [4]], f"position {LENGTH} of a sequence of {LENGTH}"),
        ([[1]], "positions of shape"),
        (-2, "position -2"),
    ],
    ids=["ragged", "negative", "behind the end", "too few rows", "negative integer"],
)
def test_impossible_positions_are_named(model, tokens, rows, says):
    locations = [rows] if isinstance(rows, list) else rows
    with pytest.raises(UserError, match=says):
        call(wrap(model, "L1.block_input@key"), tokens, {"sources->base": (locations, locations)})
    assert hooks_of(model) == 0


# And two more.


@pytest.mark.parametrize("family", ["gpt2", "mamba"])
def test_the_hooked_tensor_itself_is_not_written_to(family, tokens):
    """Who else reads it, such as a block in parallel, must see what the model computed."""
    model = tiny(family)
    block = model.get_submodule("transformer.h.0" if family == "gpt2" else "backbone.layers.0")
    kept = []
    block.register_forward_hook(lambda _, __, output: kept.append((output, output.clone())))
    call(wrap(model, "L0.block_output@key", "L1.block_input@key"), tokens,
         {"sources->base": ([[[1], [2], [3]]] * 2,) * 2})  # fmt: skip
    assert len(kept) >= 2
    assert all(torch.equal(output, copy) for output, copy in kept)


@pytest.mark.parametrize("shape", [tuple, list, dict])
def test_outputs_of_any_make_are_patched(tokens, shape):
    """A block that returns a container, the hidden state not in front, equals one with a tensor."""
    expected = call(wrap(tiny("gpt2"), "L0.mlp_output@key"), tokens, where(1, 2, 3))
    model = tiny("gpt2")

    class Boxed(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            hidden = self.inner(x)
            mask = torch.ones(2, dtype=torch.bool)
            return (
                {"mask": mask, "hidden_states": hidden} if shape is dict else shape((mask, hidden))
            )

    class Unboxed(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            value = self.inner(x)
            return value["hidden_states"] if shape is dict else value[1]

    mlp = model.transformer.h[0].mlp
    model.transformer.h[0].mlp = Unboxed(Boxed(mlp))
    register_with_pyvene(model)
    representation = pv.RepresentationConfig(
        component="transformer.h.0.mlp.inner.output", intervention_type=pv.VanillaIntervention
    )
    wrapped = SafeIntervenable(pv.IntervenableConfig([representation]), model)
    assert torch.equal(call(wrapped, tokens, where(1, 2, 3)), expected)


def test_gradients_pass_through_a_patch(model, tokens):
    wrapped = wrap(model, "L1.block_input@key")
    base, source = tokens
    output = wrapped(ids(base), [ids(source)], where(1, 2, 3))[1]
    output.logits[:, -1].sum().backward()
    gradient = model.transformer.wpe.weight.grad
    assert gradient is not None
    assert gradient[:LENGTH].abs().sum() > 0


def test_nothing_is_logged(model, tokens, caplog):
    with caplog.at_level(logging.WARNING):
        call(wrap(model, "L1.block_input@key"), tokens, where(1, 2, 3))
    assert caplog.records == []
