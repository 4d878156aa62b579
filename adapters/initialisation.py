"""Initial weights, in the two ways the models here are trained from.

All drawing goes through `transformers.initialization`: its functions leave alone what was loaded
from a file, so that a partly loaded model gets exactly its missing weights drawn.

Use:

    initialise(module, config)                  # for every module of a model, children first
"""

import math

from torch import nn
from transformers import initialization as init

from patchbench.adapters.block import MLP
from patchbench.adapters.config import MixerLMConfig
from patchbench.adapters.mixers import Mixer


def initialise(module: nn.Module, config: MixerLMConfig) -> None:
    """Draw the weights that belong to `module` itself; its children were drawn before.

    "normal": Linears and embeddings N(0, initializer_range), biases 0, and the last Linear of
    every residual branch N(0, initializer_range / √(2 layers)). "pytorch": Linears as PyTorch
    draws them. Convolutions and norms are as in PyTorch in both; a mixer's `init_weights` has the
    last word.

    Args:
        module: any module of a MixerLM.
        config: the model's config.
    """
    std = config.initializer_range
    if isinstance(module, nn.Embedding):
        init.normal_(module.weight, std=std)
    elif isinstance(module, nn.Linear):
        if config.init == "pytorch":
            pytorch_linear(module)
        else:
            init.normal_(module.weight, std=std)
            if module.bias is not None:
                init.zeros_(module.bias)
    elif isinstance(module, nn.Conv1d):
        pytorch_linear(module)
    elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
        init.ones_(module.weight)
        if isinstance(module, nn.LayerNorm):
            init.zeros_(module.bias)
    elif isinstance(module, MLP):
        _residual(module.down_proj, config)
    elif isinstance(module, Mixer):
        if module.linear_init == "pytorch":
            for child in module.modules():
                if isinstance(child, nn.Linear):
                    pytorch_linear(child)
        elif module.residual_projection is not None:
            _residual(module.get_submodule(module.residual_projection), config)
        module.init_weights(config)


def pytorch_linear(module: nn.Linear | nn.Conv1d) -> None:
    """Draw weight and bias uniformly within ±1/√(fan in), PyTorch's default."""
    bound = 1 / math.sqrt(module.weight[0].numel())
    init.uniform_(module.weight, -bound, bound)
    if module.bias is not None:
        init.uniform_(module.bias, -bound, bound)


def _residual(module: nn.Module, config: MixerLMConfig) -> None:
    if config.init == "normal" and isinstance(module, nn.Linear):
        depth = 2 * (config.num_hidden_layers or 1)
        init.normal_(module.weight, std=config.initializer_range / math.sqrt(depth))
