"""The transformers families that are known by name: which of their modules is which component.

Use:

    hook_map = map_family(model, FAMILIES["llama"])

`mixer_output` and `mlp_output` are what the module returns; families that normalise it once more
before the residual sum (gemma2, olmo2) do so afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
        mixer: the attention or state space module of a block.
        mlp: the feed-forward module; None where a block has none, or none with a (batch, time,
            features) input and an output without the residual.
        mixer_output: where the mixer's output is read, if the mixer itself adds the residual.
        mlp_output: likewise for the MLP.
        note: what the user should know.
    """

    blocks: str = "model.layers"
    embed: str = "model.embed_tokens"
    mixer: str = "self_attn"
    mlp: str | None = "mlp"
    mixer_output: str | None = None
    mlp_output: str | None = None
    note: str | None = None


_GPT2 = Family(blocks="transformer.h", embed="transformer.wte", mixer="attn")
_LLAMA = Family()
_MAMBA = Family(blocks="backbone.layers", embed="backbone.embeddings", mixer="mixer", mlp=None)

FAMILIES: dict[str, Family] = {
    "gpt2": _GPT2,
    "gpt_neo": _GPT2,
    "gptj": _GPT2,
    "codegen": _GPT2,
    "gpt_bigcode": _GPT2,
    "gpt_neox": Family(blocks="gpt_neox.layers", embed="gpt_neox.embed_in", mixer="attention"),
    "opt": Family(
        blocks="model.decoder.layers",
        embed="model.decoder.embed_tokens",
        mlp=None,
        note="opt flattens batch and time before its MLP: it has no MLP components here",
    ),
    "bloom": Family(
        blocks="transformer.h",
        embed="transformer.word_embeddings",
        mixer="self_attention",
        mixer_output="self_attention.dense",
        mlp_output="mlp.dense_4h_to_h",
    ),
    "mpt": Family(
        blocks="transformer.blocks",
        embed="transformer.wte",
        mixer="attn",
        mlp="ffn",
        mlp_output="ffn.down_proj",
    ),
    "falcon": Family(
        blocks="transformer.h", embed="transformer.word_embeddings", mixer="self_attention"
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
            "phi",
            "phi3",
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
        ),
        _LLAMA,
    ),
    "mamba": _MAMBA,
    "mamba2": _MAMBA,
    "falcon_mamba": _MAMBA,
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
    count = len(blocks)  # pyright: ignore[reportArgumentType]
    points: dict[tuple[int | None, str], HookPoint] = {(None, "embed"): embed_point(family.embed)}
    for layer in range(count):
        points |= block_points(
            f"{family.blocks}.{layer}",
            layer,
            mixer=family.mixer,
            mlp=family.mlp,
            mixer_output=family.mixer_output,
            mlp_output=family.mlp_output,
        )
    return HookMap(
        model_type=str(model.config.model_type),
        origin="table",
        num_layers=count,
        blocks=family.blocks,
        points=points,
        head=path_of(model, model.get_output_embeddings()),
        notes=(family.note,) if family.note else (),
    )


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
