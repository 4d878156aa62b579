"""From a model, a task and settings to what an engine runs: batches and interventions.

Use:

    prepared = prepare(model, task, EvaluateConfig(n=64))
    prepared.batches, prepared.plan                   # engine.run(loaded, plan, batch)
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from patchbench import controls, soft_controls
from patchbench.common import UserError, near_names
from patchbench.engines.base import Batch, make_batches
from patchbench.evaluation_config import ALL, DEFAULT_POSITIONS, READ_OUT, EvaluateConfig
from patchbench.inputs import Inputs, model_inputs
from patchbench.interventions import Direction, Intervention
from patchbench.selfcheck import refuse_unreachable
from patchbench.site_expressions import Patch, expand
from patchbench.sites import Position, Site
from patchbench.windows import window_positions, with_windows

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel

    from patchbench.adapters import HookMap, LoadedModel
    from patchbench.tasks import Task


# Interventions that an engine is given at a time: what a killed run loses of a batch, at most.
CHUNK = 512


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What an evaluation runs.

    Attributes:
        inputs: the examples as the model reads them.
        batches: of them, with the roles that the plan needs.
        plan: the interventions, controls first in each corruption and direction.
        grid: the settings that the sites come from, as they were resolved.
    """

    config: EvaluateConfig
    loaded: "LoadedModel"
    task: "Task"
    inputs: Inputs
    batches: list[Batch]
    plan: list[Intervention]
    grid: dict[str, Any]


def prepare(
    model: "str | PreTrainedModel | LoadedModel", task: "str | Task", config: EvaluateConfig
) -> Prepared:
    """Load what is not loaded, and work out what is to be run; see `evaluation.evaluate`.

    Raises:
        UserError: something asked for does not exist or does not fit.
    """
    from patchbench.adapters import LoadedModel, load_model
    from patchbench.adapters.probe import probe
    from patchbench.tasks import Task, load_task

    loaded = model if isinstance(model, LoadedModel) else load_model(model)
    task = task if isinstance(task, Task) else load_task(task)
    inputs = model_inputs(
        loaded,
        task,
        split=config.split,
        n=config.n,
        corruptions=config.corruptions,
        template=config.template,
        shots=config.shots,
        seed=config.seed,
    )
    batches = soft_controls.prepare(
        [
            controls.with_partner(with_windows(batch) if config.positions == (ALL,) else batch)
            for batch in make_batches(inputs.dataset, config.batch_size, config.corruptions)
        ]
    )
    patches, grid = _patches(loaded.hook_map, inputs.dataset, batches, config)
    touched = [site for patch in patches for part in patch for site in part]
    _check_positions(batches, {site.position for site in touched})
    probe(loaded, {(site.layer, site.component) for site in touched})
    plan = _plan(loaded.hook_map, patches, config)
    refuse_unreachable(loaded, plan, config.engine)
    return Prepared(
        config=config,
        loaded=loaded,
        task=task,
        inputs=inputs,
        batches=batches,
        plan=plan,
        grid=grid,
    )


def parts(
    batches: Sequence[Batch], plan: Sequence[Intervention]
) -> list[tuple[Batch, Sequence[Intervention]]]:
    """Return what an engine is given, one after the other."""
    return [
        (batch, plan[start : start + CHUNK])
        for batch in batches
        for start in range(0, len(plan), CHUNK)
    ]


def default_positions(dataset: "Dataset") -> tuple[str, ...]:
    """Return the default positions, with the read-out where it is not the query itself."""
    roles = dataset[0]["roles"]
    extra = () if roles["answer"] - 1 == roles["query"] else (READ_OUT,)
    return DEFAULT_POSITIONS + extra


def select_sites(
    hook_map: "HookMap",
    components: Sequence[str],
    layers: Sequence[int] | None,
    positions: Sequence[str],
) -> list[Site]:
    """Return every site of the components × layers × positions that the model has.

    A component that only some layers have (a hybrid's) is taken where it exists.

    Raises:
        UserError: a layer is out of range, or a component is on none of the layers.
    """
    for layer in layers or ():
        if not 0 <= layer < hook_map.num_layers:
            raise UserError(
                f"layer {layer} does not exist", f"the model has layers 0–{hook_map.num_layers - 1}"
            )
    wanted = range(hook_map.num_layers) if layers is None else sorted(layers)
    places = [Position.parse(position) for position in positions]
    sites = []
    for component in components:
        on = [layer for layer in (None, *wanted) if (layer, component) in hook_map.points]
        if not on:
            known = {name for _, name in hook_map.points}
            where = "" if layers is None or component not in known else " on the layers asked for"
            raise UserError(
                f"the model has no component {component!r}{where}", near_names(component, known)
            )
        sites += [Site(layer, component, place) for layer in on for place in places]
    return sites


def _patches(
    hook_map: "HookMap", dataset: "Dataset", batches: Sequence[Batch], config: EvaluateConfig
) -> tuple[list[Patch], dict[str, Any]]:
    """Return what is patched from where, and the grid's part of the config as it was resolved."""
    if config.sites is not None:
        grid = {"components": (), "layers": None, "positions": None}
        return expand(config.sites, hook_map, list(dataset[0]["roles"])), grid
    positions = config.positions or default_positions(dataset)
    places = positions
    if positions == (ALL,):
        places = tuple(map(str, window_positions(batches)))
    sites = select_sites(hook_map, config.components, config.layers, places)
    return [((site,), (site,)) for site in sites], {"positions": positions}


def _check_positions(batches: Sequence[Batch], positions: Iterable[Position]) -> None:
    """Raise `UserError` for a position that no example has: it would be missing without a word."""
    for position in sorted(positions):
        if not any((batch.locate(position) >= 0).any() for batch in batches):
            raise UserError(f"no example has a token at '{position}'", "leave it out")


def _plan(
    hook_map: "HookMap", patches: Sequence[Patch], config: EvaluateConfig
) -> list[Intervention]:
    plan = []
    for corruption in config.corruptions:
        for direction in cast(tuple[Direction, ...], config.directions):
            for kind in (controls, soft_controls):
                plan += kind.interventions(hook_map, corruption=corruption, direction=direction)
            plan += [
                Intervention(
                    sites=sites, source_sites=donors, corruption=corruption, direction=direction
                )
                for sites, donors in patches
            ]
    return plan
