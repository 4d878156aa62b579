"""The model to train: an architecture of ours with fresh weights, or any causal language model.

Use:

    spec = ModelSpec(arch="mamba", width=64, layers=2, options={"d_conv": 2})
    model = spec.build(task, seed=0)
    ModelSpec(init_from="EleutherAI/pythia-14m").load(task, seed=0).tokenizer
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from patchbench.adapters.settings import check_types
from patchbench.common import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from patchbench.adapters import LoadedModel, MixerLMConfig
    from patchbench.tasks import Task


DEFAULT_WIDTH = 64
_BYTES_PER_PARAMETER = 16  # weight, gradient and AdamW's two means in float32
# Beyond these a typing mistake would take minutes to be noticed.
_MOST = {"width": 65_536, "layers": 1000, "heads": 65_536}
# What a fresh model is made from but no option.
_FIXED = {
    "name": "give --arch",
    "vocab_size": "the task decides it",
    "width": "give --width",
    "layers": "give --layers",
    "pattern": "give --arch",
}


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """What to build.

    Attributes:
        arch: a preset of `patchbench.adapters`, a mixer, or several by comma.
        width: of the residual stream; 64 when None.
        layers: number of layers; the preset's own when None.
        heads: of every mixer that has heads; one when None.
        init: "normal" or "pytorch", see `MixerLMConfig`; the preset's own when None.
        options: further fields of `MixerLMConfig`, or options of the mixers.
        init_from: hub id, folder or .gguf file to start from, in place of all of the above.
        tokenizer: hub id or folder, where what `init_from` names brings none.
    """

    arch: str | None = None
    width: int | None = None
    layers: int | None = None
    heads: int | None = None
    init: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    init_from: str | None = None
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        check_types("", ModelSpec, vars(self))
        if not isinstance(self.options, Mapping):
            raise UserError(f"options={self.options!r}", "names and values are needed")
        for name, most in _MOST.items():
            value = getattr(self, name)
            if value is not None and value > most:
                raise UserError(f"{name}={value}", f"at most {most:,} are possible")
        if self.width is not None and self.width < 2:
            raise UserError(
                f"width={self.width}", "at least 2 is needed: a norm over one number forgets it"
            )
        for name, instead in _FIXED.items():
            if name in self.options:
                raise UserError(f"{name} is no option", instead)
        if (self.arch is None) == (self.init_from is None):
            raise UserError("the model is not clear", "give either --arch or --init-from")
        shape = (self.width, self.layers, self.heads, self.init)
        if self.init_from is not None and (self.options or any(x is not None for x in shape)):
            raise UserError(
                "--init-from brings its own architecture",
                "drop --width, --layers, --heads, --init and --option",
            )
        if self.tokenizer is not None and self.init_from is None:
            raise UserError("--tokenizer is for --init-from", "give that too, or drop --tokenizer")

    def load(self, task: "Task", seed: int) -> "LoadedModel":
        """Return what `build` returns, and its tokenizer if it has one."""
        from patchbench.adapters import load_model

        if self.init_from is not None:
            return load_model(self.init_from, device="cpu", tokenizer=self.tokenizer)
        return without_tokenizer(self.build(task, seed))

    def build(self, task: "Task", seed: int) -> "PreTrainedModel":
        """Return the model on the CPU in float32, its fresh weights a function of `seed`.

        Raises:
            UserError: it cannot be built or loaded, or has too few token ids for the task.
        """
        if self.init_from is not None:
            return self.load(task, seed).model
        from patchbench.adapters import MixerLMConfig, MixerLMForCausalLM

        assert self.arch is not None
        given = {"num_heads": self.heads, "init": self.init}
        options = {k: v for k, v in given.items() if v is not None} | dict(self.options)
        shape: dict[str, Any] = {
            "width": DEFAULT_WIDTH if self.width is None else self.width,
            "layers": self.layers,
            "vocab_size": task.vocab_size,
        }
        config = MixerLMConfig.preset(self.arch, **shape, **options)
        if config.max_position_embeddings is not None and "max_position_embeddings" not in options:
            options["max_position_embeddings"] = task.max_length
            config = MixerLMConfig.preset(self.arch, **shape, **options)
        _check_size(config)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return MixerLMForCausalLM(config)


def _check_size(config: "MixerLMConfig") -> None:
    """Raise `UserError` unless the weights fit into the memory of this machine."""
    from patchbench.adapters import MixerLMForCausalLM

    try:
        with torch.device("meta"):
            model = MixerLMForCausalLM(config)
        count = sum(parameter.numel() for parameter in model.parameters())
    except (RuntimeError, TypeError) as error:  # a number that has no room in 64 bits
        raise UserError("the model is too large", "make the sizes smaller") from error
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if _BYTES_PER_PARAMETER * count > memory:
        raise UserError(
            f"the model has {count:,} parameters, whose training takes "
            f"{_BYTES_PER_PARAMETER * count / 2**30:,.0f} GiB of the {memory / 2**30:,.0f} GiB "
            "that this machine has",
            "make its sizes smaller",
        )


def without_tokenizer(model: "PreTrainedModel") -> "LoadedModel":
    """Return a model that reads a task's own token ids, ready to be patched but not yet probed."""
    from patchbench.adapters import LoadedModel, hook_map_for

    name = str(model.config.name_or_path or type(model).__name__)
    return LoadedModel(model=model, tokenizer=None, hook_map=hook_map_for(model), name=name)


def check_readable(model: "PreTrainedModel") -> None:
    """Raise `UserError` for a model whose folder nobody could read, before it is trained."""
    from transformers import CONFIG_MAPPING

    if (kind := model.config.model_type) not in CONFIG_MAPPING:
        raise UserError(
            f"a folder with a model of type {kind!r} cannot be read again",
            "register the type with transformers' AutoConfig and AutoModelForCausalLM, or train "
            "in a loop of your own with MechanisticCallback",
        )


def check_fit(loaded: "LoadedModel", task: "Task", longest: int) -> list[str]:
    """Return notes on a model that can learn a task's own token ids; otherwise raise.

    Args:
        loaded: the model.
        task: the task.
        longest: tokens of the longest document.

    Raises:
        UserError: the task's documents are too long, or its vocabulary is too large.
    """
    own = getattr(loaded.model.base_model, "max_length", None)
    limits = [n for n in (loaded.max_positions, own) if isinstance(n, int)]
    if limits and longest > min(limits):
        raise UserError(
            f"task {task.name!r} has documents of {longest} tokens, the architecture takes at most "
            f"{min(limits)}",
            "allow more positions (--option max_position_embeddings=…), or make the documents "
            "shorter with --set",
        )
    if loaded.vocab_size < task.vocab_size:
        raise UserError(
            f"task {task.name!r} has {task.vocab_size} token ids, the model {loaded.vocab_size}",
            "start from another model, or make the task's vocabulary smaller with --set",
        )
    if loaded.vocab_size > task.vocab_size:
        return [
            f"the model has {loaded.vocab_size} token ids, of which the task uses the first "
            f"{task.vocab_size}"
        ]
    return []
