"""A half precision load of transformers' Mamba and Mamba-2 rounds the weights, not the decays."""

import pytest
import torch
from transformers import (
    Mamba2Config,
    Mamba2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedModel,
)

from patchbench.adapters import load_model

SIZES = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2}
PARTS = {"mamba": ["A_log", "D", "dt_proj.bias"], "mamba2": ["A_log", "D", "dt_bias"]}


def build(kind: str) -> PreTrainedModel:
    """A model with decays, skips and steps of its own in every channel."""
    torch.manual_seed(0)
    if kind == "mamba":
        model: PreTrainedModel = MambaForCausalLM(MambaConfig(**SIZES))
    else:
        heads = {"num_heads": 8, "head_dim": 8, "n_groups": 1, "state_size": 16}
        model = Mamba2ForCausalLM(Mamba2Config(**SIZES, **heads))
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if path.endswith(tuple(PARTS[kind])):
                parameter.add_(torch.randn_like(parameter) * 0.5)
    return model.eval()


@pytest.fixture(params=PARTS)
def kind(request):
    return request.param


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_decays_skips_and_step_biases_are_not_rounded(kind, dtype, tmp_path):
    model = build(kind)
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, dtype=dtype)
    assert loaded.dtype == dtype
    exact = dict(model.named_parameters())
    for path, parameter in loaded.model.named_parameters():
        if path.endswith(tuple("." + part for part in PARTS[kind])):
            assert torch.equal(parameter, exact[path]), path  # same dtype, same bits
        else:
            assert parameter.dtype == getattr(torch, dtype), path
    assert [note for note in loaded.notes if "float32" in note] == [
        f"{', '.join(PARTS[kind])} are kept in float32"
    ]


def test_logits_stay_near_those_of_float32(kind, tmp_path):
    model = build(kind)
    model.save_pretrained(tmp_path)
    ids = torch.randint(50, (4, 60), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        logits = load_model(tmp_path, dtype="bfloat16").model(ids, use_cache=False).logits
    error = (logits.float() - expected).abs().mean() / expected.std()
    assert 0 < float(error) < 0.02


def test_float32_has_no_note_and_other_loads_stay_as_they_were(kind, tmp_path):
    model = build(kind)
    model.save_pretrained(tmp_path)
    before = type(model)._keep_in_fp32_modules_strict
    assert not any("float32" in note for note in load_model(tmp_path).notes)
    assert type(model)._keep_in_fp32_modules_strict is before
    plain = type(model).from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in plain.parameters()} == {torch.bfloat16}
