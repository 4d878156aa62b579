"""One head's share of a component's features, and how a donor's activations fit into it.

Use:

    part = head_part(hook_map, site)                   # slice, or everything
    values = aligned(cached, hook_map, donor=donor, site=site)

An activation may come from another site than the one that it replaces, for example one head's
query from another head's: what counts is that both are equally wide.
"""

from typing import TYPE_CHECKING

from torch import Tensor

from patchbench.adapters.hook_map import HookMap
from patchbench.common import UserError

if TYPE_CHECKING:
    from patchbench.sites import Site


def heads_of(hook_map: HookMap, site: "Site") -> int:
    """Return how many heads the features of a site's component belong to; 1 for a whole site.

    Raises:
        UserError: the model has no such component or head.
    """
    point = hook_map.point(site.layer, site.component)
    if site.head is None:
        return 1
    if point.heads is None:
        raise UserError(f"{site}: {site.component} has no heads", "leave out [head]")
    if site.head >= point.heads:
        raise UserError(f"{site}: no head {site.head}", f"the heads are 0–{point.heads - 1}")
    return point.heads


def head_part(hook_map: HookMap, site: "Site", features: int) -> slice:
    """Return which of a component's features the site has.

    Raises:
        UserError: no such site, or heads that do not split the features evenly.
    """
    heads = heads_of(hook_map, site)
    if features % heads:
        raise UserError(
            f"{site}: {features} features do not split into {heads} heads",
            "patch the site without [head]",
        )
    width = features // heads
    start = width * (site.head or 0)
    return slice(start, start + width)


def aligned(values: Tensor, hook_map: HookMap, *, donor: "Site", site: "Site") -> Tensor:
    """Return a donor's activations with its features where the patched site has its own.

    Args:
        values: (B, positions, features) of the donor's component.
        hook_map: of the model.
        donor: where the values come from.
        site: where they go.

    Returns:
        (B, positions, features of the site's component); what is not the site's is 0.
    """
    if (donor.component, donor.head) == (site.component, site.head):
        return values
    mine = values[..., head_part(hook_map, donor, values.shape[-1])]
    heads = heads_of(hook_map, site)
    if heads == 1:
        return mine
    whole = mine.new_zeros(*mine.shape[:-1], mine.shape[-1] * heads)
    whole[..., head_part(hook_map, site, whole.shape[-1])] = mine
    return whole
