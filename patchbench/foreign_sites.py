"""Other tools' names of places in a model, as sites.

Use:

    as_site("blocks.3.hook_resid_pre@value")               # "L3.block_input@value"
    as_expression(pyvene_config, hook_map, ["value"])      # for evaluate(sites=[…])
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from patchbench.common import UserError, near_names

if TYPE_CHECKING:
    import pyvene as pv

    from patchbench.adapters import HookMap

# TransformerLens: hook name without its block → component.
LENS = {
    "hook_resid_pre": "block_input",
    "hook_resid_post": "block_output",
    "hook_attn_out": "mixer_output",
    "hook_mlp_out": "mlp_output",
    "attn.hook_q": "q",
    "attn.hook_k": "k",
    "attn.hook_v": "v",
    "attn.hook_z": "head_output",
    "attn.hook_pattern": "attn_weights",
}
_BLOCK = re.compile(
    r"blocks\.(?P<layer>\*|\d{1,6}(?:\.\.\d{1,6})?)\.(?P<hook>[\w.]+)(?P<rest>.*)", re.S
)
# pyvene's own words for the places that exist in both.
PYVENE = {
    "block_input": "block_input",
    "block_output": "block_output",
    "attention_input": "mixer_input",
    "attention_output": "mixer_output",
    "mlp_input": "mlp_input",
    "mlp_output": "mlp_output",
    "attention_value_output": "head_output",
    "query_output": "q",
    "key_output": "k",
    "value_output": "v",
}


def as_site(text: str) -> str:
    """Return a site, or a pattern of some, that begins with a TransformerLens hook name; or `text`.

    Raises:
        UserError: a hook that no component stands for.
    """
    text = text.strip()
    if text.startswith("hook_embed"):
        return "embed" + text.removeprefix("hook_embed")
    match = _BLOCK.fullmatch(text)
    if match is None:
        return text
    if match["hook"] not in LENS:
        raise UserError(
            f"hook {match['hook']!r} of TransformerLens in {text!r} is no component here",
            near_names(match["hook"], LENS),
        )
    return f"L{match['layer']}.{LENS[match['hook']]}{match['rest']}"


def as_expression(
    config: "pv.IntervenableConfig", hook_map: "HookMap", positions: Sequence[str]
) -> str:
    """Return the representations of a pyvene config, patched together, as an expression of sites.

    Args:
        config: its components are pyvene's words or paths of modules, as in
            "transformer.h[0].output".
        hook_map: of the model.
        positions: one for each representation, or one for all; pyvene's config has none.

    Raises:
        UserError: a place that the map does not have, what is no exchange of whole positions or
            heads, or another number of positions.
    """
    places = list(config.representations)
    if len(positions) not in (1, len(places)):
        raise UserError(
            f"{len(positions)} positions for {len(places)} representations", "give one for each"
        )
    by_path = {
        f"{point.path}.{point.io}": (layer, name)
        for (layer, name), point in reversed(list(hook_map.points.items()))
    }
    kinds = config.intervention_types
    kinds = kinds if isinstance(kinds, list) else [kinds] * len(places)
    positions = list(positions) * (len(places) // len(positions))
    found = []
    for place, kind, position in zip(places, kinds, positions, strict=True):
        head = _head(place, kind)
        # pyvene counts in brackets, PyTorch with a dot.
        path = re.sub(r"\[(\d+)\]", r".\1", str(place.component))
        layer, component = by_path.get(path, (place.layer, PYVENE.get(path)))
        if component is None or (layer, component) not in hook_map.points:
            raise UserError(
                f"pyvene's component {place.component!r} in layer {place.layer} is no site here",
                near_names(path, [*PYVENE, *by_path]),
            )
        found.append(f"{'' if layer is None else f'L{layer}.'}{component}{head}@{position}")
    return " & ".join(found)


def _head(place: "pv.RepresentationConfig", kind: type) -> str:
    """Return "[3]" for an exchange of head 3, "" for one of whole positions.

    Raises:
        UserError: it is neither.
    """
    import pyvene as pv

    from patchbench.engines.safe_intervenable import HeadSwap

    if isinstance(place.intervention, HeadSwap):
        return f"[{place.intervention.head}]"
    # A part, or something else than the source's activation, would be other numbers.
    if kind is not pv.VanillaIntervention:
        raise UserError(
            f"pyvene's {getattr(kind, '__name__', kind)} is no interchange of activations",
            "take VanillaIntervention",
        )
    if place.unit != "pos" or place.subspace_partition or place.source_representation is not None:
        raise UserError(
            f"pyvene's {place.component!r} in unit {place.unit!r} is no whole position",
            "take unit 'pos' without a partition; heads are named as in L0.head_output[1]@value",
        )
    return ""
