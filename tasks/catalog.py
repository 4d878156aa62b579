"""The tasks there are, by name: "family" or "family/variant".

Nothing heavy is imported until a task is loaded, so that a listing costs nothing. Another package
adds a family by the decorator or by an entry point of the group `patchbench.tasks`.

Use:

    load_task("atr/easy", seed=0, num_terminals=20)

    @TASKS.register("my_task")
    class MyTask(Task): ...
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import TYPE_CHECKING, Any

from patchbench.common import Registry, UserError, near_names

if TYPE_CHECKING:
    from patchbench.tasks.base import Task


def _refuse(target: object) -> str | None:
    """Return what keeps an object from being a task."""
    from patchbench.tasks.base import Task

    if not (isinstance(target, type) and issubclass(target, Task)):
        return "it is no subclass of patchbench.tasks.Task"
    # A cached property does not tell that what it wraps is abstract.
    cached = {name for name in ("kinds", "symbols") if getattr(target, name) is vars(Task)[name]}
    if missing := sorted(target.__abstractmethods__ | cached):
        return f"it does not define {', '.join(missing)}"
    if not is_dataclass(getattr(target, "Config", None)):
        return "its Config is no dataclass"
    named = target.variants
    if not isinstance(named, Mapping) or not all(isinstance(v, Variant) for v in named.values()):
        return "its variants are no mapping of names to Variants"
    return None


TASKS: "Registry[type[Task]]" = Registry("task", entry_points="patchbench.tasks", refuse=_refuse)
TASKS.add("ar", "patchbench.tasks.ar:ARTask")
TASKS.add("atr", "patchbench.tasks.atr:ATRTask")
TASKS.add("induction", "patchbench.tasks.induction:InductionTask")
TASKS.add("inverse_match", "patchbench.tasks.inverse_match:InverseMatchTask")
TASKS.add("joint_recall", "patchbench.tasks.joint_recall:JointRecallTask")
TASKS.add("kv_retrieval", "patchbench.tasks.kv_retrieval:KVRetrievalTask")
TASKS.add("mqar", "patchbench.tasks.mqar:MQARTask")


@dataclass(frozen=True)
class Variant:
    """A named config of a family.

    Attributes:
        description: what it is, in one line.
        settings: its config.
        spread: how much its floors differ from seed to seed, for the dataset card.
    """

    description: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    spread: str = ""


@dataclass(frozen=True)
class TaskInfo:
    """A task's name and one line on what it is."""

    name: str
    description: str


# What a family without a plain variant means by its bare name.
ALIASES: Mapping[str, str] = {"atr": "atr/easy"}


def _spread(following: str, last: str, length: str, dropped: str) -> str:
    return (
        "One grammar is one draw. Over 60 grammar seeds (mean ± standard deviation, before rows "
        f"are dropped): next token {following} %, rightmost {last} %, sentence length {length}, "
        f"dropped {dropped} %."
    )


