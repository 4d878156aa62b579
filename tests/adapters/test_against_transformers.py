"""Mamba and Mamba-2 models against transformers' own, with its weights copied in."""

from typing import Any

import pytest
import torch
from transformers import (
    Mamba2Config,
    Mamba2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedModel,
)

from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM

VOCAB, WIDTH, LAYERS = 30, 32, 3


def mamba(d_conv: int) -> tuple[PreTrainedModel, MixerLMForCausalLM]:
    theirs = MambaForCausalLM(
        MambaConfig(
            vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=LAYERS, state_size=8,
            conv_kernel=d_conv,
        )
    )  # fmt: skip
    return theirs, ours("mamba", d_state=8, d_conv=d_conv)


def mamba2(d_conv: int, groups: int, chunk_size: int) -> tuple[PreTrainedModel, MixerLMForCausalLM]:
    theirs = Mamba2ForCausalLM(
        Mamba2Config(
            vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=LAYERS, state_size=8,
            num_heads=8, head_dim=8, n_groups=groups, conv_kernel=d_conv, chunk_size=16,
            tie_word_embeddings=True,
        )
    )  # fmt: skip
    return theirs, ours(
        "mamba2", d_state=8, d_conv=d_conv, head_dim=8, num_groups=groups, chunk_size=chunk_size
    )


def ours(name: str, **options: Any) -> MixerLMForCausalLM:
    config = MixerLMConfig.preset(
        name, width=WIDTH, layers=LAYERS, vocab_size=VOCAB, final_norm="rmsnorm", **options
    )
    return MixerLMForCausalLM(config)


MODELS = {
    "mamba": lambda: mamba(4),
    "mamba-d_conv-2": lambda: mamba(2),
    "mamba2": lambda: mamba2(4, 1, 64),
    "mamba2-groups-2-chunks-of-8": lambda: mamba2(4, 2, 8),
    "mamba2-d_conv-3": lambda: mamba2(3, 1, 16),
}
each = pytest.mark.parametrize("build", MODELS.values(), ids=MODELS.keys())
RENAMED = {"backbone.embeddings.": "backbone.embed.", "backbone.norm_f.": "backbone.norm."}


def copy_weights(source: PreTrainedModel, target: MixerLMForCausalLM) -> None:
    """Give both models the same large random weights; only three names differ."""
    rng = torch.Generator().manual_seed(0)
    for name, parameter in source.named_parameters():
        if "norm" not in name and not name.endswith(("A_log", ".D")):
            parameter.data.normal_(std=0.3, generator=rng)
    weights = {}
    for name, value in source.state_dict().items():
        for old, new in RENAMED.items():
            name = name.replace(old, new)
        weights[name] = value
    assert target.load_state_dict(weights).missing_keys == []


@each
@pytest.mark.parametrize("steps", [1, 7, 70])
def test_logits_and_gradients(build: Any, steps: int) -> None:
    theirs, mine = build()
    copy_weights(theirs, mine)
    ids = torch.randint(VOCAB, (3, steps), generator=torch.Generator().manual_seed(1))
    expected = theirs(ids, use_cache=False).logits
    logits = mine(ids, use_cache=False).logits
    assert expected.std() > 0.5
    torch.testing.assert_close(
        logits, expected, rtol=1e-5, atol=1e-5 * float(expected.detach().abs().max())
    )
    grads = []
    for model, out in ((theirs, expected), (mine, logits)):
        out.logsumexp(-1).sum().backward()
        grads.append(model.get_input_embeddings().weight.grad)
    scale = float(grads[0].abs().max())
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=2e-5 * scale)


@each
def test_states_after_a_prompt(build: Any) -> None:
    theirs, mine = build()
    copy_weights(theirs, mine)
    ids = torch.randint(VOCAB, (2, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        cache = theirs(ids, use_cache=True).cache
        states = mine(ids, use_cache=True).cache.states
    for layer, state in enumerate(states):
        expected = cache.layers[layer].recurrent_states
        expected = expected[0] if isinstance(expected, dict | list | tuple) else expected
        torch.testing.assert_close(state["ssm_state"], expected, rtol=1e-4, atol=1e-5)


@each
def test_tokens_chosen_by_generate(build: Any) -> None:
    theirs, mine = build()
    copy_weights(theirs, mine)
    ids = torch.randint(VOCAB, (2, 5), generator=torch.Generator().manual_seed(1))
    chosen = [
        model.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
        for model in (theirs.eval(), mine.eval())
    ]
    assert chosen[0].shape == (2, 17)
    assert torch.equal(*chosen)
