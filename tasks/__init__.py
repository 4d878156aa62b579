"""Recall tasks as datasets with token roles, corrupted twins and a known rule.

Use:

    task = load_task("atr/easy", seed=0, num_terminals=20)
    rows = task.dataset("test", n=256)                     # a datasets.Dataset
    rows[0]["input_ids"], rows[0]["roles"], rows[0]["corruptions"]["key"]["input_ids"]
"""

import importlib
from typing import TYPE_CHECKING, Any

from patchbench.tasks.catalog import TASKS, TaskInfo, Variant, list_tasks, load_task

_LAZY = {
    "Examples": "patchbench.tasks.example",
    "Task": "patchbench.tasks.base",
    "export_task": "patchbench.tasks.export",
    "push_to_hub": "patchbench.tasks.export",
}

__all__ = [
    "TASKS",
    "Examples",
    "Task",
    "TaskInfo",
    "Variant",
    "export_task",
    "list_tasks",
    "load_task",
    "push_to_hub",
]

if TYPE_CHECKING:
    from patchbench.tasks.base import Task
    from patchbench.tasks.example import Examples
    from patchbench.tasks.export import export_task, push_to_hub


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'patchbench.tasks' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
