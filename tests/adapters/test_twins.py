"""Twins compute what the stock mixers compute, and their inner places are what their words say.

Truths: the stock model itself; its own inner functions, wrapped while it runs; and for recurrent
states transformers' cache, continued token by token.
"""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from transformers import DynamicCache
from transformers.models.mamba import modeling_mamba
from transformers.models.mamba2 import modeling_mamba2

import patchbench as pb
from patchbench.adapters import hook_map_for, instrument, restore
from patchbench.adapters.probe import probe
from tests.tiny_models import tiny

FAMILIES = (
    *("mamba", "mamba2", "falcon_mamba", "jamba", "bamba", "zamba2", "falcon_h1"),
    *("granitemoehybrid", "qwen3_next", "qwen3_5_text", "olmo_hybrid", "nemotron_h"),
)
CLEAN = torch.tensor([[3, 9, 27, 17, 51, 25, 8, 30]])
OTHER = torch.tensor([[3, 10, 28, 17, 44, 26, 8, 30]])
AT = 2


def logits(model, tokens=CLEAN, **more):
    with torch.no_grad():
        return model(tokens, use_cache=False, **more).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_a_twin_computes_the_same_and_goes_without_a_trace(family):
    model = tiny(family)
    before, keys = logits(model), list(model.state_dict())
    storage = [parameter.data_ptr() for parameter in model.parameters()]
    text = str(model)
    twins = instrument(model)
    assert twins
    assert [parameter.data_ptr() for parameter in model.parameters()] == storage
    assert list(model.state_dict()) == keys
    torch.testing.assert_close(logits(model), before, atol=1e-5, rtol=1e-5)
    assert instrument(model).keys() == twins.keys()
    restore(model)
    assert str(model) == text
    torch.testing.assert_close(logits(model), before, atol=0, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_inner_place_fires_and_counts(family):
    loaded = pb.load_model(tiny(family), device="cpu")
    inner = [at for at, p in loaded.hook_map.points.items() if ".hook_points." in p.path]
    assert inner
    assert min(result.effect for result in probe(loaded, inner)) > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_the_state_is_fp32_between_weights_in_half_precision(family, tmp_path):
    """What a hook sees is carried on, and rounding moves logits as it does in the stock model."""
    tiny(family).save_pretrained(tmp_path)
    loaded = pb.load_model(tmp_path, dtype="bfloat16", device="cpu")
    wide = pb.load_model(tmp_path, device="cpu")
    assert loaded.dtype == "bfloat16"
    seen = []
    for (_, name), point in loaded.hook_map.points.items():
        if name == "ssm_state":
            loaded.model.get_submodule(point.path).register_forward_hook(
                lambda _, __, out: seen.append(out.dtype)
            )
    wanted, found = logits(wide.model), logits(loaded.model)
    assert set(seen) == {torch.float32}
    restore(loaded.model)
    off, stock = (
        (z.float() - wanted).square().mean().sqrt() for z in (found, logits(loaded.model))
    )
    assert off < 1.2 * stock


def test_gradients_and_training_are_the_stock_ones():
    stock, other = tiny("mamba").train(), tiny("mamba").train()
    instrument(other)
    for model in (stock, other):
        F.cross_entropy(model(CLEAN).logits[0, :-1], CLEAN[0, 1:]).backward()
    for mine, theirs in zip(other.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-5, rtol=1e-4)


def test_hooks_of_others_stay_and_a_copy_is_independent():
    model = tiny("mamba")
    seen = []
    model.backbone.layers[0].mixer.register_forward_hook(lambda *_: seen.append(1))
    instrument(model)
    twin = copy.deepcopy(model)
    logits(model)
    assert seen == [1]
    with torch.no_grad():
        twin.backbone.layers[0].mixer.D.add_(1.0)
    assert not torch.equal(twin.backbone.layers[0].mixer.D, model.backbone.layers[0].mixer.D)


def test_generation_is_the_stock_models_and_hooks_are_refused_there():
    model = tiny("mamba")
    wanted = model.generate(CLEAN, max_new_tokens=4, do_sample=False)
    twins = instrument(model)
    assert torch.equal(model.generate(CLEAN, max_new_tokens=4, do_sample=False), wanted)
    hook = next(iter(twins.values())).hook_points["dt"]
    hook.register_forward_hook(lambda _, __, out: out)
    with pytest.raises(pb.UserError, match="dt with a cache"):
        model(CLEAN, use_cache=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_is_masked_as_in_the_stock_model(family):
    model, mask = tiny(family), torch.ones_like(CLEAN)
    mask[:, :3] = 0
    for name, parameter in model.named_parameters():
        if "conv1d.bias" in name:  # what the convolution gives at padding is not 0 of itself
            parameter.data.fill_(0.5)
    before = logits(model, attention_mask=mask)
    assert (before - logits(model)).abs().max() > 1e-2
    instrument(model)
    found = logits(model, attention_mask=mask)
    torch.testing.assert_close(found[:, 3:], before[:, 3:], atol=1e-5, rtol=1e-5)


def patched(model, component, layer=0):
    """The logits with one position of a component exchanged for that of the other document."""
    instrument(model)
    point = hook_map_for(model).point(layer, component)
    hook, kept = model.get_submodule(point.path), []
    handle = hook.register_forward_hook(lambda _, __, out: kept.append(out[:, AT].clone()))
    logits(model, OTHER)
    handle.remove()

    def put(_, __, out):
        out = out.clone()
        out[:, AT] = kept[0]
        return out

    handle = hook.register_forward_hook(put)
    found = logits(model)
    handle.remove()
    restore(model)
    return found


def exchanged(monkeypatch, model, module, name, argument):
    """The same by wrapping a function of the stock model, whose first layer is the first call.

    What is exchanged is the function's argument of that number, or with None the value that leaves
    a convolution before its activation. Time is the last dimension, or the second of four.
    """
    real, kept = getattr(module, name), []

    def wrapped(*args, source, **kwargs):
        calls.append(1)
        if len(calls) > 1:
            return real(*args, **kwargs)
        if argument is None:
            kwargs = {**kwargs, "activation": None}
            value = real(*args, **kwargs)
        else:
            value = args[argument]
        time = 1 if value.ndim > 3 else value.ndim - 1
        if source:
            kept.append(value.select(time, AT).clone())
        else:
            value = value.clone()
            value.select(time, AT).copy_(kept[0])
        if argument is None:
            return F.silu(value)
        return real(*args[:argument], value, *args[argument + 1 :], **kwargs)

    for source in (True, False):
        calls: list[int] = []
        monkeypatch.setattr(module, name, partial(wrapped, source=source))
        found = logits(model, OTHER if source else CLEAN)
    monkeypatch.undo()
    return found


@pytest.mark.parametrize(
    ("family", "component", "module", "name", "argument"),
    [
        ("mamba", "conv_output", modeling_mamba, "causal_conv1d_fn", None),
        ("mamba", "conv_input", modeling_mamba, "causal_conv1d_fn", 0),
        ("mamba", "B", modeling_mamba, "mamba_selective_scan", 3),
        ("mamba", "C", modeling_mamba, "mamba_selective_scan", 4),
        ("mamba2", "conv_output", modeling_mamba2, "causal_conv1d_fn", None),
        ("mamba2", "conv_input", modeling_mamba2, "causal_conv1d_fn", 0),
        ("mamba2", "ssm_input", modeling_mamba2, "mamba2_chunk_scan", 0),
        ("mamba2", "B", modeling_mamba2, "mamba2_chunk_scan", 3),
        ("mamba2", "C", modeling_mamba2, "mamba2_chunk_scan", 4),
    ],
)
def test_an_inner_value_is_the_stock_models(family, component, module, name, argument, monkeypatch):
    model = tiny(family)
    truth = exchanged(monkeypatch, model, module, name, argument)
    assert (truth - logits(model)).abs().max() > 1e-3
    torch.testing.assert_close(patched(model, component), truth, atol=1e-5, rtol=1e-5)


def by_token(model, tokens, cache, start=0):
    """Run tokens one by one; return the logits at each."""
    with torch.no_grad():
        return torch.cat(
            [
                model(tokens[:, i : i + 1], cache=cache, use_cache=True).logits
                for i in range(start, tokens.shape[1])
            ],
            1,
        )


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("which", ["ssm_state", "conv_state"])
@pytest.mark.parametrize("family", ["mamba", "mamba2"])
def test_an_exchanged_state_is_continued_from(family, which, layer):
    """The truth exchanges one layer's state in transformers' cache and goes on token by token.

    Nothing up to that position changes, in no layer: a state is what is remembered after it.
    """
    model = tiny(family)
    caches = []
    for tokens in (OTHER, CLEAN):
        cache = DynamicCache(config=model.config)
        by_token(model, tokens[:, : AT + 1], cache)
        caches.append(cache.layers[layer])
        base = cache
    other, mine = caches
    states = "recurrent_states" if which == "ssm_state" else "conv_states"
    given, own = getattr(other, states), getattr(mine, states)
    for key in own if isinstance(own, dict) else [None]:
        (own if key is None else own[key]).copy_(given if key is None else given[key])
    truth = by_token(model, CLEAN, base, AT + 1)
    found, clean = patched(model, which, layer=layer), logits(model)
    assert (truth - clean[:, AT + 1 :]).abs().max() > 1e-3
    torch.testing.assert_close(found[:, AT + 1 :], truth, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found[:, : AT + 1], clean[:, : AT + 1], atol=1e-5, rtol=1e-5)
