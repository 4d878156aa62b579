"""From rows back to columns: a dataset of tasks' rows as `Examples`.

Use:

    examples = read_examples(task.dataset("test", 256))
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from patchbench.tasks.example import CORRUPTIONS, METADATA, ROLES, Corruption, Examples
from patchbench.tasks.ragged import Ragged

if TYPE_CHECKING:
    import datasets


def read_examples(dataset: "datasets.Dataset") -> Examples:
    """Return the rows of a dataset of the tasks' schema as columns; of labels only the answer's.

    Raises:
        ValueError: a corruption is not as long as its document.
    """
    table: Any = dataset.with_format("arrow")[:]
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    tokens = _ragged(columns["input_ids"])
    metadata, roles = columns["metadata"], columns["roles"]
    kind = metadata.field("query_kind").dictionary_encode()
    read = {name: _numpy(metadata.field(name)) for name in METADATA if name != "query_kind"}
    return Examples(
        tokens=tokens,
        parents=_ragged(metadata.field("parents")),
        roles={role: _numpy(roles.field(role)) for role in ROLES},
        candidates=_ragged(columns["candidates"]),
        corruptions={
            name: _corruption(tokens, columns["corruptions"].field(name), name)
            for name in CORRUPTIONS
        },
        metadata={"query_kind": _numpy(kind.indices), **read},
        kinds=tuple(kind.dictionary.to_pylist()),
    )


def _numpy(column: Any) -> np.ndarray:
    values = column.to_numpy(zero_copy_only=False)
    return values if values.dtype == bool else values.astype(np.int64)


def _ragged(column: Any) -> Ragged:
    return Ragged(_numpy(column.flatten()), _numpy(column.value_lengths()))


def _corruption(clean: Ragged, column: Any, name: str) -> Corruption:
    """Return the twins in the shape of the clean tokens; those that do not exist stay clean."""
    twins = _ragged(column.field("input_ids"))
    exists = twins.lengths > 0
    if (twins.lengths[exists] != clean.lengths[exists]).any():
        row = int(np.argmax(exists & (twins.lengths != clean.lengths)))
        raise ValueError(f"row {row}: the {name} corruption is not as long as its document")
    values = clean.values.copy()
    values[np.repeat(exists, clean.lengths)] = twins.values
    return Corruption(tokens=values, exists=exists, answer=_numpy(column.field("answer")))