# The variants of our own families stand here, and not on the classes, to be listed without them.
VARIANTS: Mapping[str, Mapping[str, Variant]] = {
    "ar": {
        "": Variant("associative recall: 16 key–value pairs, then a key; 4096 keys and values"),
        "reverse": Variant(
            "associative recall asked backwards: a value, answer its key", {"reverse": True}
        ),
        "held_out": Variant(
            "associative recall; test asks pairs that training never asks", {"held_out": 0.2}
        ),
        "mini": Variant(
            "associative recall with 8 pairs of 64 keys and 64 values",
            {"num_pairs": 8, "num_keys": 64, "num_values": 64},
        ),
        "tiny": Variant(
            "associative recall with 4 pairs of 16 keys and 16 values",
            {"num_pairs": 4, "num_keys": 16, "num_values": 16},
        ),
    },
    "atr": {
        "easy": Variant(
            "associative treecall: the parent of a terminal; 20 terminals, short rules",
            spread=_spread("54.2 ± 3.7", "53.2 ± 4.5", "10.0 ± 1.8", "7.0 ± 3.7"),
        ),
        "medium": Variant(
            "associative treecall with rules of up to 9 symbols",
            {"max_rhs_length": 10},
            _spread("38.2 ± 3.4", "42.9 ± 3.4", "56.0 ± 16.3", "30.1 ± 6.4"),
        ),
        "large_vocab": Variant(
            "associative treecall with 8192 terminals",
            {"num_terminals": 8192, "terminal_occurrence_factor": 20.0},
            _spread("48.8 ± 4.0", "49.1 ± 5.0", "10.0 ± 1.8", "0.0 ± 0.0"),
        ),
        "uniform_heads": Variant(
            "associative treecall whose heads are uniform: key–value statistics carry nothing",
            {"heads": "uniform"},
            _spread("54.3 ± 3.5", "53.3 ± 4.6", "10.0 ± 1.8", "6.9 ± 3.5"),
        ),
        "held_out": Variant(
            "associative treecall; test asks pairs that training never asks",
            {"held_out": 0.2},
            _spread("47.7 ± 4.6", "47.4 ± 4.5", "11.9 ± 2.1", "6.2 ± 2.5") + " (Of test.)",
        ),
        "sibling": Variant(
            "associative treecall: the rightmost sibling",
            {"query_kinds": ("sibling",)},
            _spread("26.5 ± 3.6", "0.0 ± 0.0", "10.4 ± 1.8", "4.0 ± 1.6"),
        ),
        "child": Variant(
            "associative treecall: a child, any of them",
            {"query_kinds": ("child",)},
            _spread("2.5 ± 0.6", "5.6 ± 0.4", "10.0 ± 1.8", "11.2 ± 4.4"),
        ),
        "left": Variant(
            "associative treecall, left-headed: the parent stands before its children",
            {"headedness": "left"},
            _spread("4.0 ± 0.5", "5.2 ± 0.7", "10.0 ± 1.8", "7.2 ± 3.9"),
        ),
    },
    "induction": {
        "": Variant("induction: 32 distinct tokens, which begin to repeat at a random place"),
        "tiny": Variant("induction in 8 of 16 tokens", {"length": 8, "num_tokens": 16}),
    },
    "inverse_match": {
        "": Variant("the listed sequence that is the query backwards; 4 sequences of 4, both ways"),
        "forward": Variant(
            "the listed sequence that is the query as it stands, on the same lists",
            {"forward": True},
        ),
        "tiny": Variant(
            "inverse matching of 2 sequences of 2 of 16 tokens",
            {"num_sequences": 2, "length": 2, "num_tokens": 16, "num_values": 16},
        ),
    },
    "joint_recall": {
        "": Variant(
            "joint recall: the same 4 keys in each of 4 contexts, then a context and a key"
        ),
        "tiny": Variant(
            "joint recall of 2 keys in each of 2 contexts",
            {"num_blocks": 2, "num_pairs": 2, "num_contexts": 4, "num_keys": 16, "num_values": 16},
        ),
    },
    "kv_retrieval": {
        "": Variant("who likes what, in words: a record of 8 names and things, then a name"),
        "sentences": Variant(
            "who likes what, in sentences instead of a record", {"wording": "sentence"}
        ),
    },
    "mqar": {
        "": Variant("multi-query associative recall: 4 pairs, each asked within 64 tokens"),
        "128": Variant("multi-query recall: 8 pairs, 128 tokens", {"length": 128, "num_pairs": 8}),
        "256": Variant(
            "multi-query recall: 16 pairs, 256 tokens", {"length": 256, "num_pairs": 16}
        ),
        "512": Variant(
            "multi-query recall: 64 pairs, 512 tokens", {"length": 512, "num_pairs": 64}
        ),
        "tiny": Variant(
            "multi-query recall of 3 pairs of 16 keys and 16 values, in 24 tokens",
            {"length": 24, "num_pairs": 3, "num_keys": 16, "num_values": 16},
        ),
    },
}


def list_tasks() -> list[TaskInfo]:
    """Return every task, by name."""
    return [
        TaskInfo(_join(family, variant), description.description)
        for family in TASKS
        for variant, description in sorted(variants_of(family).items())
    ]


def load_task(name: str, *, seed: int = 0, **overrides: Any) -> "Task":
    """Return a task.

    Args:
        name: as `list_tasks` gives it; "atr" is "atr/easy".
        seed: of everything random in the task.
        **overrides: settings of the task's config, as values or as text.

    Raises:
        UserError: an unknown task or setting, or an impossible value.
    """
    from patchbench.tasks.settings import make_config

    if not isinstance(name, str):
        raise UserError(f"a {type(name).__name__} is no task", "give its name, such as 'ar'")
    name = ALIASES.get(name, name)
    family, _, variant = name.partition("/")
    if family not in TASKS or variant not in variants_of(family):
        raise UserError(
            f"unknown task {name!r}", near_names(name, [info.name for info in list_tasks()])
        )
    cls = TASKS[family]
    settings = {**variants_of(family)[variant].settings, **overrides}
    config = make_config(cls.Config, settings, where=f"task {name!r}")
    return cls(name=name, config=config, seed=seed)


def variants_of(family: str) -> Mapping[str, Variant]:
    """Return the named configs of a family."""
    return VARIANTS[family] if family in VARIANTS else TASKS[family].variants


def _join(family: str, variant: str) -> str:
    return f"{family}/{variant}" if variant else family
