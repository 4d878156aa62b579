"""A task's examples as one model reads them: in its own tokens, and only what can be measured.

Use:

    inputs = model_inputs(loaded, task, split="test", n=256, corruptions=["key"])
    inputs.dataset, inputs.template, inputs.notes

    renderer = renderer_of(loaded, task)       # what writes them; None for the task's own token ids
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from patchbench.common import UserError, near_names
from patchbench.evaluation_config import SYMBOLIC

if TYPE_CHECKING:
    from datasets import Dataset

    from patchbench.adapters import LoadedModel
    from patchbench.tasks import Task
    from patchbench.tasks.rendering import Renderer


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Examples for one model.

    Attributes:
        dataset: rows of the tasks' schema.
        template: how they are written; "symbolic" for the task's own token ids.
        notes: what the user should know.
    """

    dataset: "Dataset"
    template: str
    notes: list[str]


def model_inputs(
    loaded: "LoadedModel",
    task: "Task",
    *,
    split: str,
    n: int,
    corruptions: Sequence[str],
    template: str = "auto",
    shots: int = 0,
    seed: int = 0,
) -> Inputs:
    """Return the first `n` rows of a split, without those that have none of the corruptions.

    Args:
        loaded: the model.
        task: the task.
        split: "train", "dev" or "test".
        n: rows before any is left out.
        corruptions: what will be measured.
        template: see `patchbench.tasks.rendering`; "symbolic" takes the task's own token ids, and
            so does "auto" for a model without a tokenizer.
        shots: solved documents in front of each prompt.
        seed: of the shots.

    Raises:
        UserError: an unknown corruption, one that no example has, or examples that the model
            cannot read.
    """
    for corruption in corruptions:
        if corruption not in task.corruptions:
            raise UserError(
                f"task {task.name!r} has no corruption {corruption!r}",
                near_names(corruption, task.corruptions),
            )
    renderer = renderer_of(loaded, task, template=template, shots=shots, seed=seed)
    if renderer is None:
        inputs = _symbolic(loaded, task, split, n, shots)
    else:
        dataset = renderer.dataset(split, n)
        inputs = Inputs(dataset=dataset, template=renderer.template, notes=renderer.notes)
    return _corruptible(inputs, task, corruptions)


def renderer_of(
    loaded: "LoadedModel", task: "Task", *, template: str = "auto", shots: int = 0, seed: int = 0
) -> "Renderer | None":
    """Return what writes a task in a model's tokens; None where it reads the task's own token ids.

    Args:
        loaded: the model.
        task: the task.
        template: see `model_inputs`.
        shots: solved documents in front of each prompt.
        seed: of the shots.

    Raises:
        UserError: the model has no tokenizer, or one that cannot write the task.
    """
    from patchbench.tasks.rendering import RenderConfig, Renderer

    if template == SYMBOLIC or (template == "auto" and loaded.tokenizer is None):
        return None
    if loaded.tokenizer is None:
        raise UserError(
            f"template {template!r} needs a tokenizer, and the model has none", "pass --tokenizer"
        )
    return Renderer(
        task,
        loaded.tokenizer,
        RenderConfig(template=cast(Any, template), shots=shots),
        max_positions=loaded.max_positions,
        vocab_size=loaded.vocab_size,
        seed=seed,
    )


def _symbolic(loaded: "LoadedModel", task: "Task", split: str, n: int, shots: int) -> Inputs:
    from patchbench.tasks.symbolic import symbolic_rows

    if shots:
        raise UserError("shots need a tokenizer", "drop --shots, or name another --template")
    dataset = symbolic_rows(
        task, split, n, vocab_size=loaded.vocab_size, max_positions=loaded.max_positions
    )
    return Inputs(dataset=dataset, template=SYMBOLIC, notes=[])


def _corruptible(inputs: Inputs, task: "Task", corruptions: Sequence[str]) -> Inputs:
    """Leave out the examples that have none of the corruptions, and say so.

    Accuracy and floor are then of the same examples as the effects.
    """
    twins = inputs.dataset["corruptions"][:]
    has = {name: np.array([bool(row[name]["input_ids"]) for row in twins]) for name in corruptions}
    for name, some in has.items():
        if not some.any():
            raise UserError(
                f"none of the {len(twins)} examples of task {task.name!r} has a {name} corruption",
                "choose another --corruption, or change the task with --set",
            )
    kept = np.flatnonzero(np.any(list(has.values()), axis=0))
    if len(kept) == len(twins):
        return inputs
    note = (
        f"{len(twins) - len(kept)} of {len(twins)} examples have no {' or '.join(corruptions)} "
        "corruption and are left out"
    )
    return Inputs(
        dataset=inputs.dataset.select(kept),
        template=inputs.template,
        notes=[*inputs.notes, note],
    )
