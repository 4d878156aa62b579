"""The probe accepts what is true and names what is not; it leaves the model as it was."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM
from patchbench.adapters.hook_map import HookMap, HookPoint, hook_map_for
from patchbench.adapters.hook_points import Hook
from patchbench.adapters.loading import LoadedModel, load_model
from patchbench.adapters.probe import CHUNK, check_model, probe
from patchbench.common import UserError
from tests.adapters.lively import EVERY_PRESET
from tests.tiny_models import tiny

FAMILIES = ["gpt2", "gpt_neox", "llama", "opt", "falcon", "mamba", "mamba2", "mixtral", "jamba"]


def _loaded(model: Any, hook_map: HookMap | None = None) -> LoadedModel:
    hook_map = hook_map or hook_map_for(model)
    return LoadedModel(model=model, tokenizer=None, hook_map=hook_map, name="toy")


def _with(model: Any, layer: int | None, component: str, path: str, io: Any = "output") -> HookMap:
    """Return the model's map with one place changed."""
    hook_map = hook_map_for(model)
    point = HookPoint(component=component, path=path, io=io, layer=layer)
    return replace(hook_map, points={**hook_map.points, (layer, component): point})


@pytest.mark.parametrize("family", FAMILIES)
def test_true_maps_pass(family):
    loaded = load_model(tiny(family))
    results = probe(loaded)
    assert {(r.layer, r.component) for r in results} == set(loaded.hook_map.points)
    assert all(r.effect > 0 and len(r.shape) == 3 and r.shape[0] == 2 for r in results)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("preset", EVERY_PRESET)
def test_every_hook_point_of_a_mixer_passes(preset, dtype):
    config = MixerLMConfig.preset(preset, width=16, layers=2, vocab_size=40)
    loaded = load_model(MixerLMForCausalLM(config).to(getattr(torch, dtype)), dtype=dtype)
    assert len(probe(loaded)) == len(loaded.hook_map.points)


def test_the_effect_is_that_of_noise_added_by_hand():
    """Ten lines of raw hook: the largest change of a logit, from the patched position on."""
    model: Any = tiny("gpt2")
    loaded, seen = load_model(model), []
    handle = model.transformer.h[1].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    spy = model.register_forward_pre_hook(
        lambda _, __, kwargs: seen.append(kwargs["input_ids"]), with_kwargs=True
    )
    (result,) = probe(loaded, [(1, "block_input")])
    handle.remove()
    spy.remove()
    tokens, hidden = seen[0][:1], seen[1]
    changed = hidden[:1].clone()
    noise = np.random.default_rng(0).normal(size=hidden.shape[-1])
    changed[:, 2] += torch.from_numpy(noise).float() * hidden.std()
    with torch.no_grad():
        clean = model(tokens).logits
        model.transformer.h[1].register_forward_pre_hook(lambda _, args: (changed, *args[1:]))
        patched = model(tokens).logits
    assert result.shape == (2, 4, 32)
    assert result.effect == pytest.approx(float((patched - clean)[:, 2:].abs().max()), rel=1e-4)


