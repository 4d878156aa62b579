"""Loading: one line for everything that does not work."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, BertForMaskedLM, GPT2LMHeadModel

from tests.adapters.loading_helpers import refused, small_tokenizer
from tests.tiny_models import tiny


def _edit(folder: Path, **changes: Any) -> None:
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("./nowhere", "there is no model at './nowhere'"),
        ("/nowhere/at/all", "there is no model at"),
        ("two words", "there is no model at"),
        ("a/b/c", "there is no model at"),
        ("", "there is no model at"),
        ("-", "there is no model at"),
        ("x" * 300, "there is no model at"),
        ("/" + "x" * 300, "there is no model at .*too long"),
        ("/" + "x" * 300 + ".gguf", "there is no model at .*too long"),
        ("~nobody-of-that-name/x", "there is no model at .*home"),
        ("EleutherAI/pythia-70m", "not in the hub's cache, and HF_HUB_OFFLINE is set: .*network"),
        ("nowhere", "not in the hub's cache"),
        ("./nowhere.gguf", "there is no file ./nowhere.gguf"),
    ],
)
def test_unknown_models(name, pattern, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    refused(pattern, name)


def test_an_unreachable_hub_is_one_question_and_one_line(monkeypatch):
    import httpx
    from huggingface_hub import HfApi, constants

    asked = []

    def unreachable(self: Any, name: str, **_: Any) -> None:
        asked.append(name)
        raise httpx.ConnectError("[Errno -2] Name or service not known")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "model_info", unreachable)
    refused("the hub cannot be reached: .*network", "EleutherAI/pythia-70m")
    assert asked == ["EleutherAI/pythia-70m"]


def test_a_folder_without_weights(folder):
    (folder / "model.safetensors").unlink()
    refused("has no weights", folder)


def test_a_folder_without_config(folder):
    (folder / "config.json").unlink()
    refused("has no config.json", folder)


def test_a_folder_with_a_gguf_file_names_the_file(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    refused("has no config.json: give the file .*m.gguf", tmp_path)


def test_a_file_that_is_no_folder(folder):
    refused("is a file: give the folder", folder / "model.safetensors")


def test_a_config_that_is_not_json(folder):
    (folder / "config.json").write_text("{")
    refused("config.json is not JSON", folder)


@pytest.mark.parametrize("kept", [0, 4, 1000, 0.5, -8], ids=str)
def test_truncated_safetensors(folder, kept):
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * kept) if isinstance(kept, float) else kept])
    refused("the model cannot be read .*damaged or incomplete", folder)


def test_a_pickle_that_would_run_code_is_not_run(folder, tmp_path):
    import pickle

    mark = tmp_path / "ran"

    class Bomb:
        def __reduce__(self) -> Any:
            return Path.touch, (mark,)

    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"x": Bomb()}))
    refused("the model cannot be read", folder)
    assert not mark.exists()


def test_missing_weights_are_not_made_up(folder):
    file = folder / "model.safetensors"
    state = load_file(file)
    name = next(key for key in state if "h.1.attn.c_attn.weight" in key)
    del state[name]
    save_file(state, file, metadata={"format": "pt"})
    refused("lacks 1 weights, among them .*h.1.attn.c_attn.weight", folder)


@pytest.mark.parametrize(
    ("layers", "pattern"),
    [(1, r"no place for \d+ weights .*h\.1\."), (3, r"lacks 12 weights, among them .*h\.2\.")],
    ids=["fewer_layers", "more_layers"],
)
def test_a_config_of_another_depth(folder, layers, pattern):
    _edit(folder, n_layer=layers)
    refused(pattern, folder)


def test_a_config_of_another_width(folder):
    _edit(folder, n_embd=64)
    refused("the weights have other shapes than config.json says", folder)


@pytest.mark.parametrize("text", ["[]", "5", "null", '"x"'])
def test_a_config_that_holds_no_names(folder, text):
    (folder / "config.json").write_text(text)
    refused("config.json is no config", folder)


def test_a_config_with_absurdly_many_layers(folder):
    _edit(folder, n_layer=10**9)
    refused("asks for n_layer=1000000000: at most 9999", folder)


class Failing(GPT2LMHeadModel):
    def forward(self, *_, **__):
        raise IndexError("index out of range\nin self")


def test_a_forward_pass_that_fails_is_one_line():
    model = Failing(tiny("gpt2").config)
    refused(r"fails on 2 documents of 4 tokens \(IndexError: index out of range in self\)", model)


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
def test_weights_that_are_not_finite(folder, value):
    file = folder / "model.safetensors"
    state = load_file(file)
    name = next(key for key in state if "h.1.mlp.c_fc.weight" in key)
    state[name][3, 5] = value
    save_file(state, file, metadata={"format": "pt"})
    refused(r"weight transformer\.h\.1\.mlp\.c_fc\.weight holds NaN or infinite", folder)
    model: Any = tiny("gpt2")
    model.transformer.h[0].ln_1.weight.data[0] = value
    refused(r"weight transformer\.h\.0\.ln_1\.weight holds NaN or infinite", model)


def test_weights_that_exceed_float16(folder):
    file = folder / "model.safetensors"
    state = load_file(file)
    next(iter(state.values())).view(-1)[0] = 1e6
    save_file(state, file, metadata={"format": "pt"})
    refused("holds NaN or infinite values: they exceed float16", folder, dtype="float16")


def test_an_encoder(tmp_path):
    config = AutoConfig.for_model(
        "bert", hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=20
    )
    BertForMaskedLM(config).save_pretrained(tmp_path)
    refused("bert is an encoder|lacks|no place for", tmp_path)


def test_an_encoder_decoder(folder):
    _edit(folder, model_type="t5", is_encoder_decoder=True)
    refused(r"is an encoder-decoder model \(t5\)", folder)


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"model_type": "vit"}, "is not a causal language model: a decoder is needed"),
        ({"model_type": "gpt99"}, "gpt99"),
    ],
    ids=["images", "from_the_future"],
)
def test_other_model_types(folder, changes, pattern):
    _edit(folder, **changes)
    refused(pattern, folder)


def test_a_config_of_no_known_format(folder):
    (folder / "config.json").write_text(json.dumps({"d_model": 32, "n_layer": 2}))
    refused("no model_type that transformers knows", folder)


def test_code_in_a_checkpoint_needs_permission(folder):
    _edit(
        folder,
        model_type="mine",
        auto_map={"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"},
    )
    (folder / "code.py").write_text("raise SystemExit('ran')")
    refused("brings code of its own: .*--trust-remote-code", folder)


def test_a_damaged_tokenizer(folder):
    small_tokenizer().save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{")
    refused("the tokenizer cannot be read", folder)


def test_a_folder_without_the_tokenizer_asked_for(saved):
    refused("has no tokenizer", saved, tokenizer=saved)


@pytest.mark.parametrize(
    ("settings", "pattern"),
    [
        ({"dtype": None}, "unknown dtype 'None'"),
        ({"device": torch.device("cuda:99")}, "device 'cuda:99' is not there"),
        ({"dtype": "bfloat"}, "unknown dtype 'bfloat': did you mean 'bfloat16'"),
        ({"device": "gpu"}, "unknown device 'gpu': did you mean 'cpu'"),
        ({"device": "cuda:x"}, "unknown device 'cuda:x'"),
        ({"device": "cuda:99"}, r"device 'cuda:99' is not there: PyTorch sees \d+ CUDA devices"),
    ],
    ids=str,
)
def test_dtypes_and_devices_that_do_not_exist(saved, settings, pattern):
    refused(pattern, saved, **settings)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_that_is_absent(saved):
    refused("device 'cuda' is not there: PyTorch sees 0 CUDA devices", saved, device="cuda")


def test_a_model_object_is_not_converted_or_moved():
    refused("the model object is float32, not bfloat16", tiny("gpt2"), dtype="bfloat16")
    refused("the model object is on cpu, not on cuda|is not there", tiny("gpt2"), device="cuda")
    refused("Linear is an nn.Module whose components nobody knows", torch.nn.Linear(2, 2))
    refused("a int is no tokenizer", tiny("gpt2"), tokenizer=5)
    refused("GPT2Model has no module .*AutoModelForCausalLM", tiny("gpt2").base_model)
