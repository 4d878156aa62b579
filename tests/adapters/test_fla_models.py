"""flash-linear-attention's models: their map, on module trees without kernels, and what is missing.

The truth of a patch is a hook by hand on a module that is named here.
"""

import json
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import CONFIG_MAPPING, AutoConfig, MambaConfig, PreTrainedConfig

import patchbench as pb
from patchbench.adapters.fla_models import FLA_TYPES, map_fla, require_fla
from patchbench.adapters.probe import probe
from patchbench.common import UserError
from patchbench.engines import ENGINES
from patchbench.interventions import Intervention
from patchbench.sites import Site
from tests.adapters.fla_trees import MIXERS, RWKV, VOCAB, fla_tree
from tests.core.batches import patched_logits, random_batch

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
OUTER = {
    "block_input": ("", "input"),
    "mixer_input": ("attn", "input"),
    "mixer_output": ("attn", "output"),
    "mlp_input": ("mlp", "input"),
    "mlp_output": ("mlp", "output"),
    "block_output": ("", "output"),
}
INNER = {
    "delta_net": {"head_output": ("attn.o_proj", "input")},
    "gated_deltanet": {
        "gate": ("attn.g_proj", "output"),
        "head_output": ("attn.o_proj", "input"),
    },
    "gla": {
        **{name: (f"attn.{name}_proj", "output") for name in "qkv"},
        "gate": ("attn.g_proj", "output"),
        "head_output": ("attn.o_proj", "input"),
    },
    "rwkv7": {"gate": ("attn.g_lora", "output"), "head_output": ("attn.o_proj", "input")},
    "hgrn2": {},
    "gated_deltaproduct": {
        "gate": ("attn.g_proj", "output"),
        "head_output": ("attn.o_proj", "input"),
    },
    "hgrn": {"gate": ("attn.g_proj", "output")},
    "linear_attn": {
        **{name: (f"attn.{name}_proj", "output") for name in "qkv"},
        "head_output": ("attn.o_proj", "input"),
    },
    "retnet": {
        **{name: (f"attn.{name}_proj", "output") for name in "qkv"},
        "gate": ("attn.g_proj", "output"),
        "head_output": ("attn.o_proj", "input"),
    },
    "rwkv6": {"gate": ("attn.g_proj", "output"), "head_output": ("attn.o_proj", "input")},
    "transformer": {
        **{name: (f"attn.{name}_proj", "output") for name in "qkv"},
        "head_output": ("attn.o_proj", "input"),
    },
}


@pytest.mark.parametrize("kind", MIXERS)
def test_every_place_is_patched_as_by_hand(kind):
    model = fla_tree(kind)
    loaded = pb.load_model(model)
    expected = {**OUTER, **INNER[kind]}
    assert set(loaded.hook_map.components(1)) == set(expected)
    assert loaded.hook_map.origin == "table"
    assert "flash-linear-attention" in loaded.hook_map.notes[0]
    assert min(result.effect for result in probe(loaded)) > 0
    batch = random_batch(vocab=VOCAB)
    batch = replace(batch, corrupted={"key": (batch.clean + 1) % VOCAB})
    plan = [
        Intervention(sites=(Site.parse(f"L1.{name}@value"),), corruption="key") for name in expected
    ]
    for row in ENGINES["native"]().run(loaded, plan, batch).to_pylist():
        number = row["example"] - 100
        path, io = expected[row["component"]]
        path = path.replace("mlp", "ffn") if kind in RWKV else path
        block = model.get_submodule("model.layers.1")
        logits = patched_logits(
            model,
            block.get_submodule(path) if path else block,
            io,
            batch.corrupted["key"][number],
            batch.clean[number],
            int(batch.positions["value"][number]),
        )[-2]
        assert row["logit_patched"] == pytest.approx(float(logits[batch.answer[number]]), abs=2e-5)


def test_every_type_has_a_tree():
    assert set(MIXERS) == set(FLA_TYPES)