def test_places_can_be_chosen_and_are_run_in_few_passes():
    model: Any = tiny("gpt2", layers=6)
    loaded, passes = load_model(model), []
    model.register_forward_pre_hook(lambda *_: passes.append(1))
    results = probe(loaded, [(3, "mlp_output"), (None, "embed"), (3, "mlp_output")])
    assert [(r.layer, r.component) for r in results] == [(None, "embed"), (3, "mlp_output")]
    assert len(passes) == 3  # observe, unpatched, patched
    passes.clear()
    places = len(loaded.hook_map.points)
    assert places > CHUNK
    assert len(probe(loaded)) == places
    assert len(passes) == 1 + 2 * -(-places // CHUNK)


def test_a_place_that_never_fires_is_named():
    model: Any = tiny("gpt2")
    model.transformer.spare = nn.Identity()
    loaded = _loaded(model, _with(model, 1, "mixer_output", "transformer.spare"))
    for check in (probe, check_model):
        with pytest.raises(
            UserError, match=r"L1\.mixer_output .*transformer\.spare.* fires 0 times"
        ):
            check(loaded)
    probe(loaded, [(0, "mixer_output")])  # other places are not concerned


def test_a_place_that_fires_twice_is_named():
    model: Any = tiny("gpt2")
    shared = model.transformer.h[0].ln_2
    model.transformer.h[1].ln_2 = shared
    loaded = _loaded(model, _with(model, 0, "mlp_input", "transformer.h.0.ln_2"))
    with pytest.raises(UserError, match=r"L0\.mlp_input .* fires 2 times"):
        probe(loaded, [(0, "mlp_input")])


def test_a_place_that_nothing_reads_is_named():
    model: Any = tiny("gpt2")
    block = model.transformer.h[0]
    block.spare = nn.Linear(32, 32)

    def run_spare(module: Any, args: tuple) -> None:
        module.spare(args[0])

    block.register_forward_pre_hook(run_spare)
    loaded = _loaded(model, _with(model, 0, "mixer_output", "transformer.h.0.spare"))
    check_model(loaded)  # it fires once
    with pytest.raises(UserError, match=r"patch at L0\.mixer_output .*spare.* changes nothing"):
        probe(loaded, [(0, "mixer_output")])


def test_a_dead_lazy_value_does_not_pass_for_rounding():
    """Hooks switch a mixer to other code, whose rounding must not be taken for an effect."""
    model: Any = MixerLMForCausalLM(
        MixerLMConfig.preset("mamba", width=16, layers=1, vocab_size=40)
    )
    mixer = model.backbone.layers[0].mixer
    mixer.spare, inner = Hook(), mixer.forward

    def forward(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        mixed, state = inner(x, *args, **kwargs)
        if mixer.spare.active:
            mixer.spare(mixed)
            mixed = mixed * 1.001
        return mixed, state

    mixer.forward = forward
    loaded = _loaded(model, _with(model, 0, "gate", "backbone.layers.0.mixer.spare"))
    with pytest.raises(UserError, match=r"L0\.gate .* changes nothing"):
        probe(loaded, [(0, "gate")])


def test_a_tensor_of_another_shape_is_named():
    model: Any = tiny("opt")
    loaded = _loaded(model, _with(model, 0, "mlp_output", "model.decoder.layers.0.fc2"))
    with pytest.raises(UserError, match=r"L0\.mlp_output .* has shape \(8, 32\)"):
        probe(loaded, [(0, "mlp_output")])


def test_a_place_that_changes_the_past_is_named():
    model: Any = tiny("gpt2")

    class Flip(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flip(1)

    block = model.transformer.h[0]
    block.flip, inner = Flip(), block.mlp.forward
    block.mlp.forward = lambda x: block.flip(inner(x).flip(1))
    loaded = _loaded(model, _with(model, 0, "mlp_output", "transformer.h.0.flip", "input"))
    check_model(loaded)
    with pytest.raises(UserError, match=r"L0\.mlp_output .* changes earlier positions"):
        probe(loaded, [(0, "mlp_output")])


def test_an_unknown_place_is_refused():
    loaded = load_model(tiny("gpt2"))
    with pytest.raises(UserError, match="layer 9 does not exist"):
        probe(loaded, [(9, "block_input")])


def test_a_bidirectional_model_is_refused():
    model: Any = tiny("llama")
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    attend = model.model.layers[0].self_attn.forward
    model.model.layers[0].self_attn.forward = lambda hidden_states, **rest: attend(
        hidden_states + hidden_states.mean(1, keepdim=True), **rest
    )
    with pytest.raises(UserError, match="not causal: a later token moves earlier logits"):
        load_model(model)


def test_a_model_without_a_head_is_refused():
    headless: Any = tiny("gpt2").transformer
    hook_map = replace(hook_map_for(tiny("gpt2")), points={})
    with pytest.raises(UserError, match="GPT2Model gives no logits"):
        load_model(headless, hook_map=hook_map)


@pytest.mark.parametrize(
    ("dtype", "remedy"),
    [(torch.float32, "the weights are damaged"), (torch.bfloat16, "try --dtype float32")],
    ids=str,
)
def test_logits_that_are_not_finite_are_refused(dtype, remedy):
    model: Any = tiny("gpt2").to(dtype)
    model.lm_head.register_forward_hook(lambda _, __, logits: logits * float("inf"))
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(UserError, match=f"logits are not finite in {name}") as found:
        load_model(model, dtype="auto")
    assert remedy in str(found.value)


def test_a_head_that_tells_no_token_from_another_is_blamed_and_not_the_map():
    model: Any = tiny("gpt2")
    model.lm_head.register_forward_hook(lambda _, __, logits: torch.full_like(logits, 0.25))
    with pytest.raises(UserError, match="every token has the same logit") as found:
        probe(load_model(model))
    assert "HookMap" not in str(found.value)


def test_false_guesses_of_inspection_are_left_out_and_told():
    model: Any = tiny("opt")
    model.config.model_type = "somebodys"
    loaded = load_model(model)
    assert loaded.hook_map.origin == "inspection"
    assert (0, "mixer_output") in loaded.hook_map.points
    assert not {name for _, name in loaded.hook_map.points} & {"mlp_input", "mlp_output"}
    assert any("mlp_output is left out, it has shape (8, 32)" in n for n in loaded.hook_map.notes)


def test_an_mlp_that_adds_the_residual_itself_is_left_out():
    model: Any = tiny("mpt")
    model.config.model_type = "somebodys"
    loaded = load_model(model)
    assert (0, "mlp_input") in loaded.hook_map.points
    assert (0, "mlp_output") not in loaded.hook_map.points
    assert any("mlp_output is left out" in note for note in loaded.hook_map.notes)


def test_an_mlp_into_whose_output_the_block_adds_is_kept():
    model: Any = tiny("gpt2")
    model.config.model_type = "somebodys"
    block = model.transformer.h[0]

    def forward(hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        middle = hidden_states + block.attn(block.ln_1(hidden_states))[0]
        output = block.mlp(block.ln_2(middle))
        output += middle  # in place: the hooked tensor itself becomes the block's output
        return output

    block.forward = forward
    assert (0, "mlp_output") in load_model(model).hook_map.points


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_the_model_is_left_as_it_was(training, fails):
    model: Any = tiny("gpt2").train(training)
    model.transformer.h[0].eval()
    fired: list[int] = []
    model.transformer.h[1].register_forward_hook(lambda *_: fired.append(1))
    modes = {name: module.training for name, module in model.named_modules()}
    hooks = _hooks(model)
    model.transformer.spare = nn.Identity().train(training)
    modes["transformer.spare"] = training
    path = "transformer.spare" if fails else "transformer.h.1.attn"
    loaded = _loaded(model, _with(model, 1, "mixer_output", path))
    if fails:
        with pytest.raises(UserError):
            probe(loaded)
    else:
        probe(loaded)
    assert _hooks(model) == hooks
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert fired  # a foreign hook goes on firing


def _hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_a_model_with_few_positions_is_probed_within_them():
    config = MixerLMConfig.preset("attention", width=16, layers=1, vocab_size=40)
    config.max_position_embeddings = 2
    loaded = load_model(MixerLMForCausalLM(config))
    assert loaded.max_positions == 2
    assert all(result.shape[1] == 2 for result in probe(loaded))
