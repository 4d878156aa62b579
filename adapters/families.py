"""The transformers families that are known by name: which of their modules is which component.

Use:

    hook_map = map_family(model, FAMILIES["llama"])

`mixer_output` and `mlp_output` are what the module returns; families that normalise it once more
before the residual sum (gemma2, olmo2) do so afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import nn

from patchbench.adapters.hook_map import HookMap, HookPoint, path_of
from patchbench.common import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, kw_only=True)
class Family:
    """Module names inside a model and inside its blocks.

    Attributes:
        blocks: the list of blocks.
        embed: the token embedding.
        mixer: the attention or state space module of a block; where kinds of blocks differ, their
            names, of which a block has one.
        mlp: the feed-forward module; None where a block has none, or none with a (batch, time,
            features) input and an output without the residual.
        mixer_output: where the mixer's output is read, if the mixer itself adds the residual.
        mlp_output: likewise for the MLP.
        heads: inside an attention module, the projection whose input is the heads' outputs side by
            side.
        qkv: inside an attention module, the projections that give q, k and v head by head; empty
            where they are one.
        alone: where a block has one part only, its mixer or an MLP in the same place: the values
            of the block's `block_type` with which it is the MLP.
        note: what the user should know.
    """

    blocks: str = "model.layers"
    embed: str = "model.embed_tokens"
    mixer: str | tuple[str, ...] = "self_attn"
    mlp: str | None = "mlp"
    mixer_output: str | None = None
    mlp_output: str | None = None
    heads: str | None = "o_proj"
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    alone: tuple[str, ...] = ()
    note: str | None = None


_GPT2 = Family(
    blocks="transformer.h", embed="transformer.wte", mixer="attn", heads="c_proj", qkv=()
)
_GPTJ = replace(_GPT2, heads="out_proj", qkv=Family.qkv)
_LLAMA = Family()
_MAMBA = Family(
    blocks="backbone.layers", embed="backbone.embeddings", mixer="mixer", mlp=None, heads=None
)
_HYBRID = Family(mixer=("mamba", "self_attn"), mlp="feed_forward")
_DELTA_HYBRID = Family(mixer=("linear_attn", "self_attn"))

# Among the mixers of a hybrid, those that are no attention.
_RECURRENT = ("mamba", "mamba_decoder.mamba", "linear_attn")

FAMILIES: dict[str, Family] = {
    "gpt2": _GPT2,
    "gpt_neo": replace(
        _GPT2,
        heads="attention.out_proj",
        qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    ),
    "gptj": _GPTJ,
    "codegen": replace(_GPTJ, qkv=()),
    "gpt_bigcode": _GPT2,
    "gpt_neox": Family(
        blocks="gpt_neox.layers",
        embed="gpt_neox.embed_in",
        mixer="attention",
        heads="dense",
        qkv=(),
    ),
    "opt": Family(
        blocks="model.decoder.layers",
        embed="model.decoder.embed_tokens",
        mlp=None,
        heads="out_proj",
        note="opt flattens batch and time before its MLP: it has no MLP components here",
    ),
    "bloom": Family(
        blocks="transformer.h",
        embed="transformer.word_embeddings",
        mixer="self_attention",
        mixer_output="self_attention.dense",
        mlp_output="mlp.dense_4h_to_h",
        heads="dense",
        qkv=(),
    ),
    "mpt": Family(
        blocks="transformer.blocks",
        embed="transformer.wte",
        mixer="attn",
        mlp="ffn",
        mlp_output="ffn.down_proj",
        heads="out_proj",
        qkv=(),
    ),
    "falcon": Family(
        blocks="transformer.h",
        embed="transformer.word_embeddings",
        mixer="self_attention",
        heads="dense",
        qkv=(),
    ),
    **dict.fromkeys(
        (
            "llama",
            "mistral",
            "mixtral",
            "qwen2",
            "qwen2_moe",
            "qwen3",
            "gemma",
            "gemma2",
            "gemma3_text",
            "olmo",
            "olmo2",
            "olmo3",
            "stablelm",
            "starcoder2",
            "cohere",
            "cohere2",
            "granite",
            "smollm3",
            "glm",
            "glm4",
            "exaone4",
            "helium",
            "nemotron",
        ),
        _LLAMA,
    ),
    "phi": Family(heads="dense"),
    "phi3": Family(qkv=()),
    "mamba": _MAMBA,
    "mamba2": _MAMBA,
    "falcon_mamba": _MAMBA,
    "jamba": _HYBRID,
    "bamba": _HYBRID,
    "granitemoehybrid": replace(
        _HYBRID,
        mlp=None,
        note="granitemoehybrid adds experts and a shared MLP: it has no MLP components here",
    ),
    "falcon_h1": replace(
        _HYBRID,
        note="in falcon_h1 attention stands beside the state space mixer of each block: the mixer "
        "components are the latter's, block components show both",
    ),
    "zamba2": Family(
        mixer=("mamba", "mamba_decoder.mamba"),
        mlp=None,
        note="in zamba2 a shared Transformer stands in front of the mixers of some blocks: it has "
        "no components of its own here, block components show both",
    ),
    # Their attention gates its heads, out of one projection with q.
    "qwen3_next": replace(_DELTA_HYBRID, qkv=()),
    "qwen3_5_text": replace(_DELTA_HYBRID, qkv=()),
    "olmo_hybrid": _DELTA_HYBRID,
    "nemotron_h": Family(
        embed="model.embeddings",
        mixer="mixer",
        mlp=None,
        alone=("mlp", "moe"),
        note="in nemotron_h a block is a mixer or an MLP, and has the components of that one",
    ),
    "recurrent_gemma": Family(
        mixer="temporal_block",
        mlp="mlp_block",
        note="inside the recurrent mixers of recurrent_gemma there are no components",
    ),
    "rwkv": Family(
        blocks="rwkv.blocks",
        embed="rwkv.embeddings",
        mixer="attention",
        mlp="feed_forward",
        heads=None,
        note="inside the mixers of rwkv there are no components; it halves its residual stream "
        "after every sixth block, so that a block_input may be half of the block_output before it",
    ),
}


def map_family(model: PreTrainedModel, family: Family) -> HookMap:
    """Return the map of a model of a known family.

    Raises:
        UserError: it is the bare decoder, without a language model head.
    """
    try:
        blocks = model.get_submodule(family.blocks)
    except AttributeError:
        raise UserError(
            f"{type(model).__name__} has no module {family.blocks!r}",
            "a model with its language model head is needed: AutoModelForCausalLM loads it",
        ) from None
    assert isinstance(blocks, nn.ModuleList)
    count = len(blocks)
    points: dict[tuple[int | None, str], HookPoint] = {(None, "embed"): embed_point(family.embed)}
    for layer, block in enumerate(blocks):
        path = f"{family.blocks}.{layer}"
        mixer, mlp = _mixer_of(block, family), family.mlp
        if getattr(block, "block_type", None) in family.alone:
            mixer, mlp = None, mixer
        points |= block_points(
            path,
            layer,
            mixer=mixer,
            mlp=mlp,
            mixer_output=family.mixer_output,
            mlp_output=family.mlp_output,
        )
        if mixer is not None:
            points |= _head_points(model, block, f"{path}.{mixer}", layer, family)
    return HookMap(
        model_type=str(model.config.model_type),
        origin="table",
        num_layers=count,
        blocks=family.blocks,
        points=points,
        head=path_of(model, model.get_output_embeddings()),
        notes=(family.note,) if family.note else (),
    )


def _mixer_of(block: nn.Module, family: Family) -> str:
    names = (family.mixer,) if isinstance(family.mixer, str) else family.mixer
    return next((name for name in names if part_of(block, name) is not None), names[0])


def part_of(module: nn.Module, path: str) -> nn.Module | None:
    """Return a module below another; None where there is none of that name."""
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None


def _head_points(
    model: PreTrainedModel, block: nn.Module, mixer: str, layer: int, family: Family
) -> dict[tuple[int | None, str], HookPoint]:
    """Return the places inside an attention module whose features are heads side by side."""
    name = mixer.rpartition(f".{layer}.")[2]
    # The delta rule's mixer may name its projections as attention does, and has heads of its own.
    if (
        family.heads is None
        or name in _RECURRENT
        or part_of(block, f"{name}.{family.heads}") is None
    ):
        return {}
    config = model.config.get_text_config()
    query = int(config.num_attention_heads)
    # Fewer keys and values than queries where queries share them (grouped-query attention).
    shared = int(getattr(config, "num_key_value_heads", None) or query)
    points: dict[tuple[int | None, str], HookPoint] = {
        (layer, "head_output"): HookPoint(
            component="head_output",
            path=f"{mixer}.{family.heads}",
            io="input",
            layer=layer,
            heads=query,
        )
    }
    for component, path, heads in zip("qkv", family.qkv, (query, shared, shared), strict=False):
        points[layer, component] = HookPoint(
            component=component, path=f"{mixer}.{path}", io="output", layer=layer, heads=heads
        )
    return points


def embed_point(path: str) -> HookPoint:
    """Return the place of the token embedding's output."""
    return HookPoint(component="embed", path=path, io="output", layer=None)


def block_points(
    block: str,
    layer: int,
    *,
    mixer: str | None,
    mlp: str | None,
    mixer_output: str | None = None,
    mlp_output: str | None = None,
) -> dict[tuple[int | None, str], HookPoint]:
    """Return the outer places of one block.

    Args:
        block: path of the block.
        layer: its index.
        mixer: name inside the block; None where it has none.
        mlp: likewise.
        mixer_output: name of the module that gives the mixer's output; `mixer` if None.
        mlp_output: likewise.
    """
    places = [("block_input", block, "input"), ("block_output", block, "output")]
    if mixer is not None:
        places += [
            ("mixer_input", f"{block}.{mixer}", "input"),
            ("mixer_output", f"{block}.{mixer_output or mixer}", "output"),
        ]
    if mlp is not None:
        places += [
            ("mlp_input", f"{block}.{mlp}", "input"),
            ("mlp_output", f"{block}.{mlp_output or mlp}", "output"),
        ]
    return {
        (layer, component): HookPoint(component=component, path=path, io=io, layer=layer)  # pyright: ignore[reportArgumentType]
        for component, path, io in places
    }
