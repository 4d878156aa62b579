"""Checkpoints of mamba-ssm's format: written here from scratch, read, and compared with loops."""

import json
import math

import pytest
import torch
import torch.nn.functional as F

import patchbench as pb
from patchbench.adapters.state_spaces import TOKENIZER, is_original

MAMBA1 = {"d_model": 32, "n_layer": 2, "vocab_size": 61, "ssm_cfg": {}, "rms_norm": True}
MAMBA2 = {
    **MAMBA1,
    "d_intermediate": 0,
    "attn_layer_idx": [],
    "attn_cfg": {},
    "ssm_cfg": {"layer": "Mamba2", "headdim": 16, "d_state": 12},
    "pad_vocab_size_multiple": 16,
    "tie_embeddings": True,
}
IDS = [5, 0, 17, 60, 17, 3, 3, 42, 9]


def write(folder, config, *, save=torch.save, file="pytorch_model.bin", drop=(), **changes):
    """Write a random checkpoint as mamba-ssm does; return its weights."""
    config = {**config, **changes}
    d, vocab = config["d_model"], config["vocab_size"]
    multiple = config.get("pad_vocab_size_multiple", 8)
    rows = math.ceil(vocab / multiple) * multiple
    draw = torch.Generator().manual_seed(0)

    def normal(*shape, scale=1.0):
        return torch.randn(*shape, generator=draw) * scale

    w = {"backbone.embedding.weight": normal(rows, d)}
    inner = 2 * d
    for layer in range(config["n_layer"]):
        m = {"out_proj.weight": normal(d, inner, scale=inner**-0.5)}
        if config["ssm_cfg"].get("layer") == "Mamba2":
            n, heads = config["ssm_cfg"]["d_state"], inner // config["ssm_cfg"]["headdim"]
            mixed = inner + 2 * n
            m |= {
                "in_proj.weight": normal(inner + mixed + heads, d, scale=d**-0.5),
                "conv1d.weight": normal(mixed, 1, 4, scale=0.5),
                "conv1d.bias": normal(mixed, scale=0.1),
                "dt_bias": normal(heads),
                "A_log": normal(heads),
                "D": normal(heads),
                "norm.weight": 1 + normal(inner, scale=0.1),
            }
        else:
            rank = math.ceil(d / 16)
            m |= {
                "in_proj.weight": normal(2 * inner, d, scale=d**-0.5),
                "conv1d.weight": normal(inner, 1, 4, scale=0.5),
                "conv1d.bias": normal(inner, scale=0.1),
                "x_proj.weight": normal(rank + 32, inner, scale=inner**-0.5),
                "dt_proj.weight": normal(inner, rank),
                "dt_proj.bias": normal(inner),
                "A_log": normal(inner, 16),
                "D": normal(inner),
            }
        w |= {f"backbone.layers.{layer}.mixer.{name}": value for name, value in m.items()}
        w[f"backbone.layers.{layer}.norm.weight"] = 1 + normal(d, scale=0.1)
    w["backbone.norm_f.weight"] = 1 + normal(d, scale=0.1)
    tied = config.get("tie_embeddings", True)
    w["lm_head.weight"] = w["backbone.embedding.weight"] if tied else normal(rows, d)
    folder.mkdir(exist_ok=True)
    save({name: value for name, value in w.items() if name not in drop}, folder / file)
    (folder / "config.json").write_text(json.dumps(config))
    return w


def rms(x, weight):
    return x * torch.rsqrt((x * x).mean() + 1e-5) * weight


def logits_by_hand(w, config, ids):
    """Return the logits (time, rows) token by token, with a plain recurrence per layer."""
    memory, out = {}, []
    for token in ids:
        x = w["backbone.embedding.weight"][token]
        for layer in range(config["n_layer"]):
            prefix = f"backbone.layers.{layer}."
            m = {k.removeprefix(f"{prefix}mixer."): v for k, v in w.items() if k.startswith(prefix)}
            step = step_mamba2 if config["ssm_cfg"].get("layer") == "Mamba2" else step_mamba1
            x = x + step(m, rms(x, w[f"{prefix}norm.weight"]), memory.setdefault(layer, {}))
        out.append(w["lm_head.weight"] @ rms(x, w["backbone.norm_f.weight"]))
    return torch.stack(out)


