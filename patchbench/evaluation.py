"""The main job: a model and a task go in, a `Result` with an interval and controls comes out.

Use:

    result = evaluate("EleutherAI/pythia-70m", "ar", n=128, layers=[0, 3], positions=["value"])
    print(result.attrib("L3.block_input@value"))

Every example is run clean and corrupted; then, for each site, once more with one activation
exchanged. The rows of all that are the Result; everything reported is computed from them.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from numbers import Integral
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from patchbench import controls
from patchbench.common import UserError, near_names
from patchbench.engines import ENGINES
from patchbench.engines.base import Batch, make_batches
from patchbench.inputs import model_inputs
from patchbench.interventions import Direction, Intervention
from patchbench.results import MOST_RESAMPLES, Result, collect_provenance
from patchbench.selfcheck import compare, refuse_unreachable
from patchbench.site_expressions import Patch, expand, parse
from patchbench.sites import Position, Site
from patchbench.tasks.templates import TEMPLATES
from patchbench.windows import window_positions, with_windows

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel

    from patchbench.adapters import HookMap, LoadedModel
    from patchbench.tasks import Task

DIRECTIONS = ("denoise", "noise")
METHODS = ("exact", "attribution")
DEFAULT_POSITIONS = ("key", "value", "value+1", "query")
# The read-out: the last token of the prompt. It is the query unless a template puts tokens between.
READ_OUT = "answer-1"
# Every token by its distance to a role: see `patchbench.windows`.
ALL = "all"
SEQUENCES = ("corruptions", "directions", "components", "layers", "positions", "sites")

SYMBOLIC = "symbolic"
# The smallest and the largest value of a setting. More examples than that narrow no interval that
# anybody reads, and do not fit into memory.
_BOUNDS: Mapping[str, tuple[int, int | None]] = {
    "n": (1, 100_000),
    "batch_size": (1, None),
    "shots": (0, None),
    "seed": (0, None),
    "resamples": (100, MOST_RESAMPLES),
    "prefilter": (1, None),
    "ig_steps": (0, 1000),
}
_OPTIONAL = ("layers", "positions", "sites")
# What `sites` stands instead of.
_GRID = ("components", "layers", "positions")
_ITEMS = {Integral: "integers", str: "names"}

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """What to measure.

    Attributes:
        n: examples of the split.
        positions: roles with offsets; None takes `DEFAULT_POSITIONS`, and the read-out where a
            template separates it from the query; "all" takes every token, by its role's window.
        layers: None takes all.
        sites: expressions (see `patchbench.site_expressions`) instead of components, layers and
            positions.
        template: how a pretrained tokenizer's words are laid out; "symbolic" feeds the task's own
            token ids; "auto" renders when the model has a tokenizer.
        engine: what runs the interventions: "native" (fast), "pyvene" (the reference), "nnsight".
        selfcheck: whether the engine is compared with the reference on part of the first batch.
        method: "exact", or "attribution": first-order scores of all sites, and exact numbers of
            the foremost of them (see `patchbench.attribution`).
        prefilter: how many sites "attribution" runs exactly.
        ig_steps: steps over which "attribution" integrates the gradient, at as many forwards and
            backwards for each site; 0 takes the gradient at the base.
        shots: solved documents in front of each prompt.
        seed: of the bootstrap and of the shots; the task has its own.
    """

    n: int = 256
    split: str = "test"
    batch_size: int = 32
    corruptions: tuple[str, ...] = ("key",)
    directions: tuple[str, ...] = ("denoise",)
    components: tuple[str, ...] = ("block_input",)
    layers: tuple[int, ...] | None = None
    positions: tuple[str, ...] | None = None
    sites: tuple[str, ...] | None = None
    engine: str = "native"
    selfcheck: bool = True
    method: str = "exact"
    prefilter: int = 8
    ig_steps: int = 0
    template: str = "auto"
    shots: int = 0
    seed: int = 0
    resamples: int = 2000

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UserError(f"{name}={value!r}", f"an integer of at least {least} is needed")
            if most is not None and value > most:
                raise UserError(f"{name}={value}", f"at most {most:,} are possible")
        for name in ("split", "engine", "template", "method"):
            if not isinstance(getattr(self, name), str):
                raise UserError(f"{name}={getattr(self, name)!r}", "a word is needed")
        for name in SEQUENCES:
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            kind = Integral if name == "layers" else str
            if not isinstance(value, tuple) or any(
                isinstance(item, bool) or not isinstance(item, kind) for item in value
            ):
                raise UserError(f"{name}={value!r}", f"a list of {_ITEMS[kind]} is needed")
            if not value:
                raise UserError(f"{name} is empty", "name at least one")
            if len(set(value)) != len(value):
                raise UserError(f"{name}={list(value)} names one twice", "name each once")
        for text in self.sites or ():
            parse(text)
        if ALL in (self.positions or ()) and self.positions != (ALL,):
            raise UserError(f"positions={list(self.positions or ())}", f"{ALL!r} stands alone")
        places = [Position.parse(position) for position in self.positions or ()]
        if len(set(places)) != len(places):
            raise UserError(
                f"positions={list(self.positions or ())} names one twice", "name each once"
            )
        if self.engine not in ENGINES:
            raise UserError(f"unknown engine {self.engine!r}", near_names(self.engine, ENGINES))
        if self.method not in METHODS:
            raise UserError(f"unknown method {self.method!r}", near_names(self.method, METHODS))
        for name in ("prefilter", "ig_steps") if self.method == "exact" else ():
            if getattr(self, name) != getattr(type(self), name):
                raise UserError(
                    f"{name}={getattr(self, name)!r} is of attribution, and the method is exact",
                    "add method attribution",
                )
        if self.template not in (known := ("auto", SYMBOLIC, *TEMPLATES)):
            raise UserError(f"unknown template {self.template!r}", near_names(self.template, known))
        for direction in self.directions:
            if direction not in DIRECTIONS:
                raise UserError(
                    f"unknown direction {direction!r}", near_names(direction, DIRECTIONS)
                )

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "EvaluateConfig":
        """Build from keywords; where a tuple belongs, any sequence or a single value will do.

        Raises:
            UserError: an unknown name, or a value that cannot be.
        """
        known = {field.name for field in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in settings.items():
            if name not in known:
                raise UserError(f"unknown setting {name!r} of evaluate", near_names(name, known))
            values[name] = value
            if name in SEQUENCES:
                if isinstance(value, str | int):
                    values[name] = (value,)
                elif isinstance(value, Iterable):
                    values[name] = tuple(value)
        if values.get("sites") is not None:
            for name in _GRID:
                if values.get(name) is not None:
                    raise UserError(f"sites and {name} together", f"write the {name} in the sites")
        return cls(**values)


def evaluate(
    model: "str | PreTrainedModel | LoadedModel",
    task: "str | Task",
    *,
    progress: Progress | None = None,
    command: str | None = None,
    **settings: Any,
) -> Result:
    """Measure where `model` stores the association that `task` asks for.

    Args:
        model: a hub id, folder, file, `PreTrainedModel`, or what `load_model` returned.
        task: a task's name, or what `load_task` returned.
        progress: called with (forward rows done, rows in all) after each batch; the first-order
            scores are counted by themselves, before the exact numbers.
        command: the command line, for the provenance.
        **settings: the fields of `EvaluateConfig`.

    Raises:
        UserError: something asked for does not exist or does not fit.
        ControlError: a hard control is off (see `patchbench.controls`).
    """
    from patchbench import attribution
    from patchbench.adapters import LoadedModel, load_model
    from patchbench.adapters.probe import probe
    from patchbench.tasks import Task, load_task

    config = EvaluateConfig.of(settings)
    started = time.perf_counter()
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
    dataset = inputs.dataset
    batches = [
        controls.with_partner(with_windows(batch) if config.positions == (ALL,) else batch)
        for batch in make_batches(dataset, config.batch_size, config.corruptions)
    ]
    patches, grid = _patches(loaded.hook_map, dataset, batches, config)
    touched = [site for patch in patches for part in patch for site in part]
    _check_positions(batches, {site.position for site in touched})
    probe(loaded, {(site.layer, site.component) for site in touched})
    plan = _plan(loaded.hook_map, patches, config)

    refuse_unreachable(loaded, plan, config.engine)
    engine, agreement = ENGINES[config.engine](), None
    estimates = None
    if config.method == "attribution":
        estimates, plan = attribution.prefilter(
            loaded,
            plan,
            batches,
            count=config.prefilter,
            ig_steps=config.ig_steps,
            counters=engine.counters,
            progress=progress,
        )
    tables, done, total = [], 0, len(plan) * len(dataset)
    for batch in batches:
        tables.append(engine.run(loaded, plan, batch))
        if config.selfcheck and len(tables) == 1:
            agreement = compare(loaded, plan, batch, tables[0], engine=config.engine)
        done += len(plan) * len(batch.index)
        if progress is not None:
            progress(done, total)
    rows = pa.concat_tables(tables).sort_by(
        [("corruption", "ascending"), ("direction", "ascending"), ("site", "ascending")]
    )
    checks = controls.check(rows, dtype=loaded.dtype)
    provenance = collect_provenance(
        loaded=loaded,
        task=task,
        dataset=dataset,
        seconds=time.perf_counter() - started,
        engine=engine,
        command=command,
        notes=[*loaded.notes, *loaded.hook_map.notes, *inputs.notes],
        template=inputs.template,
    )
    provenance["engine"]["selfcheck"] = agreement and asdict(agreement)
    result = Result.from_rows(
        rows,
        config={**asdict(config), **grid},
        provenance=provenance,
        controls=[{**asdict(c), "passed": c.passed} for c in checks],
    )
    if estimates is not None:
        result.summary["attribution"] = attribution.summarise(
            estimates,
            result.summary["runs"],
            ig_steps=config.ig_steps,
            seed=config.seed,
            resamples=config.resamples,
        )
    return result


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
            plan += controls.interventions(hook_map, corruption=corruption, direction=direction)
            plan += [
                Intervention(
                    sites=sites, source_sites=donors, corruption=corruption, direction=direction
                )
                for sites, donors in patches
            ]
    return plan
