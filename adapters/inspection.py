"""The map of a model that no table knows, found by looking at its modules.

A decoder is an embedding, one list of repeated blocks and a head. The list gives the block sites;
a block's mixer and MLP are recognised by their names. What was found is said in the notes, and
the probe that follows every load proves that the sites fire and matter.

Use:

    hook_map = map_by_inspection(model)
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torch import nn

from patchbench.adapters.families import block_points, embed_point
from patchbench.adapters.hook_map import HookMap
from patchbench.common import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_MIXER = re.compile(
    r"attn|attention|mixer|mamba|ssm|conv|retention|temporal|time_mix|rwkv|delta|recurrent|hyena"
)
_MLP = re.compile(r"mlp|ffn|feed_?forward|channel_mix|moe|experts|^ff$")
# Children that such a name may also belong to.
_NOT = re.compile(r"norm|ln|dropout|drop_path|rotary|act|gate$|bias|pos")


def map_by_inspection(model: PreTrainedModel) -> HookMap:
    """Return the map of a decoder with one list of repeated blocks.

    Raises:
        UserError: there is no such list, or more than one.
    """
    blocks = _block_list(model)
    stack = model.get_submodule(blocks)
    assert isinstance(stack, nn.ModuleList)
    points = {(None, "embed"): embed_point(_embedding(model))}
    found: set[str] = set()
    for layer, block in enumerate(stack):
        mixer, mlp = _child(block, _MIXER), _child(block, _MLP)
        points |= block_points(f"{blocks}.{layer}", layer, mixer=mixer, mlp=mlp)
        found.add(f"mixer {mixer or 'not found'}, MLP {mlp or 'not found'}")
    model_type = str(model.config.model_type)
    return HookMap(
        model_type=model_type,
        origin="inspection",
        num_layers=len(stack),
        blocks=blocks,
        points=points,
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
    embedding = model.get_input_embeddings()
    for name, module in model.named_modules():
        if module is embedding:
            return name
    raise UserError(
        f"cannot map model type {model.config.model_type!r}: its embedding is not one of its "
        "modules",
        "pass a HookMap to load_model",
    )


def _child(block: nn.Module, pattern: re.Pattern[str]) -> str | None:
    """Return the first child whose name says so and that is more than one weight."""
    for name, child in block.named_children():
        if pattern.search(name) and not _NOT.search(name) and any(child.children()):
            return name
    return None
