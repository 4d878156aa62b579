"""The block around a mixer, and the model around the blocks, against GPT-2's with its weights."""

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM

VOCAB, WIDTH, LAYERS, HEADS, POSITIONS = 30, 16, 3, 4, 24
# GPT-2's name of what a layer has under ours.
PARTS = {
    "ln_1": "norm", "attn.c_attn": "mixer.qkv_proj", "attn.c_proj": "mixer.out_proj",
    "ln_2": "norm2", "mlp.c_fc": "mlp.up_proj", "mlp.c_proj": "mlp.down_proj",
}  # fmt: skip


@pytest.fixture
def pair() -> tuple[GPT2LMHeadModel, MixerLMForCausalLM]:
    """GPT-2 with exact GELU and no bias on q, k and v, and ours with the same large weights."""
    theirs = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=POSITIONS,
            activation_function="gelu",
        )
    ).eval()  # fmt: skip
    rng = torch.Generator().manual_seed(0)
    for name, parameter in theirs.named_parameters():
        if name.endswith("c_attn.bias"):
            parameter.data.zero_()
        else:
            parameter.data.normal_(mean=float("ln_" in name), std=0.3, generator=rng)
    config = MixerLMConfig.preset(
        "attention", width=WIDTH, layers=LAYERS, vocab_size=VOCAB, num_heads=HEADS,
        max_position_embeddings=POSITIONS,
    )  # fmt: skip
    mine = MixerLMForCausalLM(config).eval()
    assert mine.load_state_dict(renamed(theirs)).missing_keys == []
    return theirs, mine


def renamed(theirs: GPT2LMHeadModel) -> dict[str, Tensor]:
    """GPT-2's weights under our names; its "Conv1D" stores a Linear's weight transposed."""
    body = theirs.transformer
    weights = {
        "backbone.embed.weight": body.wte.weight, "lm_head.weight": body.wte.weight,
        "backbone.pos_embed.weight": body.wpe.weight,
        "backbone.norm.weight": body.ln_f.weight, "backbone.norm.bias": body.ln_f.bias,
    }  # fmt: skip
    for layer in range(LAYERS):
        for old, new in PARTS.items():
            for kind, value in body.h[layer].get_submodule(old).named_parameters():
                if not (old == "attn.c_attn" and kind == "bias"):
                    linear = kind == "weight" and value.dim() == 2
                    weights[f"backbone.layers.{layer}.{new}.{kind}"] = value.T if linear else value
    return weights


@pytest.mark.parametrize("steps", [1, 20])
def test_logits_and_gradients_are_gpt2s(pair, steps):
    ids = torch.randint(VOCAB, (3, steps), generator=torch.Generator().manual_seed(1))
    logits = [model(ids, use_cache=False).logits for model in pair]
    assert float(logits[0].detach().std()) > 0.5
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-5, atol=1e-5)
    for out in logits:
        out.logsumexp(-1).sum().backward()
    theirs, mine = pair
    for name, expected in (
        ("embed", theirs.transformer.wte), ("pos_embed", theirs.transformer.wpe),
        ("layers.0.norm", theirs.transformer.h[0].ln_1),
        ("layers.2.mlp.down_proj", theirs.transformer.h[2].mlp.c_proj),
    ):  # fmt: skip
        grad, truth = mine.backbone.get_submodule(name).weight.grad, expected.weight.grad
        truth = truth.T if "proj" in name else truth
        torch.testing.assert_close(grad, truth, rtol=1e-4, atol=2e-5 * float(truth.abs().max()))


def test_generated_tokens_are_gpt2s(pair):
    ids = torch.randint(VOCAB, (2, 5), generator=torch.Generator().manual_seed(1))
    chosen = [
        model.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
        for model in pair
    ]
    assert torch.equal(*chosen)
