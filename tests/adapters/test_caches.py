"""Caches, masks, positions and hooks that do not fit are refused; those that do are continued."""

import pytest
import torch

from patchbench.adapters import MIXERS, MixerLMForCausalLM
from patchbench.adapters.cache import MixerLMCache
from patchbench.adapters.mixers import Mixer
from patchbench.common import UserError
from tests.adapters.lively import EVERY_PRESET, VOCAB, lively, tokens

every_preset = pytest.mark.parametrize("name", EVERY_PRESET)


def seen(model: MixerLMForCausalLM, ids: torch.Tensor) -> MixerLMCache:
    with torch.no_grad():
        return model(ids, use_cache=True).cache


@every_preset
def test_generation_goes_on_from_a_cache(name):
    """Only what the cache has not seen runs: the tokens are those of a generation from scratch."""
    model, ids = lively(name), tokens(2, 7)
    wanted = model.generate(ids, max_new_tokens=3, do_sample=False)
    cache = seen(model, ids[:, :5])
    ran = []
    handle = model.backbone.embed.register_forward_hook(lambda _, __, x: ran.append(x.shape[1]))
    found = model.generate(ids, cache=cache, max_new_tokens=3, do_sample=False)
    handle.remove()
    assert torch.equal(found, wanted)
    assert ran == [2, 1, 1]
    assert cache.length == 9


@pytest.mark.parametrize("prompt", [5, 3])
def test_generation_from_a_cache_needs_a_new_token(prompt):
    model, ids = lively("mamba"), tokens(2, 7)
    with pytest.raises(UserError, match="the cache has seen 5 tokens"):
        model.generate(ids[:, :prompt], cache=seen(model, ids[:, :5]), max_new_tokens=2)


@pytest.mark.parametrize(
    ("made", "used"),
    [
        (("mamba", {}), ("mamba", {"d_conv": 0})),
        (("mamba", {}), ("mamba", {"d_conv": 2})),
        (("mamba", {}), ("mamba", {"d_state": 8})),
        (("mamba", {}), ("mamba", {"width": 32})),
        (("mamba2", {"head_dim": 16}), ("mamba2", {"head_dim": 32})),
        (("base_conv", {"d_conv": 3}), ("base_conv", {"d_conv": 2})),
        (("attention", {}), ("mamba", {})),
        (("mamba", {}), ("attention", {})),
        (("delta_net", {}), ("delta_net_noconv", {})),
    ],
    ids=str,
)
def test_another_models_cache_is_refused(made, used):
    ids = tokens(2, 7)
    cache = seen(lively(made[0], **made[1]), ids)
    with pytest.raises(UserError, match=r"layer 0 of the cache holds"):
        lively(used[0], **used[1])(ids, cache=cache)


@every_preset
def test_a_state_of_other_rows_is_refused(name):
    """In any layer: one row would be broadcast over all."""
    model, ids = lively(name), tokens(2, 7)
    last = len(model.backbone.layers) - 1
    for key in seen(model, ids).states[last]:
        cache = seen(model, ids)
        cache.states[last][key] = cache.states[last][key][:1]
        with pytest.raises(UserError, match=f"layer {last} of the cache|has 1 rows"):
            model(ids, cache=cache)
    cache = seen(model, ids)
    cache.states[last] = None
    with pytest.raises(UserError, match="holds None"):
        model(ids, cache=cache)


def test_a_mask_that_does_not_fit_is_refused():
    model, ids = lively("mamba"), tokens(2, 7)
    for shape in ((2, 9), (3, 7), (1, 7), (2, 0), (2, 6)):
        with pytest.raises(UserError, match="attention_mask has shape"):
            model(ids, attention_mask=torch.ones(shape))
    for value in (-1.0, 2.0, float("nan")):
        with pytest.raises(UserError, match="0 and 1"):
            model(ids, attention_mask=torch.full((2, 7), value))
    with pytest.raises(UserError, match="0 and 1"):
        model(ids, attention_mask=[[1] * 7] * 2)


