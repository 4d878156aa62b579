"""What to change when a task is larger than a model: the largest setting that fits, in words.

Use:

    raise UserError("the prompt is too long", shorter_documents(task, excess=6, context=32))
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from patchbench.common import UserError

if TYPE_CHECKING:
    from patchbench.tasks.base import Task
    from patchbench.tasks.example import Examples


def fewer_symbols(task: "Task", *, room: int, needed: int) -> str:
    """Return the settings with which the model can tell all symbols apart.

    Args:
        task: the task.
        room: symbols that the model has tokens for.
        needed: symbols that the task has.
    """
    config: Mapping[str, Any] = vars(task.config)
    sizes = {f"num_{kind}s": 0 for kind in task.kinds if f"num_{kind}s" in config}
    left = room - (needed - sum(config[name] for name in sizes))
    # The smaller kinds may stay as they are, and leave room to the larger.
    for done, name in enumerate(sorted(sizes, key=lambda name: config[name])):
        sizes[name] = min(config[name], left // (len(sizes) - done))
        left -= sizes[name]
    if sizes and _possible(task, sizes):
        return "the largest that fits is " + ",".join(f"{k}={v}" for k, v in sizes.items())
    return "choose a task with a smaller vocabulary, or a model with a larger one"


def shorter_documents(
    task: "Task", *, excess: int, context: int, pair: int = 2, where: str = ""
) -> str:
    """Return the largest setting with which no document is longer than the model can read.

    Args:
        task: the task.
        excess: tokens that the longest document has too many.
        context: symbols of its context.
        pair: tokens of one key–value pair, with what is written around it.
        where: what else the setting takes for granted, as " with shots=0".
    """
    config: Mapping[str, Any] = vars(task.config)
    for name, tokens in task.longer_by(pair).items():
        largest = config[name] - -(-excess // tokens)
        if _possible(task, {name: largest}):
            return f"the largest that fits is {name}={largest}{where}"
    if "max_sentence_length" in config and context - excess >= config["min_length"]:
        return f"the largest that fits is max_sentence_length={context - excess}{where}"
    return "choose other settings of the task, or choose another model"


def longest_context(examples: "Examples") -> int:
    """Return the number of symbols of the longest context."""
    return int((examples.roles["divider"] - examples.roles["bos"] - 1).max())


def _possible(task: "Task", settings: Mapping[str, int]) -> bool:
    """Return whether the task can be made with these settings in place of its own."""
    try:
        replace(task.config, **settings)
    except UserError:
        return False
    return True
