"""What a run leaves behind: its rows, what they say, and where they come from.

Use:

    result.accuracy                                         # Estimate(value, low, high, n)
    result.attrib("L1.block_input@value", corruption="key")
    result.table("block_input", corruption="key")           # {(layer, "value"): Estimate}
    result.save("runs/x")
    Result.load("runs/x")

A saved Result is a folder: `rows.parquet`, one row per example and intervention, and
`result.json` with the config, the provenance and the summary. Every number but the task's floor
is computed from the rows.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from patchbench.common import UserError, fresh_directory, near_names
from patchbench.common.files import recover
from patchbench.effects import METRICS, ROW_SCHEMA, attribs
from patchbench.mechanism import Verdict
from patchbench.provenance import collect_provenance
from patchbench.result_file import JSON_FILE, SCHEMA, VERSION, beside, read_json
from patchbench.sites import Position, Site, grid_site
from patchbench.statistics import Estimate

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import plotly.graph_objects as go
    import xarray as xr

__all__ = ["METRICS", "ROW_SCHEMA", "Result", "collect_provenance"]

_ROWS = "rows.parquet"


@dataclass(frozen=True, kw_only=True)
class Result:
    """The outcome of one evaluation.

    Attributes:
        config: what was asked for.
        provenance: what it was computed from, by what, in how long.
        summary: see `patchbench.summary.summarise`.
        rows: of `ROW_SCHEMA`.
        beside: Results that it is read against, in folders of the same: see `patchbench.beside`.
    """

    config: dict[str, Any]
    provenance: dict[str, Any]
    summary: dict[str, Any]
    rows: pa.Table
    beside: "Mapping[str, Result]" = field(default_factory=dict)

    @classmethod
    def from_rows(
        cls,
        rows: pa.Table,
        *,
        config: Mapping[str, Any],
        provenance: Mapping[str, Any],
        controls: Sequence[Mapping[str, Any]] = (),
    ) -> "Result":
        """Build the result, with its summary.

        Args:
            rows: of `ROW_SCHEMA`, the controls' rows included.
            config: ready for JSON but for tuples.
            provenance: what `collect_provenance` returned.
            controls: outcome of each control, with its `corruption` and `direction`.
        """
        from patchbench.summary import summarise

        # As JSON gives it back, so that a loaded Result equals a fresh one.
        asked, origin = (json.loads(json.dumps(dict(d))) for d in (config, provenance))
        summary = summarise(rows, config=asked, provenance=origin, controls=controls)
        return cls(config=asked, provenance=origin, summary=summary, rows=rows)

    @property
    def accuracy(self) -> Estimate:
        """Share of examples whose answer is the likeliest token of the vocabulary."""
        return Estimate.from_json(self.summary["accuracy"])

    @property
    def accuracy_in_context(self) -> Estimate:
        """Share of examples whose answer is the likeliest of the in-context values."""
        return Estimate.from_json(self.summary["accuracy_in_context"])

    @property
    def verdict(self) -> Verdict:
        """What the rows show of the mechanism; see `patchbench.mechanism`."""
        return Verdict.from_json(self.summary["verdict"])

    def attrib(
        self,
        site: str | Site,
        corruption: str = "key",
        direction: str = "denoise",
        metric: str = "p",
    ) -> Estimate:
        """Return the Attrib of one site, with its interval.

        Args:
            site: as in "L1.block_input@value".
            corruption: which of the measured ones.
            direction: which of the measured ones.
            metric: "p", "logp", "logit" or "logit_diff".

        Raises:
            UserError: none of that was measured.
        """
        name = str(site)
        return self._attribs(corruption, direction, metric, [name])[name]

    def table(
        self,
        component: str,
        corruption: str = "key",
        direction: str = "denoise",
        metric: str = "p",
    ) -> dict[tuple[int | None, str], Estimate]:
        """Return the Attrib of a component by (layer, position).

        Layers ascend; positions come as they were asked for, else in the order of a document.

        Raises:
            UserError: none of that was measured.
        """
        every = self._attribs(corruption, direction, metric, None)
        sites = [site for name in every if (site := grid_site(name)) is not None]
        chosen = [site for site in sites if site.component == component]
        if not chosen:
            known = {site.component for site in sites}
            raise UserError(f"no rows for component {component!r}", near_names(component, known))
        asked = [Position.parse(text) for text in self.config.get("positions") or ()]

        def place(site: Site) -> tuple[int, int, Position]:
            first = asked.index(site.position) if site.position in asked else len(asked)
            return -1 if site.layer is None else site.layer, first, site.position

        return {
            (site.layer, str(site.position)): every[str(site)] for site in sorted(chosen, key=place)
        }

    def plot(
        self,
        component: str = "block_input",
        corruption: str | None = None,
        direction: str | None = None,
    ) -> "go.Figure":
        """Return the heat map of a component by layer and position.

        Further figures are in `patchbench.report.figures`.

        Args:
            component: which of the measured ones.
            corruption: by default the first that was measured.
            direction: by default the first that was measured.

        Raises:
            UserError: none of that was measured.
        """
        from patchbench.report.figures import heat_map

        first = self.summary["runs"][0]
        return heat_map(
            self,
            component,
            corruption=corruption or first["corruption"],
            direction=direction or first["direction"],
        )

    def to_pandas(self) -> "pd.DataFrame":
        """Return a line for each site, corruption and direction; see `patchbench.frames`."""
        from patchbench import frames

        return frames.to_pandas(self)

    def to_arrays(self) -> "dict[str, np.ndarray]":
        """Return the Attribs of the grid, and its labels; see `patchbench.frames`."""
        from patchbench import frames

        return frames.to_arrays(self)

    def to_xarray(self) -> "xr.Dataset":
        """Return the Attribs of the grid, labelled; see `patchbench.frames`."""
        from patchbench import frames

        return frames.to_xarray(self)

    def _repr_html_(self) -> str:
        """Return the verdict and the effects for a notebook."""
        from patchbench.report.notebook import as_html

        return as_html(self)

    def save(self, directory: str | Path, overwrite: bool = False, *, report: bool = False) -> None:
        """Write the folder, in whole or not at all.

        Args:
            directory: to be made.
            overwrite: whether to replace one that is there.
            report: whether to add `report.html`, a page of about 5 MB that needs no network.

        Raises:
            UserError: it exists and `overwrite` is false, it cannot be written, or the Result is
                one that `load` would refuse.
        """
        from patchbench.result_schema import check

        with fresh_directory(directory, overwrite=overwrite) as temporary:
            pq.write_table(self.rows, temporary / _ROWS)
            content = {
                "schema": SCHEMA,
                "version": VERSION,
                "config": self.config,
                "provenance": self.provenance,
                "summary": self.summary,
                "rows": {"count": len(self.rows), "sha256": _digest(temporary / _ROWS)},
                "beside": list(self.beside),
            }
            text = json.dumps(content, indent=2, allow_nan=False)
            if problem := check(json.loads(text)):
                raise UserError(
                    f"this Result is not whole ({problem}), and could not be read again",
                    "make it by `evaluate`, or with provenance as `collect_provenance` gives it",
                )
            (temporary / JSON_FILE).write_text(text + "\n", encoding="utf-8")
            for name, other in self.beside.items():
                other.save(temporary / name)
            if report:
                from patchbench.report.html import FILE, render_report

                (temporary / FILE).write_text(render_report(self), encoding="utf-8")

    @classmethod
    def load(cls, directory: str | Path) -> "Result":
        """Read a folder that `save` wrote.

        Raises:
            UserError: no such folder, not a Result, of a newer schema, or damaged.
        """
        directory = Path(directory)
        recover(directory)
        content = read_json(directory)
        path = directory / _ROWS
        if not path.is_file():
            raise UserError(
                f"{directory} is damaged: {_ROWS} is missing", "run the evaluation again"
            )
        if _digest(path) != content["rows"].get("sha256"):
            raise UserError(
                f"{path} is not the file that {JSON_FILE} describes",
                "it is damaged or was edited: run the evaluation again",
            )
        try:
            rows = pq.read_table(path)
        except (pa.ArrowException, OSError) as error:
            reason = " ".join(str(error).split())[:120]
            raise UserError(
                f"{path} cannot be read ({reason})", "run the evaluation again"
            ) from None
        if not rows.schema.equals(ROW_SCHEMA):
            raise UserError(
                f"{path} has other columns than version {VERSION}", "run the evaluation again"
            )
        return cls(
            config=content["config"],
            provenance=content["provenance"],
            summary=content["summary"],
            rows=rows,
            beside={name: cls.load(directory / name) for name in beside(content, directory)},
        )

    def _attribs(
        self, corruption: str, direction: str, metric: str, sites: Sequence[str] | None
    ) -> dict[str, Estimate]:
        settings = {
            name: self.config[name] for name in ("seed", "resamples") if name in self.config
        }
        return attribs(
            self.rows,
            corruption=corruption,
            direction=direction,
            metric=metric,
            sites=sites,
            **settings,
        )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
