"""What holds for MixerLM with every mixer: causality, states, hook points, positions."""

import copy

import pytest
import torch

from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM
from patchbench.common import UserError
from tests.adapters.lively import EVERY_PRESET, VOCAB, lively, tokens

every_preset = pytest.mark.parametrize("name", EVERY_PRESET)
LAZY = {"conv_state", "attn_weights", "ssm_write", "ssm_state"}


def watch(model):
    """Look at every hook point, so that the mixers take the path that shows inner values."""
    for block in model.backbone.layers:
        for hook in block.mixer.hook_points.values():
            hook.register_forward_hook(lambda *_: None)


watched = pytest.mark.parametrize("hooked", [False, True], ids=["plain", "watched"])


@watched
@every_preset
def test_a_later_token_changes_no_earlier_output_by_a_bit(name, hooked):
    model, ids = lively(name, layers=4), tokens(time=40)
    if hooked:
        watch(model)
    with torch.no_grad():
        before = model(ids, use_cache=False).logits
        for t in (39, 20, 1):
            changed = ids.clone()
            changed[:, t] = (ids[:, t] + 1) % VOCAB
            after = model(changed, use_cache=False).logits
            assert torch.equal(after[:, :t], before[:, :t])
            assert not torch.equal(after[:, t], before[:, t])


@watched
@every_preset
def test_chunks_with_a_cache_equal_the_whole(name, hooked):
    model, ids = lively(name, layers=4), tokens(time=14)
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits
        if hooked:
            watch(model)
        cache, parts = None, []
        for chunk in ids.split([5, 1, 1, 7], 1):
            out = model(chunk, cache=cache, use_cache=True)
            cache = out.cache
            parts.append(out.logits)
    assert cache.get_seq_length() == 14
    assert float(whole.std()) > 0.3
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=2e-5, rtol=0)


@every_preset
def test_starting_from_the_initial_state_equals_starting_afresh(name):
    model = lively(name)
    x = torch.randn(2, 9, 16)
    for block in model.backbone.layers:
        empty = block.mixer.initial_state(2, x.device, x.dtype)
        shapes = {key: tensor.shape for key, tensor in empty.items()}
        continued, _ = block.mixer(x, empty, return_state=True)
        torch.testing.assert_close(continued, block.mixer(x)[0], atol=1e-5, rtol=0)
        assert {key: tensor.shape for key, tensor in empty.items()} == shapes
        assert all(not bool(tensor.any()) for tensor in empty.values())  # left as it was


@every_preset
def test_rows_do_not_see_each_other(name):
    model, ids = lively(name), tokens(batch=8)
    with torch.no_grad():
        together = model(ids, use_cache=False).logits
        alone = torch.cat([model(row[None], use_cache=False).logits for row in ids])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


@every_preset
def test_every_hook_point_fires_once_and_is_part_of_the_computation(name):
    model, ids = lively(name), tokens(batch=3, time=9)
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
    for layer, block in enumerate(model.backbone.layers):
        for component, hook in block.mixer.hook_points.items():
            seen = []
            handle = hook.register_forward_hook(lambda m, a, out, seen=seen: seen.append(out))
            with torch.no_grad():
                watched = model(ids, use_cache=False).logits
            handle.remove()
            place = f"layer {layer} {component}"
            assert len(seen) == 1, place
            assert seen[0].shape == (3, 9, seen[0].shape[-1]), place
            # Looking changes nothing, though the lazy values take another path.
            tolerance = 2e-5 if component in LAZY else 0
            torch.testing.assert_close(watched, expected, atol=tolerance, rtol=0, msg=place)
            handle = hook.register_forward_hook(lambda m, a, out: 1.5 * out + 0.1)
            with torch.no_grad():
                patched = model(ids, use_cache=False).logits
            handle.remove()
            assert float((patched - expected).abs().max()) > 1e-4, place


@every_preset
def test_a_patch_reaches_no_earlier_position(name):
    model, ids = lively(name), tokens(batch=2, time=9)

    def patch(module, args, output):
        output = output.clone()
        output[:, 5] = output[:, 5] * 1.5 + 0.1
        return output

    with torch.no_grad():
        for component, hook in model.backbone.layers[0].mixer.hook_points.items():
            # The unpatched run takes the same path, so that equality is exact.
            handle = hook.register_forward_hook(lambda *_: None)
            expected = model(ids, use_cache=False).logits
            handle.remove()
            handle = hook.register_forward_hook(patch)
            patched = model(ids, use_cache=False).logits
            handle.remove()
            assert torch.equal(patched[:, :5], expected[:, :5]), component
            assert not torch.equal(patched[:, 5:], expected[:, 5:]), component


@pytest.mark.parametrize("name", ["attention", "based_long", "hyena", "mamba,attention"])
def test_more_positions_than_learned_are_refused(name):
    model = lively(name, max_position_embeddings=8)
    out = model(tokens(time=8))
    with pytest.raises(UserError, match="9 tokens, but the model has learned 8 positions"):
        model(tokens(time=9))
    with pytest.raises(UserError, match="9 tokens"):
        model(tokens(time=1), cache=out.cache)
    assert lively("mamba").backbone.max_length is None
    assert lively("h3")(tokens(time=1030), use_cache=False).logits.shape[1] == 1030


def test_learned_positions_are_added_to_the_embedding():
    model, ids = lively("attention"), tokens(time=6)
    table = model.backbone.pos_embed.weight
    with torch.no_grad():
        embedded = model.backbone.embed(ids) + table[:6]
        states = model(ids, output_hidden_states=True, use_cache=False).hidden_states
        assert torch.equal(states[0], embedded)
        table[3] += 1
        assert not torch.equal(
            model(ids, output_hidden_states=True, use_cache=False).hidden_states[0][:, 3],
            embedded[:, 3],
        )


