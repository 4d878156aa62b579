"""LoRA: low-rank changes of a model's linear maps, trained in place of its weights, by peft.

Use:

    targets = lora_targets(model, rank=8)                  # names of linear maps
    tuned = add_lora(model, targets, rank=8, seed=0)       # a PeftModel; the weights are frozen
    merge_lora(model, checkpoint).save_pretrained(out)     # as if they had been trained themselves

A map W of inputs x to W x becomes W + 2 B A, where A has `rank` rows and B as many columns, B zero
at the beginning. The output layer keeps its weights, and so does what runs as no module (Mamba's
`dt_proj`, read for its weights alone), where a change would never be felt, and what has its weights
in two places (tied ones), where the sum of two changes would be written into one.
"""

import copy
import importlib.util
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from patchbench.adapters.checkpoints import quiet_transformers
from patchbench.adapters.running import without_cache
from patchbench.common import UserError

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

_SCALE = 2  # what the change counts; usual, and independent of the rank
_LENGTH = 8  # tokens that are enough for every module to run
# In these peft refuses `out_proj`, whose weight some kernels read directly.
_FUSED = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")


def check_peft() -> None:
    """Raise `UserError` unless the package that does it is there."""
    if importlib.util.find_spec("peft") is None:
        raise UserError("LoRA needs the package peft", 'pip install "patchbench[lora]"')


def lora_targets(model: "PreTrainedModel", rank: int) -> list[str]:
    """Return the names of the linear maps that can be changed.

    Raises:
        UserError: there are none, or no change of them could have the rank.
    """
    owners = Counter(
        id(weight) for module in model.modules() for weight in module.parameters(recurse=False)
    )
    fused = getattr(model.config, "model_type", None) in _FUSED
    head = model.get_output_embeddings()
    targets = {
        name: min(module.weight.shape)
        for name, module in _running_maps(model).items()
        if module is not head
        and owners[id(module.weight)] == 1
        and not (fused and name.endswith("out_proj"))
    }
    if not targets:
        raise UserError("LoRA has no linear map of this model to change", "drop --lora")
    if rank > (most := max(targets.values())):
        raise UserError(
            f"lora={rank} is above {most}, the full rank of every linear map of this model",
            "choose a smaller one, or drop --lora to train all weights",
        )
    return list(targets)


def add_lora(
    model: "PreTrainedModel", targets: Sequence[str], *, rank: int, seed: int
) -> "PeftModel":
    """Freeze `model` and put trainable changes into it, in place.

    Args:
        model: the model.
        targets: see `lora_targets`.
        rank: of the changes.
        seed: of the initial A.
    """
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=rank, lora_alpha=_SCALE * rank, target_modules=list(targets))
    with torch.random.fork_rng(devices=[]), quiet_transformers():
        torch.manual_seed(seed)
        return get_peft_model(model, config)


def merge_lora(model: "PreTrainedModel", checkpoint: Path) -> "PreTrainedModel":
    """Return a copy of the original model with the changes of a checkpoint added to its weights."""
    from peft import PeftModel

    with torch.random.fork_rng(devices=[]), quiet_transformers():
        tuned: Any = PeftModel.from_pretrained(copy.deepcopy(model), str(checkpoint))
        return tuned.merge_and_unload()


def _running_maps(model: "PreTrainedModel") -> dict[str, Any]:
    """Return the linear maps that run as modules, by name."""
    ran: dict[str, Any] = {}
    embedding: Any = model.get_input_embeddings()
    tokens = torch.arange(_LENGTH, device=model.device)[None] % embedding.weight.shape[0]
    with torch.no_grad(), torch.random.fork_rng(devices=[]), ExitStack() as stack:
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear | Conv1D):
                hook = module.register_forward_hook(lambda m, *_, name=name: ran.update({name: m}))
                stack.enter_context(hook)
        model(input_ids=tokens, **without_cache(model))
    return ran