def test_heads_are_counted_on_the_mixer():
    """Grouped queries in attention, more value heads than key heads in the gated delta rule."""
    hook_map = map_fla(fla_tree("gated_deltanet", attention_in=(1,)))
    heads = {at: point.heads for at, point in hook_map.points.items() if point.heads}
    assert heads == {
        (0, "gate"): 4,
        (0, "head_output"): 4,
        (1, "q"): 4,
        (1, "k"): 2,
        (1, "v"): 2,
        (1, "head_output"): 4,
    }


def test_a_model_of_other_names_goes_through_inspection():
    model: Any = fla_tree("rwkv7")
    model.blocks = model.model.layers
    model.embeddings = model.model.embeddings
    model.get_input_embeddings = lambda: model.embeddings
    del model.model
    hook_map = map_fla(model)
    assert hook_map.origin == "inspection"
    assert hook_map.point(0, "mixer_output").path == "blocks.0.attn"


@pytest.fixture
def checkpoint(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gated_deltanet"}))
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path


def installed(monkeypatch: Any, register: Any = None) -> None:
    """Let `fla.models` be importable, running `register` when it is imported."""

    class Finder:
        @staticmethod
        def find_spec(name: str, *_: Any) -> Any:
            from importlib.machinery import ModuleSpec

            return ModuleSpec(name, Finder, is_package=True) if name == "fla.models" else None

        @staticmethod
        def create_module(spec: Any) -> ModuleType:
            return ModuleType(spec.name)

        @staticmethod
        def exec_module(module: ModuleType) -> None:
            if register is not None:
                register()

    monkeypatch.setitem(sys.modules, "fla", ModuleType("fla"))
    monkeypatch.setattr(sys.modules["fla"], "__path__", [], raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    monkeypatch.delitem(sys.modules, "fla.models", raising=False)


def test_without_the_package_and_a_gpu_both_are_named(checkpoint):
    with pytest.raises(UserError) as caught:
        pb.load_model(checkpoint, device="cpu")
    message = str(caught.value)
    assert "is a gated_deltanet model of flash-linear-attention" in message
    assert "missing the package flash-linear-attention and a GPU" in message
    assert "(the device is cpu)" in message
    assert "pip install flash-linear-attention" in message
    assert "\n" not in message


def test_with_the_package_the_gpu_alone_is_named(checkpoint, monkeypatch):
    installed(monkeypatch)
    with pytest.raises(UserError, match="here is missing a GPU that Triton compiles for"):
        pb.load_model(checkpoint, device="cpu")


def test_a_package_that_does_not_import_says_why(monkeypatch):
    def broken() -> None:
        raise RuntimeError("0 active drivers\n([]). There should only be one.")

    installed(monkeypatch, broken)
    with pytest.raises(UserError, match=r"that imports \(RuntimeError: 0 active drivers \(\[\]\)"):
        require_fla("x", {"model_type": "gla"}, CUDA)


def test_transformers_own_types_stay_its_own(monkeypatch):
    class Foreign(PreTrainedConfig):
        model_type = "mamba"

    Foreign.__module__ = "fla.models.mamba"
    installed(monkeypatch, lambda: AutoConfig.register("mamba", Foreign, exist_ok=True))
    try:
        require_fla("x", {"model_type": "rwkv7"}, CUDA)
        assert CONFIG_MAPPING["mamba"] is MambaConfig
    finally:
        AutoConfig.register("mamba", MambaConfig, exist_ok=True)


@pytest.mark.parametrize("config", [{}, {"model_type": "llama"}, {"d_model": 3}], ids=str)
def test_other_checkpoints_need_no_package(config):
    require_fla("x", config, CPU)


def test_the_list_of_models_names_them():
    from patchbench.adapters import list_models

    families = {info.name: info.description for info in list_models() if info.kind == "family"}
    assert {name for name, text in families.items() if "flash-linear" in text} == set(FLA_TYPES)
    assert families["llama"] == "transformers"
