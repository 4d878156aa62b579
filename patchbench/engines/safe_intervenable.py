"""pyvene's IntervenableModel without its silent traps.

pyvene 0.1.8 (1) removes every forward hook of the model after a call, whoever placed it, and with
them what `output_hidden_states` needs; (2) returns unpatched logits when a site never fires;
(3) does not know model classes outside its tables; (4) keeps reading only the first example's
positions after one call with an integer position; (5) switches the model to `eval()`, freezes its
parameters, and lengthens the caller's list of sources; (6) has no JSON form (an `Intervention`
has); (7) fails without a reason on ragged or negative positions. It also writes into the hooked
tensor itself, which reaches whoever else reads that tensor, and takes the first entry of a tuple
for the hidden state.

Here a call places, tracks and removes its own hooks only, each of which replaces the value that
passes instead of changing it; a site that does not fire exactly once is an error.

Use:

    config = swap_config(hook_map, model, [site])
    wrapped = SafeIntervenable(config, model)
    where = [[[4], [7]]]                                     # site, example, positions
    _, output = wrapped({"input_ids": base}, [{"input_ids": source}],
                        {"sources->base": (where, where)})

The class leans on private names of pyvene: its version is pinned.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import pyvene as pv
import torch
from pyvene.models.modeling_utils import HandlerList, do_intervention
from torch import Tensor, nn

from patchbench.adapters.hook_map import HookMap, HookPoint
from patchbench.adapters.hooking import input_hook, output_hook
from patchbench.adapters.pyvene_mapping import register_with_pyvene
from patchbench.common import UserError
from patchbench.engines.heads import heads_of
from patchbench.engines.one_by_one import Budget
from patchbench.sites import Site

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class HeadSwap(pv.VanillaIntervention):
    """Replace one head's slice of the features: (batch, positions, features)."""

    def __init__(self, *, head: int, heads: int) -> None:
        super().__init__()
        self.head, self.heads = head, heads

    def forward(self, base: Tensor, source: Tensor, subspaces: Any = None, **_: Any) -> Tensor:
        """Return `base` with the head's features of `source`.

        Raises:
            UserError: the features are no multiple of the heads.
        """
        width, rest = divmod(base.shape[-1], self.heads)
        if rest:
            raise UserError(
                f"{base.shape[-1]} features do not split into {self.heads} heads",
                "patch the site without [head]",
            )
        mine = slice(self.head * width, (self.head + 1) * width)
        patched = base.clone()
        patched[..., mine] = source[..., mine]
        return patched


class BoundedCollect(pv.CollectIntervention):
    """Collect (batch, positions, features); what the budget does not allow comes back empty."""

    def __init__(self, budget: Budget) -> None:
        super().__init__(keep_last_dim=True)
        self.budget = budget

    def forward(self, base: Tensor, source: Any = None, subspaces: Any = None, **_: Any) -> Tensor:
        """Return the activations, or an empty tensor."""
        return base if self.budget.take(base.nbytes) else base.new_empty(0)


def swap_config(
    hook_map: HookMap, model: "PreTrainedModel", sites: Sequence[Site]
) -> pv.IntervenableConfig:
    """Return the config that replaces the activations at `sites`.

    Raises:
        UserError: the model has no such layer, component or head.
    """
    register_with_pyvene(model)
    return pv.IntervenableConfig([_representation(hook_map, site) for site in sites])


def collect_config(
    model: "PreTrainedModel", points: Sequence[HookPoint], budget: Budget
) -> pv.IntervenableConfig:
    """Return the config that collects the activations at `points`."""
    register_with_pyvene(model)
    return pv.IntervenableConfig(
        [
            pv.RepresentationConfig(**_where(point), intervention=BoundedCollect(budget))
            for point in points
        ]
    )


def _representation(hook_map: HookMap, site: Site) -> pv.RepresentationConfig:
    where = _where(hook_map.point(site.layer, site.component))
    heads = heads_of(hook_map, site)
    if site.head is None:
        return pv.RepresentationConfig(**where, intervention_type=pv.VanillaIntervention)
    return pv.RepresentationConfig(**where, intervention=HeadSwap(head=site.head, heads=heads))


def _where(point: HookPoint) -> dict[str, Any]:
    if point.source is not None:
        raise UserError(
            f"{point.component} is inside the forward of {point.path}, where no hook reaches",
            "use --engine nnsight",
        )
    return {"layer": point.layer or 0, "component": f"{point.path}.{point.io}"}


