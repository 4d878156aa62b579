"""From logits to rows: the same for every engine.

Use:

    writer = RowWriter(batch)
    writer.observe("clean", logits)                 # each run once, unpatched
    writer.add(intervention, usable, patched)       # then each intervention
    writer.table()

One row is one example × intervention. All metrics are about the clean run's answer.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from torch import Tensor

from patchbench.common import UserError
from patchbench.effects import METRICS, ROW_SCHEMA
from patchbench.engines.base import Batch
from patchbench.interventions import CLEAN, Intervention
from patchbench.metrics import Measurement, Reference, best_candidate, kl_divergence, measure


class RowWriter:
    """Collects the rows of one batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._logits: dict[str, Tensor] = {}
        self._measured: dict[tuple[str, str], Measurement] = {}
        self._kl: dict[tuple[str, str], np.ndarray] = {}
        self._references: dict[str, Reference] = {}
        self._columns: dict[str, list] = {name: [] for name in ROW_SCHEMA.names}
        self._correct = self._correct_in_context = np.zeros(len(batch), bool)

    @property
    def observed(self) -> set[str]:
        """The runs that were observed."""
        return set(self._logits)

    def observe(self, run: str, logits: Tensor) -> None:
        """Take the unpatched predictions of "clean" or a corruption: (B, vocabulary).

        Raises:
            UserError: the model predicts NaN, or not all of the answers.
        """
        _refuse_nan(logits, f"on the {run} documents")
        known = logits.shape[-1]
        if known <= (largest := self._largest_token()):
            raise UserError(
                f"the model predicts {known} tokens, and token {largest} is an answer",
                "its embedding knows more tokens than its head: choose a smaller vocabulary",
            )
        self._logits[run] = logits
        if run == CLEAN:
            measured = measure(logits, self._batch.answer)
            self._correct = measured.best == self._batch.answer
            best = best_candidate(measured.log_probs, self._batch.candidates)
            self._correct_in_context = best == self._batch.answer

    def patched(
        self, corruption: str, source_run: str, examples: np.ndarray, logits: Tensor
    ) -> dict[str, np.ndarray]:
        """Measure patched predictions.

        Args:
            corruption: whose counterfactual answers count.
            source_run: was observed; KL is taken from it.
            examples: (n,) rows of the batch.
            logits: (n, vocabulary) patched predictions of those.

        Returns:
            The row's columns about the patched run, (n,) each; "logp_patched" is NaN where the
            logits are NaN or infinite.
        """
        if source_run not in self._references:
            log_probs = self._measure(source_run, corruption).log_probs
            self._references[source_run] = Reference(log_probs)
        found = self._references[source_run].measure(
            logits,
            examples,
            self._batch.answer[examples],
            self._batch.counterfactual[corruption][examples],
        )
        # An infinite logit of another token makes the answer's probability a clean 0.
        largest = logits.amax(-1).float().cpu().numpy()
        found["logp"] = np.where(np.isfinite(largest), found["logp"], np.nan)
        return {f"{name}_patched": column for name, column in found.items()}

    def add(self, intervention: Intervention, usable: np.ndarray, logits: Tensor) -> None:
        """Add the rows of one intervention.

        Args:
            intervention: its base and source run were observed, and the clean run.
            usable: (B,) bool, the examples that get a row.
            logits: (B, vocabulary) patched predictions.

        Raises:
            UserError: the patched model predicts NaN.
        """
        everyone = np.arange(len(self._batch))
        values = self.patched(intervention.corruption, intervention.source_run, everyone, logits)
        self.add_values(intervention, usable, values)

    def add_values(
        self, intervention: Intervention, usable: np.ndarray, patched: Mapping[str, np.ndarray]
    ) -> None:
        """Add the rows of one intervention from what `patched` returned, (B,) each.

        What an example that is not usable has there does not matter.

        Raises:
            UserError: the patched model predicts NaN.
        """
        if np.isnan(patched["logp_patched"][usable]).any():
            raise _nan_error(f"with {intervention.label} patched")
        corruption = intervention.corruption
        base = self._measure(intervention.base_run, corruption)
        source = self._measure(intervention.source_run, corruption)
        key = (intervention.base_run, intervention.source_run)
        if key not in self._kl:
            self._kl[key] = kl_divergence(source.log_probs, base.log_probs)
        values = {
            "example": self._batch.index,
            "kl_base": self._kl[key],
            "correct": self._correct,
            "correct_in_context": self._correct_in_context,
            "distance": self._batch.distance,
            "heuristic": self._batch.heuristic,
            **patched,
        }
        for run, measured in (("base", base), ("source", source)):
            values |= {f"{metric}_{run}": getattr(measured, metric) for metric in METRICS}
        first = intervention.sites[0]
        count = int(usable.sum())
        constants = {
            "site": intervention.label,
            "layer": first.layer,
            "component": first.component,
            "role": first.position.role,
            "offset": first.position.offset,
            "head": first.head,
            "corruption": corruption,
            "direction": intervention.direction,
            "control": intervention.control,
        }
        for name, value in values.items():
            self._columns[name].append(value[usable])
        for name, value in constants.items():
            self._columns[name] += [value] * count

    def table(self) -> pa.Table:
        """Return all rows, in the order in which they were added."""
        arrays = []
        for item in ROW_SCHEMA:
            parts = self._columns[item.name]
            if parts and isinstance(parts[0], np.ndarray):
                column = np.concatenate(parts)
                mask = np.isnan(column) if item.name.startswith("logit_diff") else None
                arrays.append(pa.array(column, item.type, mask=mask))
            else:
                arrays.append(pa.array(parts, item.type))
        return pa.Table.from_arrays(arrays, schema=ROW_SCHEMA)

    def _largest_token(self) -> int:
        batch = self._batch
        return max(
            int(ids.max(initial=-1))
            for ids in (batch.answer, batch.candidates, *batch.counterfactual.values())
        )

    def _measure(self, run: str, corruption: str) -> Measurement:
        key = (run, corruption)
        if key not in self._measured:
            self._measured[key] = measure(
                self._logits[run], self._batch.answer, self._batch.counterfactual[corruption]
            )
        return self._measured[key]


def _refuse_nan(logits: Tensor, where: str) -> None:
    # An infinite logit is a NaN in the probabilities; minus infinity only excludes its token.
    if bool((logits.isnan() | logits.isposinf()).any()):
        raise _nan_error(where)


def _nan_error(where: str) -> UserError:
    return UserError(
        f"the model's logits {where} are NaN or infinite",
        "its weights are damaged, or the dtype is too narrow: try float32",
    )
