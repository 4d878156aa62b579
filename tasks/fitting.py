"""What to change when a task is larger than a model: the largest setting that fits, in words.

Use:

    raise UserError("the prompt is too long", shorter_documents(task, excess=6, context=32))
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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
    if "num_keys" in config and "num_values" in config:
        small = min(config["num_keys"], config["num_values"], room // 2)
        sizes = {"num_keys": small, "num_values": small}
        # The smaller kind may stay as it is, and leaves room to the larger.
        larger = "num_keys" if config["num_keys"] > config["num_values"] else "num_values"
        sizes[larger] = min(config[larger], room - small)
        if small > config.get("num_pairs", 1):
            return "the largest that fits is " + ",".join(f"{k}={v}" for k, v in sizes.items())
    if "num_terminals" in config:
        largest = room - (needed - config["num_terminals"])
        if largest >= 2:
            return f"the largest that fits is num_terminals={largest}"
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
    if "num_pairs" in config:
        pairs = config["num_pairs"] - -(-excess // pair)
        if pairs >= 1:
            return f"the largest that fits is num_pairs={pairs}{where}"
    if "max_sentence_length" in config and context - excess >= config["min_length"]:
        return f"the largest that fits is max_sentence_length={context - excess}{where}"
    return "the task's shortest document is too long; choose another model"


def longest_context(examples: "Examples") -> int:
    """Return the number of symbols of the longest context."""
    return int((examples.roles["divider"] - examples.roles["bos"] - 1).max())
