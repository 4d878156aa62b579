"""Linear attention against the recurrence over explicit features."""

import numpy as np
import pytest
import torch

from patchbench.adapters import MIXERS, MixerLMConfig

WIDTH = 12
MAPS = ("taylor", "elu", "identity")


def build(**options):
    torch.manual_seed(0)
    config = MixerLMConfig.preset(
        "linear_attention", width=WIDTH, layers=1, vocab_size=4, feature_dim=4, **options
    )
    return MIXERS["linear_attention"](config, 0).eval()


def features(kind, x):
    """The feature map by its definition, one vector."""
    if kind == "elu":
        return np.where(x > 0, x, np.exp(x) - 1) + 1
    scaled = x / len(x) ** 0.25
    if kind == "identity":
        return scaled
    return np.concatenate([[1.0], scaled, np.outer(scaled, scaled).ravel() / np.sqrt(2)])


def by_hand(mixer, kind, x, normalize):
    """The recurrence over a matrix of features and values, one position at a time."""
    weights = {n: p.detach().numpy().astype(np.float64) for n, p in mixer.named_parameters()}
    q, k, v = (x @ weights[f"{n}_proj.weight"].T for n in "qkv")
    h, d, e = mixer.num_heads, mixer.feature_dim, mixer.head_dim
    out = np.zeros((*x.shape[:2], h * e))
    for b, head in np.ndindex(x.shape[0], h):
        memory, total = 0.0, 0.0
        keys, values = slice(head * d, (head + 1) * d), slice(head * e, (head + 1) * e)
        for t in range(x.shape[1]):
            phi = features(kind, k[b, t, keys])
            memory = memory + np.outer(phi, v[b, t, values])
            total = total + phi
            asked = features(kind, q[b, t, keys])
            out[b, t, values] = asked @ memory / (asked @ total if normalize else 1)
    return out @ weights["out_proj.weight"].T


@pytest.mark.parametrize("watched", [False, True], ids=["quadratic", "recurrent"])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("kind", MAPS)
def test_output_is_the_recurrence(kind, heads, watched):
    mixer = build(feature_map=kind, num_heads=heads)
    x = torch.randn(2, 9, WIDTH)
    if watched:
        mixer.hook_points["ssm_state"].register_forward_hook(lambda *_: None)
    y, _ = mixer(x)
    expected = by_hand(mixer, kind, x.numpy(), normalize=kind != "identity")
    np.testing.assert_allclose(y.detach().numpy(), expected, atol=2e-6)


def test_normalisation_is_an_option():
    mixer = build(feature_map="taylor", normalize=False)
    x = torch.randn(1, 6, WIDTH)
    expected = by_hand(mixer, "taylor", x.numpy(), normalize=False)
    np.testing.assert_allclose(mixer(x)[0].detach().numpy(), expected, atol=2e-6)


def test_taylor_weights_are_the_exponential_to_second_order():
    mixer = build(feature_map="taylor")
    x, seen = 0.1 * torch.randn(1, 4, WIDTH), []
    mixer.hook_points["attn_weights"].register_forward_hook(lambda m, a, out: seen.append(out))
    mixer(x)
    scores = (mixer.q_proj(x) @ mixer.k_proj(x).transpose(1, 2) / 2).exp().tril()
    expected = scores / scores.sum(-1, keepdim=True)
    torch.testing.assert_close(seen[0], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("watched", [False, True], ids=["quadratic", "recurrent"])
@pytest.mark.parametrize("kind", MAPS)
def test_a_continuation_equals_the_whole(kind, watched):
    mixer = build(feature_map=kind, num_heads=2)
    x = torch.randn(3, 10, WIDTH)
    whole, last = mixer(x, return_state=True)
    if watched:
        mixer.hook_points["ssm_write"].register_forward_hook(lambda *_: None)
    state, parts = mixer.initial_state(3, x.device, x.dtype), []
    for chunk in x.split([4, 1, 5], 1):
        y, state = mixer(chunk, state, return_state=True)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=2e-6, rtol=0)
    torch.testing.assert_close(state["ssm_state"], last["ssm_state"], atol=1e-5, rtol=0)


def test_a_replaced_state_is_continued_from():
    mixer = build(num_heads=2)
    x, other = torch.randn(2, 8, WIDTH), torch.randn(2, 5, WIDTH)
    _, state = mixer(other, return_state=True)
    expected, _ = mixer(x[:, 5:], state)

    def swap(module, args, output):
        output = output.clone()
        output[:, 4] = state["ssm_state"].flatten(1)
        return output

    mixer.hook_points["ssm_state"].register_forward_hook(swap)
    torch.testing.assert_close(mixer(x)[0][:, 5:], expected, atol=1e-6, rtol=0)


def test_replaced_weights_count_on_both_paths():
    mixer = build(num_heads=1)
    x = torch.randn(2, 6, WIDTH)
    expected = mixer.out_proj(mixer.v_proj(x))

    def own_position_only(module, args, output):
        return torch.eye(6).expand_as(output)

    mixer.hook_points["attn_weights"].register_forward_hook(own_position_only)
    torch.testing.assert_close(mixer(x)[0], expected, atol=1e-6, rtol=0)
    mixer.hook_points["ssm_state"].register_forward_hook(lambda *_: None)
    torch.testing.assert_close(mixer(x)[0], expected, atol=1e-6, rtol=0)
