"""The models of flash-linear-attention (`fla-hub/…`): which of their modules is which component.

They have one layout: `model.embeddings`, and blocks with an `attn` (a linear attention, a delta
rule, or softmax attention in the layers of a hybrid that ask for it) and an `mlp` or `ffn`. The
names are read off the module tree, so that versions and options differ without harm. What happens
inside their kernels has no components.

Use:

    require_fla(name, config, device)      # before loading: UserError that says what is missing
    hook_map = map_fla(model)
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from patchbench.adapters.families import block_points, embed_point, part_of
from patchbench.adapters.hook_map import HookMap, HookPoint, path_of
from patchbench.adapters.inspection import map_by_inspection
from patchbench.common import UserError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

FLA_TYPES = (
    "delta_net",
    "gated_deltanet",
    "gated_deltaproduct",
    "gla",
    "hgrn",
    "hgrn2",
    "linear_attn",
    "retnet",
    "rwkv6",
    "rwkv7",
    "transformer",
)
# The devices that its kernels, written in Triton, are compiled for.
_DEVICES = ("cuda", "xpu")
# Types that fla registers in the place of transformers' own, and the latter's configs.
_SHARED = {"bitnet": "BitNetConfig", "mamba": "MambaConfig", "mamba2": "Mamba2Config"}
_BLOCKS = "model.layers"
# Mixers that read the weights of `o_proj` without calling it: a hook there never fires.
_BYPASSED = ("HGRN2Attention",)
# Mixers whose q, k and v are what q_proj, k_proj and v_proj give, unless a convolution follows.
_PROJECTED = ("Attention", "GatedLinearAttention", "MultiScaleRetention", "LinearAttention")


def require_fla(name: str, config: Mapping[str, Any], device: torch.device) -> None:
    """Make transformers' Auto classes know fla's models, if `config.json` names one of them.

    Args:
        name: of the checkpoint, for the message.
        config: content of its `config.json`.
        device: where the model is to run.

    Raises:
        UserError: the package is missing or does not import, or its kernels do not run there.
    """
    if config.get("model_type") not in FLA_TYPES:
        return
    missing, reason = [], ""
    before = "fla.models" in sys.modules
    try:
        importlib.import_module("fla.models")
    except ModuleNotFoundError as error:
        # fla-core alone has the package `fla`, and no models in it.
        missing.append("the package flash-linear-attention" if "fla" in str(error) else str(error))
    except Exception as error:  # on a machine without Triton, or with a transformers too new for it
        reason = " ".join(f" ({type(error).__name__}: {error})".split("\n"))[:160]
        missing.append(f"a flash-linear-attention that imports{reason}")
    if device.type not in _DEVICES:
        missing.append(f"a GPU that Triton compiles for (the device is {device.type})")
    if missing:
        raise UserError(
            f"{name} is a {config['model_type']} model of flash-linear-attention, and here is "
            f"missing {' and '.join(missing)}",
            "on a machine with a CUDA GPU: pip install flash-linear-attention, and --device cuda",
        )
    if not before:
        _keep_stock_types()


def _keep_stock_types() -> None:
    """Let transformers' own classes load what they loaded before fla was imported."""
    import transformers
    from transformers import CONFIG_MAPPING, AutoConfig

    for kind, stock in _SHARED.items():
        if CONFIG_MAPPING[kind].__module__.partition(".")[0] == "fla":
            AutoConfig.register(kind, getattr(transformers, stock), exist_ok=True)


def map_fla(model: PreTrainedModel) -> HookMap:
    """Return the map of a model of one of `FLA_TYPES`.

    Another package's model of such a type, whose modules have other names, goes through inspection.

    Raises:
        UserError: that finds no list of blocks.
    """
    stack = part_of(model, _BLOCKS)
    embedding = part_of(model, "model.embeddings")
    if (
        not isinstance(stack, nn.ModuleList)
        or embedding is None
        or any(part_of(block, "attn") is None or _mlp_of(block) is None for block in stack)
    ):
        return map_by_inspection(model)
    model_type = str(model.config.model_type)
    points: dict[tuple[int | None, str], HookPoint] = {
        (None, "embed"): embed_point("model.embeddings")
    }
    for layer, block in enumerate(stack):
        path = f"{_BLOCKS}.{layer}"
        points |= block_points(path, layer, mixer="attn", mlp=_mlp_of(block))
        for point in _inner_points(block.get_submodule("attn"), f"{path}.attn", layer):
            points[layer, point.component] = point
    return HookMap(
        model_type=model_type,
        origin="table",
        num_layers=len(stack),
        blocks=_BLOCKS,
        points=points,
        head=path_of(model, model.get_output_embeddings()),
        notes=(
            f"{model_type} is of flash-linear-attention: no components inside of its kernels; its "
            "names were checked on module trees without them",
        ),
    )


def _mlp_of(block: nn.Module) -> str | None:
    return next((name for name in ("mlp", "ffn") if part_of(block, name) is not None), None)


def _inner_points(mixer: nn.Module, path: str, layer: int) -> list[HookPoint]:
    """Return the places inside a mixer that are a module's input or output in every call."""
    kind, children = type(mixer).__name__, dict(mixer.named_children())
    queries = getattr(mixer, "num_heads", None)
    values = getattr(mixer, "num_v_heads", None) or queries
    shared = getattr(mixer, "num_kv_heads", None) or queries

    def point(component: str, module: str, io: Any, heads: int | None) -> HookPoint:
        return HookPoint(
            component=component, path=f"{path}.{module}", io=io, layer=layer, heads=heads
        )

    found = []
    if kind in _PROJECTED and "q_conv1d" not in children:
        heads = {"q": queries, "k": shared, "v": shared}
        found += [point(name, f"{name}_proj", "output", heads[name]) for name in heads]
    for gate in ("g_proj", "g_lora"):
        if gate in children:
            found.append(point("gate", gate, "output", values))
    if "o_proj" in children and values is not None and kind not in _BYPASSED:
        found.append(point("head_output", "o_proj", "input", values))
    return found