def convolve(m, u, memory):
    """Return SiLU(conv) of the last four inputs."""
    window = [*memory.get("conv", [torch.zeros_like(u)] * 3), u]
    memory["conv"] = window[1:]
    mixed = sum(m["conv1d.weight"][:, 0, i] * value for i, value in enumerate(window))
    return F.silu(mixed + m["conv1d.bias"])


def step_mamba1(m, x, memory):
    u, z = (m["in_proj.weight"] @ x).chunk(2)
    u = convolve(m, u, memory)
    rank = m["dt_proj.weight"].shape[1]
    low, B, C = (m["x_proj.weight"] @ u).split([rank, 16, 16])
    dt = F.softplus(m["dt_proj.weight"] @ low + m["dt_proj.bias"])
    h = memory.get("h", torch.zeros(len(u), 16))
    decay = torch.exp(-dt[:, None] * torch.exp(m["A_log"]))
    h = memory["h"] = decay * h + (dt * u)[:, None] * B
    return m["out_proj.weight"] @ ((h @ C + m["D"] * u) * F.silu(z))


def step_mamba2(m, x, memory):
    inner, heads = len(m["norm.weight"]), len(m["D"])
    n = (len(m["conv1d.bias"]) - inner) // 2
    z, u, dt = (m["in_proj.weight"] @ x).split([inner, inner + 2 * n, heads])
    u, B, C = convolve(m, u, memory).split([inner, n, n])
    u, dt = u.view(heads, -1), F.softplus(dt + m["dt_bias"])
    h = memory.get("h", torch.zeros(heads, u.shape[1], n))
    decay = torch.exp(-dt * torch.exp(m["A_log"]))
    h = memory["h"] = decay[:, None, None] * h + (dt[:, None] * u)[:, :, None] * B
    y = (h @ C + m["D"][:, None] * u).flatten() * F.silu(z)
    return m["out_proj.weight"] @ rms(y, m["norm.weight"])


