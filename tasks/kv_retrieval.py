"""Key–value retrieval in natural words: who likes what, for models that have read text.

    { Alice: blue, David: green, Maria: coffee }
    David: green

Associative recall (`patchbench.tasks.ar`) whose keys are first names and whose values are common
nouns and colours. A tokenizer writes them as a record (the template "record") or as sentences
("Alice likes blue.", the variant `kv_retrieval/sentences`); only those words are used that it
writes as one token. Without a tokenizer it is associative recall of that size.

Use:

    result = evaluate("SmolLM2-135M-Instruct.Q4_1.gguf", load_task("kv_retrieval", num_pairs=4))

Source: Liu et al., arXiv 2307.03172, section 3, who retrieve the value of a key from a JSON object;
there keys and values are random identifiers of many tokens, which have no single position.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, cast

from patchbench.tasks.ar import ARConfig, ARTask
from patchbench.tasks.catalog import VARIANTS
from patchbench.tasks.settings import check_at_most

_NAMES = (
    "Alice David Maria John Anna Peter Sarah James Laura Thomas Emma Robert Julia Michael Daniel "
    "Paul George Mary Mark Helen Simon Kate Adam Jane Henry Lisa Martin Susan Frank Emily Steve "
    "Karen William Charles Richard Joseph Andrew Kevin Brian Jack Sam Ben Tom Tim Jim Bob Joe Max "
    "Alex Chris Nick Matt Luke Eric Ryan Jason Scott Philip Anthony Edward Rachel Jennifer Linda "
    "Elizabeth Barbara Margaret Victoria Charlotte Grace Rose Rebecca Lucy Sophie Oliver Leo Carl "
    "Louis Arthur Albert Walter Victor Oscar Lewis Harry Fred Ray"
)
_THINGS = (
    "blue green red white black yellow orange purple gold silver coffee tea milk bread rice fish "
    "cheese sugar salt wine beer music art books games sports chess football tennis golf cars "
    "trains boats horses dogs cats birds trees flowers snow rain sun wind fire water stone wood "
    "glass paper iron oil corn meat eggs apples fruit chicken soup cake chocolate honey cotton "
    "dance film theater poetry history math science law medicine travel cooking fishing hunting "
    "swimming running reading writing painting gardens mountains rivers beaches cities islands "
    "stars maps money"
)
NAMES, THINGS = tuple(_NAMES.split()), tuple(_THINGS.split())


@dataclass(frozen=True, kw_only=True)
class KVRetrievalConfig(ARConfig):
    """Settings of key–value retrieval: those of associative recall, in smaller numbers.

    Attributes:
        num_pairs: in the record.
        num_keys: different names.
        num_values: different things.
        wording: how a tokenizer's words are laid out, if the template is left to the task.
    """

    num_pairs: int = 8
    num_keys: int = 40
    num_values: int = 40
    wording: Literal["record", "sentence"] = "record"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_most(len(NAMES), num_keys=self.num_keys)
        check_at_most(len(THINGS), num_values=self.num_values)


class KVRetrievalTask(ARTask):
    """Key–value retrieval of one config and seed."""

    Config = KVRetrievalConfig
    variants: ClassVar = VARIANTS["kv_retrieval"]
    source: ClassVar = (
        "after Liu et al., *Lost in the middle: how language models use long contexts*, "
        "arXiv 2307.03172."
    )
    words: ClassVar = {"key": NAMES, "value": THINGS}

    @property
    def template(self) -> str:
        """The wording."""
        return cast(KVRetrievalConfig, self.config).wording

    @cached_property
    def symbols(self) -> list[str]:
        """`<pad> <bos> <eos> Alice … blue … <unused>`."""
        keys, values = NAMES[: self.config.num_keys], THINGS[: self.config.num_values]
        return ["<pad>", "<bos>", "<eos>", *keys, *values, "<unused>"]
