"""Loading: what works, from a folder, an object and the hub's cache."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.utils import logging

from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM, load_model
from patchbench.adapters.probe import probe
from patchbench.common import UserError
from tests.adapters.loading_helpers import TOKENS, cached, small_tokenizer
from tests.adapters.test_state_spaces import MAMBA1, write
from tests.tiny_models import tiny


def test_a_folder_without_a_tokenizer(saved):
    loaded = load_model(saved)
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(TOKENS).logits, tiny("gpt2")(TOKENS).logits)
    assert loaded.tokenizer is None
    assert not loaded.model.training
    assert loaded.hook_map.origin == "table"
    assert (loaded.name, loaded.dtype, loaded.device) == (str(saved), "float32", "cpu")
    assert (loaded.vocab_size, loaded.max_positions) == (64, 64)
    assert loaded.num_parameters == sum(p.numel() for p in tiny("gpt2").parameters())
    assert loaded.notes == []


def test_a_folder_with_a_tokenizer(folder):
    small_tokenizer().save_pretrained(folder)
    tokenizer = load_model(str(folder)).tokenizer
    assert tokenizer is not None
    assert tokenizer("river dog")["input_ids"] == [3, 4]


def test_a_tokenizer_of_ones_own(saved, tmp_path):
    own = small_tokenizer()
    assert load_model(saved, tokenizer=own).tokenizer is own
    own.save_pretrained(tmp_path / "words")
    found = load_model(saved, tokenizer=tmp_path / "words").tokenizer
    assert found is not None
    assert found("dog")["input_ids"] == [4]


def test_pytorch_bin_weights(folder):
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    with torch.no_grad():
        logits = load_model(folder).model(TOKENS).logits
        torch.testing.assert_close(logits, tiny("gpt2")(TOKENS).logits)


@pytest.mark.parametrize("family", ["gpt_neox", "llama", "mamba", "gemma2"])
def test_a_round_trip_through_a_folder_is_exact(family, tmp_path):
    model = tiny(family)
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(
            loaded.model(TOKENS).logits, model(TOKENS).logits, rtol=0, atol=0
        )


def test_mixer_lm_from_a_folder(tmp_path):
    model = MixerLMForCausalLM(MixerLMConfig.preset("mamba", width=16, vocab_size=20)).eval()
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.hook_map.origin == "mixer_lm"
    assert loaded.max_positions is None
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(TOKENS % 20).logits, model(TOKENS % 20).logits)


def test_a_model_object_is_taken_as_it_is():
    model = tiny("llama").train()
    loaded = load_model(model)
    assert loaded.model is model
    assert model.training
    assert loaded.tokenizer is None
    assert loaded.name == "LlamaForCausalLM"
    half = load_model(tiny("llama").to(torch.bfloat16))
    assert half.dtype == "bfloat16"
    assert "bfloat16" in half.notes[0]
    assert load_model(half.model, dtype="bfloat16").notes == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "auto"])
def test_dtypes(folder, dtype):
    tiny("gpt2").to(torch.bfloat16).save_pretrained(folder)
    wanted = "bfloat16" if dtype == "auto" else dtype
    loaded = load_model(folder, dtype=dtype)
    assert loaded.dtype == wanted
    assert {p.dtype for p in loaded.model.parameters()} == {getattr(torch, wanted)}
    assert len(probe(loaded, [(0, "block_input")])) == 1


def test_buffers_that_older_versions_stored_are_no_reason_to_refuse(tmp_path):
    model = tiny("gpt_neox")
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    state = load_file(file)
    for layer in range(2):
        attention = f"gpt_neox.layers.{layer}.attention"
        state[f"{attention}.bias"] = torch.ones(1, 1, 64, 64)
        state[f"{attention}.masked_bias"] = torch.tensor(-1e9)
        state[f"{attention}.rotary_emb.inv_freq"] = torch.ones(2)
    save_file(state, file, metadata={"format": "pt"})
    loaded = load_model(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(TOKENS).logits, model(TOKENS).logits)


def test_nothing_is_printed_and_transformers_is_left_talking(saved):
    code = (
        "from patchbench.adapters import load_model\n"
        f"load_model({str(saved)!r})\n"
        "from tests.tiny_models import tiny\n"
        "load_model(tiny('mamba'))\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")
    before = (logging.get_verbosity(), logging.is_progress_bar_enabled())
    load_model(saved)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_the_random_state_is_left_alone(saved):
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002 - the global state is what is looked at
    load_model(saved)
    drawn = (torch.rand(1).item(), np.random.rand())  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    assert drawn == (torch.rand(1).item(), np.random.rand())  # noqa: NPY002


def test_a_cached_hub_model_loads_offline(saved, tmp_path, monkeypatch):
    """The ordinary from_pretrained way."""
    files = cached("somebody/tiny", saved, tmp_path, monkeypatch)
    loaded = load_model("somebody/tiny")
    assert loaded.name == "somebody/tiny"
    assert loaded.tokenizer is None  # transformers would make one up
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(TOKENS).logits, tiny("gpt2")(TOKENS).logits)
    small_tokenizer().save_pretrained(files)
    found = load_model("somebody/tiny").tokenizer
    assert found is not None
    assert found("dog")["input_ids"] == [4]


def test_an_original_state_space_checkpoint_by_its_hub_id(tmp_path, monkeypatch):
    write(tmp_path / "files", MAMBA1)
    small_tokenizer().save_pretrained(tmp_path / "words")
    here = load_model(tmp_path / "files", tokenizer=tmp_path / "words")
    cached("state-spaces/mamba-130m", tmp_path / "files", tmp_path / "cache", monkeypatch)
    loaded = load_model("state-spaces/mamba-130m", tokenizer=tmp_path / "words")
    assert loaded.name == "state-spaces/mamba-130m"
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(TOKENS).logits, here.model(TOKENS).logits)
    with pytest.raises(UserError, match="EleutherAI/gpt-neox-20b is not in the hub's cache"):
        load_model("state-spaces/mamba-130m")


def test_dtype_and_device_may_be_those_of_pytorch(saved):
    loaded = load_model(saved, dtype=torch.bfloat16, device=torch.device("cpu"))
    assert (loaded.dtype, loaded.device) == ("bfloat16", "cpu")