class SafeIntervenable(pv.IntervenableModel):
    """See the module's docstring; the calls are those of `pyvene.IntervenableModel`."""

    _built = False

    def __init__(self, config: pv.IntervenableConfig, model: nn.Module, **kwargs: Any) -> None:
        super().__init__(config, model, **kwargs)
        self._built = True
        self._handles: list[Any] = []

    def disable_model_gradients(self) -> None:
        """Freeze the model when asked to, but not from the constructor."""
        if self._built:
            super().disable_model_gradients()

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        base: dict[str, Tensor],
        sources: Any = None,
        unit_locations: dict[str, Any] | None = None,
        source_representations: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Run the intervention; arguments and result are pyvene's.

        Raises:
            UserError: ragged or negative positions, positions behind the end, or a site that does
                not fire exactly once.
        """
        self.use_fast = False
        length = base["input_ids"].shape[1]
        for locations in (unit_locations or {}).values():
            _check_locations(locations, length)
        if isinstance(sources, list):
            sources = list(sources)
        if isinstance(source_representations, dict):
            source_representations = dict(source_representations)
        return super().forward(base, sources, unit_locations, source_representations, **kwargs)

    def _remove_forward_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _output_validation(self) -> None:
        for key, state in self._intervention_state.items():
            fired = state.setter_version()
            if fired != 1:
                raise UserError(
                    f"site {self.representations[key].component} fired {fired} times in a forward, "
                    "not once",
                    "this model computes it elsewhere: choose another component",
                )

    def _intervention_getter(self, keys: Sequence[str], unit_locations: Any) -> HandlerList:
        def getter(key: str, locations: Any) -> Callable[[Tensor], None]:
            def read(hidden: Tensor) -> None:
                self.activations[key] = hidden[self._index(key, hidden, locations)]
                self._intervention_state[key].inc_getter_version()

            return read

        return self._place(keys, [getter(*pair) for pair in zip(keys, unit_locations, strict=True)])

    def _intervention_setter(
        self,
        keys: Sequence[str],
        unit_locations_base: Any,
        subspaces: Any,
        intervention_additional_kwargs: dict[str, Any] | None = None,
    ) -> HandlerList:
        options = intervention_additional_kwargs or {}

        def setter(number: int, key: str) -> Callable[[Tensor], Tensor | None]:
            intervention = self.interventions[key]
            subspace = None if subspaces is None else subspaces[number]

            def replace(hidden: Tensor) -> Tensor | None:
                index = self._index(key, hidden, unit_locations_base[number])
                collects = isinstance(intervention, pv.CollectIntervention)
                source = None if collects else self.activations.get(key)
                if source is not None and source.shape != hidden[index].shape:
                    # pyvene would repeat one feature for all.
                    raise UserError(
                        f"site {self.representations[key].component} has activations of shape "
                        f"{tuple(hidden[index].shape)}, its source of {tuple(source.shape)}",
                        "take the source from a component of equal width",
                    )
                new = do_intervention(hidden[index], source, intervention, subspace, **options)
                self._intervention_state[key].inc_setter_version()
                if collects:
                    self.activations[key] = [new]
                    return None
                if isinstance(new, pv.InterventionOutput):
                    self.full_intervention_outputs.append(new)
                    new = new.output
                patched = hidden.clone()
                patched[index] = cast(Tensor, new).to(patched.dtype)
                return patched

            return replace

        return self._place(keys, [setter(number, key) for number, key in enumerate(keys)])

    def _place(
        self, keys: Sequence[str], functions: Sequence[Callable[[Tensor], Tensor | None]]
    ) -> HandlerList:
        handles = []
        for key, function in zip(keys, functions, strict=True):
            is_input = self.representations[key].component.endswith(".input")
            hook = input_hook(function) if is_input else output_hook(function)
            handles.append(self.intervention_hooks[key](hook, with_kwargs=True))
            self._handles.append(handles[-1])
        return HandlerList(handles)

    def _index(self, key: str, hidden: Tensor, locations: Any) -> tuple[Tensor, Tensor]:
        """Return the explicit (rows, positions) of each example's locations."""
        where = torch.as_tensor(locations, device=hidden.device)
        if hidden.dim() != 3 or where.dim() != 2 or len(where) != len(hidden):
            raise UserError(
                f"site {self.representations[key].component}: a tensor of shape "
                f"{tuple(hidden.shape)} with positions of shape {tuple(where.shape)}",
                "(batch, time, features) and (batch, positions) are needed",
            )
        return torch.arange(len(hidden), device=hidden.device)[:, None], where


def _check_locations(locations: Any, length: int) -> None:
    if locations is None:
        return
    if isinstance(locations, int):
        if not 0 <= locations < length:
            raise UserError(
                f"position {locations} of a sequence of {length} tokens",
                f"positions are 0–{length - 1}",
            )
        return
    for item in locations:
        _check_locations(item, length)
    # Examples are lists of integers; sites above them may have different numbers of positions.
    sizes = {
        len(item)
        for item in locations
        if isinstance(item, list | tuple) and all(isinstance(index, int) for index in item)
    }
    if len(sizes) > 1:
        raise UserError(
            f"the examples have different numbers of positions ({sorted(sizes)})",
            "give each as many as the others",
        )
