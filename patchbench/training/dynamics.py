"""Mechanism over time: the interchange metrics on a few dev rows, measured while a model trains.

Use:

    dynamics = Dynamics(model, task, n=64, components=("block_input",), path=folder / FILE)
    effects = dynamics.measure(step, record)       # {"L1.block_input@value": 0.98, …}
    dynamics.go_on(step, every=50)                 # when training resumes from a checkpoint

Each measurement adds one row per site to a parquet file. The key is corrupted and the clean
activation put back. An Attrib is null while the corruption costs too little for a ratio to mean
anything; the probabilities behind it are always there.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from patchbench.common import UserError, atomic_write
from patchbench.effects import attribs
from patchbench.engines import ENGINES
from patchbench.engines.base import make_batches
from patchbench.interventions import Intervention
from patchbench.preparation import default_positions, select_sites
from patchbench.summary import MIN_GAP

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from patchbench.tasks import Task
    from patchbench.tasks.rendering import Renderer

FILE = "dynamics.parquet"
CORRUPTION, DIRECTION = "key", "denoise"
# An interval on a curve needs fewer than one in a table.
_RESAMPLES = 500
_BATCH = 64
# Of the training run at that step, as logged.
LOGGED = ("loss", "accuracy", "dev_loss", "dev_accuracy")

SCHEMA = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        *(pa.field(name, pa.float64()) for name in LOGGED),
        pa.field("site", pa.string(), nullable=False),
        pa.field("layer", pa.int32()),
        pa.field("component", pa.string(), nullable=False),
        pa.field("position", pa.string(), nullable=False),
        pa.field("n", pa.int32(), nullable=False),
        *(pa.field(f"p_{run}", pa.float64()) for run in ("clean", "corrupted", "patched")),
        *(pa.field(name, pa.float64()) for name in ("attrib", "attrib_low", "attrib_high")),
    ]
)


class Dynamics:
    """Measures one model again and again.

    Args:
        model: while it trains; mode, gradients and random state are left as they are.
        task: whose dev split is used, or what writes it in the model's words.
        n: rows of it.
        components: patched, at `default_positions`.
        layers: where; None for all.
        path: the parquet file.

    Raises:
        UserError: the model has no such component, or one that cannot be patched; or the file
            that is there is damaged.
    """

    def __init__(
        self,
        model: "PreTrainedModel",
        task: "Task | Renderer",
        *,
        n: int,
        components: Sequence[str],
        path: Path,
        layers: Sequence[int] | None = None,
    ) -> None:
        from patchbench.adapters import load_model
        from patchbench.adapters.probe import probe

        self._loaded = load_model(model, dtype="auto")
        dataset = task.dataset("dev", n)
        positions = default_positions(dataset)
        sites = select_sites(self._loaded.hook_map, components, layers, positions)
        probe(self._loaded, {(site.layer, site.component) for site in sites})
        self._sites = {str(site): site for site in sites}
        self._plan = [
            Intervention(sites=(site,), corruption=CORRUPTION, direction=DIRECTION)
            for site in sites
        ]
        self._batches = make_batches(dataset, _BATCH, [CORRUPTION])
        self._path = path
        try:
            self._table = pq.read_table(path) if path.exists() else SCHEMA.empty_table()
        except (pa.ArrowException, OSError):
            raise self._damaged() from None
        if not self._table.schema.equals(SCHEMA):
            raise self._damaged()

    def go_on(self, step: int, every: int) -> None:
        """Keep what was measured up to `step`, drop what came later.

        Args:
            step: of the checkpoint from which training resumes; 0 for none.
            every: steps between measurements.

        Raises:
            UserError: a measurement up to `step` is not in the file, which would have a gap.
        """
        self._table = self._table.filter(pc.field("step") <= step)
        if not set(range(every, step + 1, every)) <= set(self._table["step"].to_pylist()):
            raise self._damaged()

    def _damaged(self) -> UserError:
        return UserError(
            f"{self._path} is damaged or missing", "put it back, or begin again with --overwrite"
        )

    def measure(self, step: int, record: Mapping[str, float]) -> dict[str, float]:
        """Measure, write, and return Attrib by site where it means something.

        Args:
            step: optimiser steps so far.
            record: what is known of the run at this step; the columns of `LOGGED` are kept.
        """
        engine = ENGINES["pyvene"]()
        with torch.random.fork_rng(devices=[]):
            tables = [engine.run(self._loaded, self._plan, batch) for batch in self._batches]
        rows = pa.concat_tables(tables)
        source, base = (rows[f"p_{run}"].to_numpy() for run in ("source", "base"))
        means = bool((source - base).mean() > MIN_GAP)
        which = {"corruption": CORRUPTION, "direction": DIRECTION, "resamples": _RESAMPLES}
        effects = attribs(rows, **which) if means else {}
        lines: list[dict[str, Any]] = []
        for name, site in self._sites.items():
            of_site = rows.filter(pc.field("site") == name)
            if not len(of_site):
                continue
            effect = effects.get(name)
            lines.append(
                {
                    "step": step,
                    **{key: record.get(key) for key in LOGGED},
                    "site": name,
                    "layer": site.layer,
                    "component": site.component,
                    "position": str(site.position),
                    "n": len(of_site),
                    "p_clean": float(of_site["p_source"].to_numpy().mean()),
                    "p_corrupted": float(of_site["p_base"].to_numpy().mean()),
                    "p_patched": float(of_site["p_patched"].to_numpy().mean()),
                    "attrib": effect and effect.value,
                    "attrib_low": effect and effect.low,
                    "attrib_high": effect and effect.high,
                }
            )
        self._table = pa.concat_tables([self._table, pa.Table.from_pylist(lines, SCHEMA)])
        with atomic_write(self._path) as temporary:
            pq.write_table(self._table, temporary)
        return {name: effect.value for name, effect in effects.items()}
