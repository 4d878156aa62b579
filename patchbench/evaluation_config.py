"""What to measure: the settings of an evaluation, checked before anything heavy happens.

Use:

    config = EvaluateConfig.of({"n": 64, "positions": "value"})       # UserError for what cannot be
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any

from patchbench.common import UserError, near_names
from patchbench.engines import ENGINES
from patchbench.site_expressions import parse
from patchbench.sites import Position
from patchbench.statistics import MOST_RESAMPLES
from patchbench.tasks.templates import TEMPLATES

DIRECTIONS = ("denoise", "noise")
METHODS = ("exact", "attribution")
DEFAULT_POSITIONS = ("key", "value", "value+1", "query")
# The read-out: the last token of the prompt. It is the query unless a template puts tokens between.
READ_OUT = "answer-1"
# Every token by its distance to a role: see `patchbench.windows`.
ALL = "all"
SEQUENCES = ("corruptions", "directions", "components", "layers", "positions", "sites")

SYMBOLIC = "symbolic"
TEMPLATE_NAMES = ("auto", SYMBOLIC, *TEMPLATES)
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
        seed: of the bootstrap, of the shots and of an untrained twin; the task has its own.
        held_out: also measure dev, and say how test, whose pairs are kept from training, differs.
        untrained_twin: also measure a model of the same config with fresh weights.
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
    held_out: bool = False
    untrained_twin: bool = False

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
        for name in ("held_out", "untrained_twin"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"{name}={getattr(self, name)!r}", "True or False is needed")
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
        if self.template not in TEMPLATE_NAMES:
            raise UserError(
                f"unknown template {self.template!r}", near_names(self.template, TEMPLATE_NAMES)
            )
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