@pytest.mark.parametrize(
    "keep",
    [
        -1, True, "3", 1.5, [1, 2],
        torch.tensor(2), torch.tensor([7]), torch.tensor([[0, 1], [2, 9]]), torch.tensor([[0, 1]]),
        torch.tensor([0.0]), torch.ones(2, 6, dtype=torch.bool),
    ],
    ids=str,
)  # fmt: skip
def test_logits_that_are_not_there_are_refused(keep):
    model, ids = lively("mamba"), tokens(2, 7)
    with pytest.raises(UserError, match="logits_to_keep"):
        model(ids, logits_to_keep=keep)


def test_logits_at_positions_of_each_row():
    model, ids = lively("mamba"), tokens(2, 7)
    where = torch.tensor([[0, 6], [3, 3]])
    with torch.no_grad():
        full, some = model(ids).logits, model(ids, logits_to_keep=where).logits
    for row in range(2):
        torch.testing.assert_close(some[row], full[row, where[row]], atol=1e-5, rtol=0)


@pytest.mark.parametrize("labels", [torch.full((2, 7), VOCAB), torch.full((2, 7), 0.5)], ids=str)
def test_labels_that_are_no_tokens_are_refused(labels):
    with pytest.raises(UserError, match="vocabulary has"):
        lively("mamba")(tokens(2, 7), labels=labels)


@pytest.mark.parametrize("cast", [torch.Tensor.float, torch.Tensor.bool, torch.Tensor.tolist])
def test_ids_that_are_no_whole_numbers_are_refused(cast):
    with pytest.raises(UserError, match="input_ids are"):
        lively("mamba")(cast(tokens(2, 7)))


@every_preset
def test_a_hook_may_write_into_what_it_is_given(name):
    """The same as returning a changed copy: nothing else reads the tensor that a hook is shown."""
    model, ids = lively(name), tokens(2, 7)

    def returns(_, __, value):
        value = value.clone()
        value[0, 3] = 0.5
        return value

    def writes(_, __, value):
        value[0, 3] = 0.5
        return value

    for component, hook in model.backbone.layers[0].mixer.hook_points.items():
        logits = []
        for function in (returns, writes):
            handle = hook.register_forward_hook(function)
            with torch.no_grad():
                logits.append(model(ids, use_cache=False).logits)
            handle.remove()
        assert torch.equal(*logits), component


@every_preset
def test_a_hooks_other_numbers(name):
    """Other floats are cast to those of the value; whole numbers and truth values are refused."""
    model, ids = lively(name), tokens(2, 7)
    for component, hook in model.backbone.layers[0].mixer.hook_points.items():
        with torch.no_grad():
            plain = model(ids, use_cache=False).logits
        handle = hook.register_forward_hook(lambda _, __, value: value.double())
        with torch.no_grad():
            double = model(ids, use_cache=False).logits
        handle.remove()
        torch.testing.assert_close(double, plain, atol=1e-3, rtol=0)
        for cast in (torch.Tensor.long, torch.Tensor.bool):
            handle = hook.register_forward_hook(lambda _, __, value, cast=cast: cast(value))
            with pytest.raises(UserError, match=f"hook on '{component}' returned torch"):
                model(ids, use_cache=False)
            handle.remove()


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (lambda x: (x.cumsum(1), None), "no state"),
        (lambda x: (x.mean(1, keepdim=True), {}), "shape"),
    ],
    ids=["no-state", "other-shape"],
)
def test_a_mixer_that_keeps_no_promise_is_named(monkeypatch, returned, says):
    class Careless(Mixer):
        residual_projection = None

        def forward(self, x, state=None, *, return_state=False):
            return returned(x)

    monkeypatch.setitem(MIXERS._targets, "careless", Careless)
    with pytest.raises(UserError, match=f"layer 0: Careless returned {says}"):
        lively("careless")(tokens(2, 7), use_cache=True)
