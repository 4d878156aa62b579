"""The map of a model that no table knows, found by looking at its modules.

A decoder is an embedding, one list of repeated blocks and a head. The list gives the block sites;
a block's mixer and MLP are recognised by their names, or by their place where one is left over.
What was found is said in the notes, and every load checks it by running the model.

Use:

    hook_map = map_by_inspection(model)
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torch import nn

from patchbench.adapters.families import block_points, embed_point
from patchbench.adapters.hook_map import HookMap, HookPoint, path_of
from patchbench.common import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_MIXER = re.compile(
    r"attn|attention|mixer|mamba|ssm|conv|retention|temporal|time_mix|rwkv|delta|recurrent|lstm"
)
_MLP = re.compile(r"mlp|ffn|feed_?forward|channel_mix|moe|experts|^ff$")
# Children that such a name may also belong to.
_NOT = re.compile(r"norm|(^|_)ln|drop|rotary|(^|_)act|gate$|bias|(^|_)pos")
# A feed-forward part that is no module of its own: its first and its last Linear.
_FIRST, _LAST = "fc1", "fc2"


def map_by_inspection(model: PreTrainedModel) -> HookMap:
    """Return the map of a decoder with one list of repeated blocks.

    Raises:
        UserError: there is no such list, or more than one, or the model is an encoder.
    """
    _refuse_encoders(model)
    blocks = _block_list(model)
    stack = model.get_submodule(blocks)
    assert isinstance(stack, nn.ModuleList)
    points: dict[tuple[int | None, str], HookPoint] = {
        (None, "embed"): embed_point(_embedding(model))
    }
    found: set[str] = set()
    for layer, block in enumerate(stack):
        mixers, mlps = _parts(block)
        mixer = mixers[0] if mixers else None
        mlp, mlp_output = (mlps[0], None) if mlps else _loose_mlp(block)
        points |= block_points(
            f"{blocks}.{layer}", layer, mixer=mixer, mlp=mlp, mlp_output=mlp_output
        )
        found.add(f"mixer {_told(mixers)}, MLP {_told(mlps or ([mlp] if mlp else []))}")
    model_type = str(model.config.model_type)
    return HookMap(
        model_type=model_type,
        origin="inspection",
        num_layers=len(stack),
        blocks=blocks,
        points=points,
        head=path_of(model, model.get_output_embeddings()),
        notes=(
            f"{model_type} is in no table; found by inspection: blocks {blocks}, "
            + "; ".join(sorted(found)),
        ),
    )


def _block_list(model: PreTrainedModel) -> str:
    lists: list[tuple[str, nn.ModuleList]] = []
    for name, module in model.named_modules():
        nested = any(name.startswith(f"{outer}.") for outer, _ in lists)
        if isinstance(module, nn.ModuleList) and len(module) and not nested:
            lists.append((name, module))
    # Lists of projections or adapters stand beside the blocks; blocks have children of their own.
    stacks = [name for name, module in lists if all(_is_block(item) for item in module)]
    if len(stacks) != 1:
        seen = ", ".join(stacks) or "none"
        raise UserError(
            f"cannot map model type {model.config.model_type!r}: one list of repeated blocks is "
            f"needed, found {seen}",
            "pass a HookMap to load_model",
        )
    return stacks[0]


def _is_block(module: nn.Module) -> bool:
    return sum(1 for _ in module.children()) >= 2


def _embedding(model: PreTrainedModel) -> str:
    path = path_of(model, model.get_input_embeddings())
    if path is not None:
        return path
    raise UserError(
        f"cannot map model type {model.config.model_type!r}: its embedding is not one of its "
        "modules",
        "pass a HookMap to load_model",
    )


def _refuse_encoders(model: PreTrainedModel) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    config, model_type = model.config, str(model.config.model_type)
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(f"{model_type} is an encoder-decoder model", "a decoder is needed")
    # Such a model loads as a causal one, too, and then sees the answer that it is asked for.
    if model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False):
        raise UserError(
            f"{model_type} is an encoder: every token sees those after it",
            "a decoder is needed, such as gpt2, llama or mamba",
        )


def _parts(block: nn.Module) -> tuple[list[str], list[str]]:
    """Return the children that may be the mixer, and those that may be the MLP, likeliest first."""
    names = [
        name
        for name, child in block.named_children()
        if any(child.children()) and not _NOT.search(name)
    ]
    mixers = [name for name in names if _MIXER.search(name)]
    mlps = [name for name in names if _MLP.search(name) and name not in mixers]
    rest = [name for name in names if name not in mixers and name not in mlps]
    if not mixers and len(rest) == 2 - bool(mlps):
        mixers.append(rest.pop(0))
    if mixers and not mlps and len(rest) == 1:
        mlps = rest
    return mixers, mlps


def _loose_mlp(block: nn.Module) -> tuple[str | None, str | None]:
    children = dict(block.named_children())
    return (_FIRST, _LAST) if _FIRST in children and _LAST in children else (None, None)


def _told(names: list[str]) -> str:
    if not names:
        return "not found"
    return names[0] + (f" (not {', '.join(names[1:])})" if names[1:] else "")
