"""One interchange intervention: declared once, run by any engine, stored as JSON.

Use:

    Intervention(sites=(Site.parse("L1.block_input@value"),), corruption="key")
    Intervention.from_json(intervention.to_json()) == intervention

The *base* run is the one that is changed, the *source* run the one that the activations come from:

| direction | base      | source    | question                                        |
|-----------|-----------|-----------|-------------------------------------------------|
| denoise   | corrupted | clean     | is the site sufficient to restore the answer?   |
| noise     | clean     | corrupted | is the site necessary for the answer?           |
"""

import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from patchbench.common import UserError, near_names, parse_json
from patchbench.sites import Site

if TYPE_CHECKING:
    import pyvene as pv
    from transformers import PreTrainedModel

    from patchbench.adapters.hook_map import HookMap

Direction = Literal["denoise", "noise"]
Source = Literal["counterpart", "self", "shuffled"]

SCHEMA = "patchbench/intervention/1"
CLEAN = "clean"
_SITES = ("sites", "source_sites")


def shuffled(run: str) -> str:
    """Return the name of the run in which every example reads another one's document."""
    return f"{run}~"


@dataclass(frozen=True, kw_only=True)
class Intervention:
    """Replace the activations at `sites`, all in one forward, by those of another run.

    Attributes:
        sites: patched together; usually one.
        source_sites: where the activations come from, one for each of `sites`; None for the sites
            themselves.
        corruption: which corrupted run is the clean one's counterpart.
        direction: see above.
        source: "counterpart"; "self": the base's own activations, which must change nothing; or
            "shuffled": another example's (see `patchbench.soft_controls`).
        control: the control this belongs to, None for a measurement.
    """

    sites: tuple[Site, ...]
    corruption: str
    direction: Direction = "denoise"
    source: Source = "counterpart"
    control: str | None = None
    source_sites: tuple[Site, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "sites", tuple(self.sites))
        if not self.sites:
            raise UserError("an intervention has no sites", "name at least one")
        if len(set(self.sites)) < len(self.sites):
            raise UserError(f"intervention {self.label} names a site twice", "name each once")
        if self.source_sites is not None:
            donors = tuple(self.source_sites)
            if len(donors) != len(self.sites):
                raise UserError(
                    f"{len(donors)} source sites for {len(self.sites)} patched ones",
                    "give one for each",
                )
            # One form only, so that equal interventions compare equal.
            object.__setattr__(self, "source_sites", None if donors == self.sites else donors)
        if not self.corruption or self.corruption == CLEAN:
            raise UserError(f"corruption {self.corruption!r}", "for example 'key'")
        for name, known in (("direction", get_args(Direction)), ("source", get_args(Source))):
            value = getattr(self, name)
            if value not in known:
                raise UserError(f"unknown {name} {value!r}", near_names(str(value), known))

    @property
    def label(self) -> str:
        """The sites in words: "L1.q@query & L0.block_output@value -> L1.block_input@query"."""
        return " & ".join(
            str(site) if donor == site else f"{donor} -> {site}"
            for donor, site in zip(self.donors, self.sites, strict=True)
        )

    @property
    def donors(self) -> tuple[Site, ...]:
        """Where the activations come from, one site for each patched one."""
        return self.source_sites or self.sites

    @property
    def base_run(self) -> str:
        """The run that is changed: "clean", or the corruption's name."""
        return self.corruption if self.direction == "denoise" else CLEAN

    @property
    def source_run(self) -> str:
        """The run that stands for the full effect: "clean", or the corruption's name."""
        return CLEAN if self.direction == "denoise" else self.corruption

    @property
    def donor_run(self) -> str:
        """The run that the activations come from: the source, but for some controls."""
        if self.source == "shuffled":
            return shuffled(self.source_run)
        return self.base_run if self.source == "self" else self.source_run

    def to_json(self) -> str:
        """Return the intervention as JSON text that carries its schema."""
        data: dict[str, Any] = {"schema": SCHEMA, **asdict(self)}
        for name in _SITES:
            sites = getattr(self, name)
            data[name] = sites and [str(site) for site in sites]
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: str) -> "Intervention":
        """Undo `to_json`.

        Raises:
            UserError: not JSON, another schema, or a field that the schema does not have.
        """
        try:
            data = parse_json(text)
        except ValueError as error:
            raise UserError("an intervention is not JSON", str(error)) from None
        schema = data.pop("schema", None) if isinstance(data, dict) else None
        if schema != SCHEMA:
            raise UserError(f"an intervention of schema {schema!r}", f"{SCHEMA!r} is needed")
        names = {field.name for field in fields(cls)}
        for name in data:
            if name not in names:
                raise UserError(f"unknown field {name!r} of {SCHEMA}", near_names(name, names))
        for name in ("sites", "corruption"):
            if name not in data:
                raise UserError(f"field {name!r} of {SCHEMA} is missing", "add it")
        for name in _SITES:
            sites = data.get(name)
            if sites is None and name != "sites":
                continue
            if not isinstance(sites, list) or not all(isinstance(site, str) for site in sites):
                raise UserError(f"{name}={sites!r} of {SCHEMA}", "a list of strings is needed")
            data[name] = tuple(map(Site.parse, sites))
        return cls(**data)

    def to_pyvene(self, hook_map: "HookMap", model: "PreTrainedModel") -> "pv.IntervenableConfig":
        """Return pyvene's config of this intervention, one representation for each site.

        Positions are not part of it: pyvene takes them with each batch, as `unit_locations`. Nor
        are `source_sites`: pyvene takes what comes from elsewhere as `source_representations`.

        Raises:
            UserError: the model has no such site.
        """
        from patchbench.engines.safe_intervenable import swap_config

        return swap_config(hook_map, model, self.sites)
