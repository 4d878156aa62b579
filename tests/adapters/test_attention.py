"""Attention against a loop over queries and against transformers' Llama."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

from patchbench.adapters import MIXERS, MixerLMConfig

WIDTH = 16


def build(positions="none", **options):
    torch.manual_seed(0)
    config = MixerLMConfig.preset(
        "attention", width=WIDTH, layers=1, vocab_size=4, positions=positions, **options
    )
    return MIXERS["attention"](config, 0).eval()


def by_hand(mixer, x):
    """Softmax attention, one query at a time, in float64."""
    h, g, e = mixer.num_heads, mixer.num_kv_heads, mixer.head_dim
    weight = mixer.qkv_proj.weight.detach().numpy().astype(np.float64)
    q, k, v = np.split(x @ weight.T, [h * e, (h + g) * e], axis=-1)
    out = np.zeros((*x.shape[:2], h * e))
    for b, t, head in np.ndindex(x.shape[0], x.shape[1], h):
        group = head // (h // g)
        mine = slice(head * e, (head + 1) * e)
        theirs = slice(group * e, (group + 1) * e)
        scores = k[b, : t + 1, theirs] @ q[b, t, mine] / np.sqrt(e)
        weights = np.exp(scores) / np.exp(scores).sum()
        out[b, t, mine] = weights @ v[b, : t + 1, theirs]
    weight, bias = (p.detach().numpy() for p in (mixer.out_proj.weight, mixer.out_proj.bias))
    return out @ weight.T + bias


@pytest.mark.parametrize("watched", [False, True], ids=["fused", "eager"])
@pytest.mark.parametrize(("heads", "groups"), [(1, None), (4, None), (4, 2), (4, 1)])
def test_attention_is_softmax_over_the_past(heads, groups, watched):
    mixer = build(num_heads=heads, num_kv_heads=groups)
    x = torch.randn(2, 7, WIDTH)
    if watched:
        mixer.hook_points["attn_weights"].register_forward_hook(lambda *_: None)
    y, _ = mixer(x)
    np.testing.assert_allclose(y.detach().numpy(), by_hand(mixer, x.numpy()), atol=1e-6)


@pytest.mark.parametrize("groups", [4, 2])
def test_rotary_positions_are_llamas(groups):
    mixer = build("rope", num_heads=4, num_kv_heads=groups)
    config = LlamaConfig(
        hidden_size=WIDTH, num_attention_heads=4, num_key_value_heads=groups,
        attn_implementation="eager",
    )  # fmt: skip
    llama = LlamaAttention(config, 0).eval()
    parts = mixer.qkv_proj.weight.split([WIDTH, groups * 4, groups * 4])
    for projection, weight in zip((llama.q_proj, llama.k_proj, llama.v_proj), parts, strict=True):
        projection.weight.data = weight.detach()
    llama.o_proj.weight.data = mixer.out_proj.weight.detach()
    x = torch.randn(2, 9, WIDTH)
    angles = LlamaRotaryEmbedding(config)(x, torch.arange(9)[None])
    mask = torch.full((9, 9), -torch.inf).triu(1)[None, None]
    expected, _ = llama(hidden_states=x, position_embeddings=angles, attention_mask=mask)
    torch.testing.assert_close(mixer(x)[0] - mixer.out_proj.bias, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("positions", ["none", "rope"])
@pytest.mark.parametrize("watched", [False, True], ids=["fused", "eager"])
def test_a_continuation_equals_the_whole(positions, watched):
    mixer = build(positions, num_heads=4, num_kv_heads=2)
    if watched:
        mixer.hook_points["attn_weights"].register_forward_hook(lambda *_: None)
    x = torch.randn(3, 10, WIDTH)
    whole, _ = mixer(x)
    state, parts = mixer.initial_state(3, x.device, x.dtype), []
    for chunk in x.split([4, 1, 5], 1):
        y, state = mixer(chunk, state, return_state=True)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-6, rtol=0)


def test_the_weights_hook_sees_and_replaces_the_weights():
    mixer = build(num_heads=2)
    x = torch.randn(2, 5, WIDTH)
    seen = []

    def first_key_only(module, args, output):
        seen.append(output)
        weights = torch.zeros_like(output).view(2, 5, 2, 5)
        weights[..., 0] = 1
        return weights.view_as(output)

    mixer.hook_points["attn_weights"].register_forward_hook(first_key_only)
    y, _ = mixer(x)
    weights = seen[0].view(2, 5, 2, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 5, 2))
    assert not bool(weights.transpose(1, 2).triu(1).any())  # nothing from the future
    v = mixer.qkv_proj(x)[..., 2 * WIDTH :]
    expected = mixer.out_proj(v[:, :1].expand(2, 5, WIDTH))
    torch.testing.assert_close(y, expected, atol=1e-6, rtol=0)


def test_inner_hooks_see_projections_and_heads():
    mixer = build("rope", num_heads=4, num_kv_heads=2)
    x, seen = torch.randn(2, 5, WIDTH), {}
    for name in ("q", "k", "v", "head_output"):
        mixer.hook_points[name].register_forward_hook(
            lambda module, args, output, name=name: seen.__setitem__(name, output)
        )
    y, _ = mixer(x)
    q, k, v = mixer.qkv_proj(x).split([16, 8, 8], -1)
    for name, expected in (("q", q), ("k", k), ("v", v)):
        assert torch.equal(seen[name], expected)
    torch.testing.assert_close(mixer.out_proj(seen["head_output"]), y)