@pytest.fixture
def words(tmp_path):
    """A tokenizer of words, as a folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"a": 0, "b": 1}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(tmp_path / "words")
    return tmp_path / "words"


def load(folder, words):
    return pb.load_model(folder, tokenizer=words, device="cpu")


@pytest.mark.parametrize("save", ["bin", "safetensors"])
@pytest.mark.parametrize("config", [MAMBA1, MAMBA2], ids=["mamba1", "mamba2"])
def test_logits_are_those_of_a_plain_recurrence(config, save, tmp_path, words):
    arguments = {}
    if save == "safetensors":
        from safetensors.torch import save_file

        arguments = {"save": save_file, "file": "model.safetensors", "drop": ("lm_head.weight",)}
    w = write(tmp_path / "m", config, **arguments)
    loaded = load(tmp_path / "m", words)
    with torch.no_grad():
        logits = loaded.model(torch.tensor([IDS]), use_cache=False).logits[0]
    truth = logits_by_hand(w, config, IDS)[:, :61]
    assert logits.shape == truth.shape
    torch.testing.assert_close(logits, truth, atol=1e-5 * truth.abs().max().item(), rtol=1e-5)
    assert loaded.vocab_size == 61
    assert "mamba-ssm's format" in loaded.notes[0]
    assert loaded.notes[1].startswith("rows 61–63 of the vocabulary stand for no token and are cut")


@pytest.mark.parametrize("config", [MAMBA1, MAMBA2], ids=["mamba1", "mamba2"])
def test_an_untied_head_is_kept(config, tmp_path, words):
    w = write(tmp_path / "m", config, tie_embeddings=False)
    loaded = load(tmp_path / "m", words)
    with torch.no_grad():
        logits = loaded.model(torch.tensor([IDS]), use_cache=False).logits[0]
    truth = logits_by_hand(w, config, IDS)[:, :61]
    torch.testing.assert_close(logits, truth, atol=1e-5 * truth.abs().max().item(), rtol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        {"d_model": 768, "n_layer": 2, "vocab_size": 50277, "ssm_cfg": {}, "rms_norm": True},
        {
            "d_model": 768,
            "n_layer": 2,
            "vocab_size": 50277,
            "ssm_cfg": {"layer": "Mamba2", "headdim": 64, "d_state": 128},
            "pad_vocab_size_multiple": 16,
        },
    ],
    ids=["mamba-130m", "mamba2-130m"],
)
def test_the_shape_of_the_released_ones(config, tmp_path, words):
    """As `state-spaces/mamba-130m` and `mamba2-130m`, at two layers; head dim implied."""
    w = write(tmp_path / "m", config)
    if "layer" in config["ssm_cfg"]:  # the released file names the layer only
        named = {**config, "ssm_cfg": {"layer": "Mamba2"}}
        (tmp_path / "m" / "config.json").write_text(json.dumps(named))
    loaded = load(tmp_path / "m", words)
    with torch.no_grad():
        logits = loaded.model(torch.tensor([IDS]), use_cache=False).logits[0]
    truth = logits_by_hand(w, config, IDS)[:, :50277]
    assert loaded.vocab_size == 50277
    torch.testing.assert_close(logits, truth, atol=1e-5 * truth.abs().max().item(), rtol=1e-5)


def test_the_tokenizer_is_the_one_they_were_trained_with(tmp_path):
    write(tmp_path / "m", MAMBA1)
    with pytest.raises(pb.UserError, match=f"{TOKENIZER} .*--tokenizer"):
        pb.load_model(tmp_path / "m", device="cpu")
    write(tmp_path / "m", MAMBA1, tokenizer=str(tmp_path / "nowhere"))
    with pytest.raises(pb.UserError, match="nowhere"):
        pb.load_model(tmp_path / "m", device="cpu")


@pytest.mark.parametrize(
    ("changes", "words_of_error"),
    [
        ({"attn_layer_idx": [1]}, r"attention in layers \[1\]"),
        ({"d_intermediate": 64}, "MLPs"),
        ({"rms_norm": False}, "LayerNorm"),
        ({"ssm_cfg": {"layer": "Mamba3"}}, "layer 'Mamba3'"),
        ({"ssm_cfg": {"d_stat": 8}}, "'d_stat', unknown"),
        ({"ssm_cfg": {"d_state": 8}}, "shape"),
        ({"ssm_cfg": {"layer": "Mamba2", "D_has_hdim": True}}, "D_has_hdim"),
        ({"ssm_cfg": {"layer": "Mamba2", "headdim": 15}}, "fit together"),
        ({"ssm_cfg": 3}, "ssm_cfg is 3"),
        ({"n_layer": "2"}, "n_layer='2'"),
        ({"n_layer": 3}, "lacks"),
        ({"n_layer": 1}, "no place"),
        ({"moe": True}, "'moe', unknown"),
    ],
)
def test_what_transformers_cannot_compute_is_refused(changes, words_of_error, tmp_path, words):
    write(tmp_path / "m", MAMBA1)
    (tmp_path / "m" / "config.json").write_text(json.dumps({**MAMBA1, **changes}))
    with pytest.raises(pb.UserError, match=words_of_error):
        load(tmp_path / "m", words)


def test_a_pickle_that_runs_code_is_refused(tmp_path, words):
    class Evil:
        def __reduce__(self):
            return (print, ("this ran",))

    write(tmp_path / "m", MAMBA1)
    torch.save({"backbone.embedding.weight": Evil()}, tmp_path / "m" / "pytorch_model.bin")
    with pytest.raises(pb.UserError, match="cannot be read"):
        load(tmp_path / "m", words)


def test_other_formats_are_not_taken_for_it():
    assert is_original(MAMBA1)
    assert not is_original({**MAMBA1, "model_type": "mamba"})
    assert not is_original({"vocab_size": 5, "n_layer": 2})
