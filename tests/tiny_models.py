"""Tiny random models of many transformers families, for the tests.

Use:

    model = tiny("llama", layers=2, width=32, vocab=64)     # eval mode, float32

Weights are larger than a fresh model's, so that no effect drowns in rounding.
"""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

HEADS = 4

# Families with grouped-query attention get 2 key–value heads for 4 query heads.
_LLAMA: dict[str, Any] = {"num_key_value_heads": 2, "intermediate_size": 48}
_LLAMA_HEADS: dict[str, Any] = {**_LLAMA, "head_dim": 8}
_MOE: dict[str, Any] = {
    "num_experts": 4,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
}
_SSM: dict[str, Any] = {"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1}
_HEADED: dict[str, Any] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_chunk_size": 8,
}
_DELTA: dict[str, Any] = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
}

_SETTINGS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_positions": 64},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "max_position_embeddings": 64},
    "gptj": {"n_positions": 64, "rotary_dim": 4},
    "gpt_neox": {"intermediate_size": 48, "max_position_embeddings": 64},
    "opt": {"ffn_dim": 48, "max_position_embeddings": 64},
    "bloom": {},
    "codegen": {"n_positions": 64, "rotary_dim": 4},
    "gpt_bigcode": {"n_positions": 64},
    "mpt": {"n_heads": HEADS},
    "falcon": {"new_decoder_architecture": False},
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": {**_LLAMA, "num_local_experts": 4},
    "qwen2": _LLAMA,
    "qwen2_moe": {**_LLAMA, **_MOE},
    "qwen3": _LLAMA_HEADS,
    "gemma": _LLAMA_HEADS,
    "gemma2": _LLAMA_HEADS,
    "gemma3_text": _LLAMA_HEADS,
    "phi": {"intermediate_size": 48},
    "phi3": _LLAMA,
    "olmo": _LLAMA,
    "olmo2": _LLAMA,
    "olmo3": _LLAMA,
    "cohere": _LLAMA,
    "cohere2": _LLAMA_HEADS,
    "granite": _LLAMA,
    "smollm3": _LLAMA,
    "glm": _LLAMA_HEADS,
    "glm4": _LLAMA_HEADS,
    "exaone4": _LLAMA,
    "helium": _LLAMA_HEADS,
    "stablelm": _LLAMA,
    "starcoder2": _LLAMA,
    "mamba": {"state_size": 8},
    "mamba2": _SSM,
    "falcon_mamba": {"state_size": 8},
    "jamba": {
        **_LLAMA,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "num_experts": 1,
        "mamba_d_state": 8,
    },
    "bamba": {**_LLAMA, **_HEADED, "attn_layer_indices": [1]},
    "zamba2": {
        **_HEADED,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "intermediate_size": 48,
        "n_mamba_heads": 4,
        "mamba_headdim": 16,
        "mamba_ngroups": 1,
        "num_mem_blocks": 1,
        "hybrid_layer_ids": [1],
        "layers_block_type": ["mamba", "hybrid"],
    },
    "falcon_h1": {**_LLAMA_HEADS, **_HEADED, "mamba_d_ssm": 64},
    "granitemoehybrid": {
        **_LLAMA,
        **_HEADED,
        "shared_intermediate_size": 48,
        "num_local_experts": 0,
        "layer_types": ["mamba", "attention"],
    },
    "qwen3_next": {**_LLAMA_HEADS, **_DELTA, "num_experts": 0},
    "qwen3_5_text": {**_LLAMA_HEADS, **_DELTA},
    "olmo_hybrid": {**_LLAMA, **_DELTA, "linear_num_key_heads": 4},
    "nemotron": _LLAMA,
    "nemotron_h": {
        **_LLAMA_HEADS,
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "ssm_state_size": 8,
        "n_groups": 2,
        "chunk_size": 8,
        "layers_block_type": ["linear_attention", "full_attention"],
    },
    "recurrent_gemma": {**_LLAMA_HEADS, "block_types": ["recurrent", "attention"]},
    "rwkv": {"attention_hidden_size": 32, "intermediate_size": 48},
    # In no table of ours:
    "biogpt": {"intermediate_size": 48},
}

FAMILIES = tuple(_SETTINGS)


def tiny_config(
    family: str, *, layers: int = 2, width: int = 32, vocab: int = 64, **changes: Any
) -> Any:
    """Return a small config of a family; widths below 32 are too small for some."""
    settings: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
        "tie_word_embeddings": False,
        **_SETTINGS[family],
    }
    if family == "gpt_neo":
        settings["attention_types"] = [[["global", "local"], (layers + 1) // 2]]
    if family == "mamba2":
        settings["head_dim"] = 2 * width // settings["num_heads"]
    if "head_dim" in settings and family not in ("mamba2",):
        settings["head_dim"] = width // HEADS
    if family == "mpt":
        settings |= {"d_model": width, "n_layers": layers}
    if family == "opt":
        settings["word_embed_proj_dim"] = width
    if "mamba" in family:
        settings.pop("num_attention_heads")
    return AutoConfig.for_model(family, **{**settings, **changes})


def tiny(
    family: str,
    *,
    seed: int = 0,
    layers: int = 2,
    width: int = 32,
    vocab: int = 64,
    **changes: Any,
) -> PreTrainedModel:
    """Return a random model of `family` in eval mode, float32, equal for equal arguments.

    `changes` are of the config.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(
            tiny_config(family, layers=layers, width=width, vocab=vocab, **changes)
        )
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim == 2 and "A_log" not in name:
                    parameter.normal_(0.0, 0.3)
    return model.eval()
