"""H3 against the matrix exponential of the continuous system."""

import numpy as np
import pytest
import torch
from scipy.linalg import expm
from scipy.signal import lfilter

from patchbench.adapters import MIXERS, MixerLMConfig, MixerLMForCausalLM

WIDTH = 8


def build(**options):
    torch.manual_seed(0)
    config = MixerLMConfig.preset(
        "h3", width=WIDTH, layers=1, vocab_size=4, **{"d_state": 6, "d_conv": 5, **options}
    )
    mixer = MIXERS["h3"](config, 0).eval()
    mixer.init_weights(config)
    return mixer


def by_hand(mixer, x):
    """Shift by direct filtering; the state space as a real system under zero-order hold."""
    p = {n: q.detach().numpy().astype(np.float64) for n, q in mixer.named_parameters()}
    q, k, v = np.split(x @ p["in_proj.weight"].T + p["in_proj.bias"], 3, axis=-1)
    if "shift" in p:
        k = np.stack(
            [lfilter(p["shift"][c], [1.0], k[:, :, c], axis=1) for c in range(WIDTH)], axis=-1
        )
    e = mixer.head_dim
    out = np.zeros_like(x)
    for b, head in np.ndindex(x.shape[0], mixer.num_heads):
        system = np.kron(np.diag(-np.exp(p["log_A_real"][head])), np.eye(2)) + np.kron(
            np.diag(p["A_imag"][head]), [[0, -1], [1, 0]]
        )  # every complex state as a rotation and decay of the plane
        drive = np.tile([1.0, 0.0], len(p["A_imag"][head]))
        # The matrix exponential of the joint system discretises states and a held input exactly.
        joint = np.zeros((len(system) + 1, len(system) + 1))
        joint[:-1, :-1], joint[:-1, -1] = system, drive
        joint = expm(joint * np.exp(p["log_dt"][head]))
        read = 2 * (p["C"][head] * [1, -1]).ravel()  # 2 Re(C h)
        mine = slice(head * e, (head + 1) * e)
        for i, j in np.ndindex(e, e):
            state = np.zeros(len(system))
            for t in range(x.shape[1]):
                write = k[b, t, mine][i] * v[b, t, mine][j]
                state = joint[:-1, :-1] @ state + joint[:-1, -1] * write
                y = read @ state + p["D"][head] * write
                out[b, t, head * e + j] += q[b, t, mine][i] * y
    return out @ p["out_proj.weight"].T + p["out_proj.bias"]


@pytest.mark.parametrize("watched", [False, True], ids=["convolution", "recurrent"])
@pytest.mark.parametrize("options", [{}, {"head_dim": 4}, {"d_conv": 0}], ids=str)
def test_output_is_the_held_input_system(options, watched):
    mixer = build(**options)
    x = torch.randn(2, 9, WIDTH)
    if watched:
        mixer.hook_points["ssm_state"].register_forward_hook(lambda *_: None)
    y, _ = mixer(x)
    np.testing.assert_allclose(y.detach().numpy(), by_hand(mixer, x.numpy()), atol=5e-6)


@pytest.mark.parametrize("watched", [False, True], ids=["convolution", "recurrent"])
@pytest.mark.parametrize("d_conv", [0, 1, 5])
def test_a_continuation_equals_the_whole(d_conv, watched):
    mixer = build(d_conv=d_conv)
    x = torch.randn(3, 12, WIDTH)
    whole, last = mixer(x, return_state=True)
    if watched:
        mixer.hook_points["ssm_write"].register_forward_hook(lambda *_: None)
    state, parts = mixer.initial_state(3, x.device, x.dtype), []
    for chunk in x.split([1, 1, 6, 4], 1):
        y, state = mixer(chunk, state, return_state=True)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-5, rtol=0)
    torch.testing.assert_close(state["ssm_state"], last["ssm_state"], atol=1e-5, rtol=0)


def test_a_replaced_state_is_continued_from():
    mixer = build(d_conv=0)
    x, other = torch.randn(2, 8, WIDTH), torch.randn(2, 5, WIDTH)
    _, state = mixer(other, return_state=True)
    expected, _ = mixer(x[:, 5:], state)

    def swap(module, args, output):
        output = output.clone()
        output[:, 4] = state["ssm_state"].flatten(1)
        return output

    mixer.hook_points["ssm_state"].register_forward_hook(swap)
    torch.testing.assert_close(mixer(x)[0][:, 5:], expected, atol=1e-5, rtol=0)


def test_a_removed_write_is_as_if_the_token_wrote_nothing():
    mixer = build(d_conv=0)
    x = torch.randn(2, 8, WIDTH)

    def drop(component):
        def hook(module, args, output):
            output = output.clone()
            output[:, 3] = 0
            return output

        return mixer.hook_points[component].register_forward_hook(hook)

    handle = drop("ssm_input")
    expected, _ = mixer(x)
    handle.remove()
    drop("ssm_write")
    y, _ = mixer(x)
    torch.testing.assert_close(y[:, 4:], expected[:, 4:], atol=1e-5, rtol=0)
    # The D term reads the input itself, so there the two differ.
    assert not torch.allclose(y[:, 3], expected[:, 3], atol=1e-3)


def test_initialisation_is_s4ds():
    torch.manual_seed(0)
    config = MixerLMConfig.preset("h3", width=256, layers=2, vocab_size=4)
    mixer = MixerLMForCausalLM(config).backbone.layers[1].mixer
    # S4D-Lin: A = −1/2 + iπn.
    torch.testing.assert_close(mixer.log_A_real.exp(), torch.full((128, 32), 0.5))
    torch.testing.assert_close(mixer.A_imag, torch.pi * torch.arange(32.0).expand(128, 32))
    steps = mixer.log_dt.detach().exp()
    assert 0.001 <= float(steps.min()) < 0.002
    assert 0.05 < float(steps.max()) <= 0.1
    assert 0.3 < float((steps < 0.01).float().mean()) < 0.7  # uniform in the logarithm
    for weights, deviation in ((mixer.C, 0.5**0.5), (mixer.shift, 1), (mixer.D, 1)):
        assert float(weights.detach().std()) == pytest.approx(deviation, rel=0.2)