def test_attention_without_positions_sees_a_set():
    ids = tokens(batch=1, time=6)
    swapped = ids[:, [1, 0, 2, 3, 4, 5]]
    assert not torch.equal(ids, swapped)
    for positions, same in (("none", True), ("learned", False), ("rope", False)):
        model = lively("attention", layers=1, positions=positions)
        with torch.no_grad():
            difference = (model(ids).logits - model(swapped).logits)[:, -1].abs().max()
        assert (float(difference) < 1e-5) is same, positions


@every_preset
def test_a_cache_is_reordered_repeated_and_copied_by_row(name):
    model, ids = lively(name), tokens(batch=3, time=7)
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits[:, -1]
        start = model(ids[:, :6], use_cache=True).cache
        reordered = copy.deepcopy(start)
        reordered.reorder_cache(torch.tensor([2, 0, 0]))
        out = model(ids[[2, 0, 0], 6:], cache=reordered).logits[:, -1]
        torch.testing.assert_close(out, whole[[2, 0, 0]], atol=2e-5, rtol=0)
        start.batch_repeat_interleave(2)
        assert start.batch_size == 6
        out = model(ids[:, 6:].repeat_interleave(2, 0), cache=start).logits[:, -1]
        torch.testing.assert_close(out, whole.repeat_interleave(2, 0), atol=2e-5, rtol=0)
    start.reset()
    assert (start.batch_size, start.get_seq_length()) == (-1, 0)
    with pytest.raises(UserError, match="cannot forget"):
        start.crop(1)


def test_padding_is_harmless_on_the_right_and_refused_on_the_left():
    model, ids = lively("mamba,attention"), tokens(batch=2, time=8)
    mask = torch.ones_like(ids)
    mask[0, 5:] = 0
    with torch.no_grad():
        padded = model(ids, attention_mask=mask, use_cache=False).logits
        short = model(ids[:1, :5], use_cache=False).logits
    torch.testing.assert_close(padded[:1, :5], short, atol=1e-5, rtol=0)
    for bad in (mask.flip(1), torch.zeros_like(mask), mask[:, None, None]):
        with pytest.raises(UserError, match="padding before real tokens"):
            model(ids, attention_mask=bad)
    with pytest.raises(UserError, match="position_ids"):
        model(ids, position_ids=torch.arange(8))
    with pytest.raises(UserError, match="exactly one"):
        model()


def std(weight):
    return float(weight.detach().std(correction=0))


def test_initial_weights_follow_the_rule():
    torch.manual_seed(0)
    arguments = {"width": 128, "layers": 2, "vocab_size": 1000}
    normal = MixerLMForCausalLM(MixerLMConfig.preset("attention", **arguments)).backbone
    torch_default = MixerLMForCausalLM(
        MixerLMConfig.preset("attention", init="pytorch", **arguments)
    ).backbone
    block = normal.layers[0]
    for weight, expected in (
        (normal.embed.weight, 0.02), (normal.pos_embed.weight, 0.02),
        (block.mixer.qkv_proj.weight, 0.02), (block.mlp.up_proj.weight, 0.02),
        (block.mixer.out_proj.weight, 0.01), (block.mlp.down_proj.weight, 0.01),
    ):  # fmt: skip
        assert std(weight) == pytest.approx(expected, rel=0.03)
    assert not block.mixer.out_proj.bias.any()
    assert not block.mlp.up_proj.bias.any()
    block = torch_default.layers[0]
    assert std(torch_default.embed.weight) == pytest.approx(0.02, rel=0.03)
    for linear, inputs in ((block.mixer.out_proj, 128), (block.mlp.down_proj, 512)):
        bound = inputs**-0.5  # uniform within ±bound has a deviation of bound / √3
        assert std(linear.weight) == pytest.approx(bound / 3**0.5, rel=0.03)
        assert float(linear.weight.abs().max()) <= bound
        assert float(linear.bias.abs().max()) > 0.8 * bound


@pytest.mark.parametrize(
    "name", ["attention", "based", "base_conv", "hyena", "h3", "delta_net", "gated_delta_net"]
)
def test_every_linear_of_every_mixer_follows_the_rule(name):
    torch.manual_seed(0)
    config = MixerLMConfig.preset(name, width=64, layers=2, vocab_size=26)
    model = MixerLMForCausalLM(config)
    last = ("mixer.out_proj", "mlp.down_proj")
    for path, module in model.backbone.named_modules():
        if isinstance(module, torch.nn.Linear):
            expected = 0.01 if path.endswith(last) else 0.02  # 0.02 / √(2 · 2 layers)
            error = 4 / (2 * module.weight.numel()) ** 0.5  # of an estimated deviation
            assert std(module.weight) == pytest.approx(expected, rel=error), path
            assert module.bias is None or not module.bias.any(), path


def test_mamba_keeps_its_authors_initial_weights_in_a_hybrid():
    torch.manual_seed(0)
    config = MixerLMConfig.preset("mamba,attention", width=128, layers=2, vocab_size=26)
    mamba, attention = (b.mixer for b in MixerLMForCausalLM(config).backbone.layers)
    assert std(mamba.in_proj.weight) == pytest.approx(128**-0.5 / 3**0.5, rel=0.03)
    # Kaiming-uniform over √layers.
    assert std(mamba.out_proj.weight) == pytest.approx(256**-0.5 / 3**0.5 / 2**0.5, rel=0.03)
    assert std(attention.qkv_proj.weight) == pytest.approx(0.02, rel=0.03)
