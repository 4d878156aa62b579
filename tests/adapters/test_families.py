"""Each family's components hold what their words say, by the arithmetic of the block itself.

The truth is transformers' own `output_hidden_states` and the block's norms, named here and taken
from the model by name; nothing of it reads a HookMap.
"""

from functools import lru_cache
from typing import Any

import pytest
import torch

from patchbench.adapters.families import FAMILIES
from patchbench.adapters.hook_map import HookMap, get_hidden, hook_map_for
from tests.tiny_models import tiny

TOKENS = torch.tensor([[3, 9, 27, 17, 51, 25], [3, 10, 27, 17, 51, 26]])
# Rounding of a sum of three terms of the size of the residual stream.
TOLERANCE = 1e-5

_LLAMA = {"before": ("input_layernorm", "post_attention_layernorm")}
_GPT2 = {"before": ("ln_1", "ln_2")}
_SANDWICH = {
    "before": ("input_layernorm", "pre_feedforward_layernorm"),
    "after": ("post_attention_layernorm", "post_feedforward_layernorm"),
}
_AFTER = {"after": ("post_attention_layernorm", "post_feedforward_layernorm")}
_ONE = {"before": ("norm", None)}

# before: the norms in front of mixer and MLP; after: those between them and the residual sum;
# parallel: the MLP reads what the mixer reads, not the mixer's result; first: the norm in front of
# everything else in layer 0.
BLOCKS: dict[str, Any] = {
    "gpt2": _GPT2,
    "gpt_neo": _GPT2,
    "gpt_bigcode": _GPT2,
    "gptj": {"before": ("ln_1", "ln_1"), "parallel": True},
    "codegen": {"before": ("ln_1", "ln_1"), "parallel": True},
    "gpt_neox": {**_LLAMA, "parallel": True},
    "opt": {"before": ("self_attn_layer_norm", None), "no_mlp": True},
    "bloom": _LLAMA,
    "mpt": {"before": ("norm_1", "norm_2")},
    "falcon": {"before": ("input_layernorm", "input_layernorm"), "parallel": True},
    "gemma2": _SANDWICH,
    "gemma3_text": _SANDWICH,
    "glm4": {
        "before": ("input_layernorm", "post_attention_layernorm"),
        "after": ("post_self_attn_layernorm", "post_mlp_layernorm"),
    },
    "olmo2": _AFTER,
    "olmo3": _AFTER,
    "exaone4": _AFTER,
    "phi": {"before": ("input_layernorm", "input_layernorm"), "parallel": True},
    "cohere": {"before": ("input_layernorm", "input_layernorm"), "parallel": True},
    "cohere2": {"before": ("input_layernorm", "input_layernorm"), "parallel": True},
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba"), _ONE),
    **{name: {"before": ("input_layernorm", "pre_ff_layernorm")} for name in ("jamba", "bamba")},
    "granitemoehybrid": {"before": ("input_layernorm", None), "no_mlp": True},
    # Attention stands beside the mixer.
    "falcon_h1": {"before": ("input_layernorm", None), "no_mlp": True},
    "olmo_hybrid": [_LLAMA, _AFTER],
    "nemotron_h": _ONE,
    "recurrent_gemma": {"before": ("temporal_pre_norm", "channel_pre_norm")},
    "rwkv": {"before": ("ln1", "ln2"), "first": "pre_ln"},
}
# A shared Transformer in front of the mixer of some blocks, that has no component.
NOT_A_SUM = {"zamba2"}
LAYERS = 2


@lru_cache(maxsize=4)
def _observed(family: str) -> tuple[Any, HookMap, dict[tuple[int | None, str], torch.Tensor]]:
    """Return the model, its map, and the value at each place, by raw hooks."""
    model: Any = tiny(family, layers=LAYERS)
    hook_map = hook_map_for(model)
    seen: dict[tuple[int | None, str], torch.Tensor] = {}
    handles = []
    for place, point in hook_map.points.items():
        module = model.get_submodule(point.path)
        if point.io == "input":
            handles.append(
                module.register_forward_pre_hook(
                    lambda _, args, kwargs, place=place: seen.update(
                        {place: get_hidden(args or kwargs).clone()}
                    ),
                    with_kwargs=True,
                )
            )
        else:
            handles.append(
                module.register_forward_hook(
                    lambda _, __, out, place=place: seen.update({place: get_hidden(out).clone()})
                )
            )
    with torch.no_grad():
        model(TOKENS, use_cache=False)
    for handle in handles:
        handle.remove()
    return model, hook_map, seen


def _norm(model: Any, hook_map: HookMap, layer: int, name: str | None) -> Any:
    block = model.get_submodule(f"{hook_map.blocks}.{layer}")
    return (lambda x: x) if name is None else getattr(block, name)


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_are_the_residual_stream_that_transformers_reports(family):
    model, _, seen = _observed(family)
    with torch.no_grad():
        stream = model(TOKENS, use_cache=False, output_hidden_states=True).hidden_states
        embedded = model.get_input_embeddings()(TOKENS)
    # The last one is normalised. State space models report what leaves a block, without the
    # embedding; the others what enters it.
    after = ("mamba", "mamba2", "falcon_mamba", "rwkv")
    word = "block_output" if family in after else "block_input"
    for layer in range(LAYERS):
        torch.testing.assert_close(seen[layer, word], stream[layer], rtol=0, atol=0)
    for layer in range(LAYERS - 1):
        torch.testing.assert_close(
            seen[layer, "block_output"], seen[layer + 1, "block_input"], rtol=0, atol=0
        )
    torch.testing.assert_close(seen[None, "embed"], embedded, rtol=0, atol=0)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in NOT_A_SUM])
def test_a_block_is_the_sum_of_its_parts(family):
    model, hook_map, seen = _observed(family)
    blocks = BLOCKS.get(family, _LLAMA)
    with torch.no_grad():
        for layer in range(LAYERS):
            block = blocks[layer] if isinstance(blocks, list) else blocks
            before = block.get("before", (None, None))
            after = block.get("after", (None, None))
            enters = seen[layer, "block_input"]
            if layer == 0 and "first" in block:
                enters = _norm(model, hook_map, layer, block["first"])(enters)
            mixer_reads = _norm(model, hook_map, layer, before[0])(enters)
            torch.testing.assert_close(
                seen[layer, "mixer_input"], mixer_reads, rtol=0, atol=TOLERANCE
            )
            mixed = _norm(model, hook_map, layer, after[0])(seen[layer, "mixer_output"])
            middle = enters + mixed
            if block.get("no_mlp"):
                continue  # its block goes on behind
            if (layer, "mlp_input") not in hook_map.points:
                torch.testing.assert_close(
                    seen[layer, "block_output"], middle, rtol=0, atol=TOLERANCE
                )
                continue
            mlp_reads = _norm(model, hook_map, layer, before[1])(
                enters if block.get("parallel") else middle
            )
            torch.testing.assert_close(seen[layer, "mlp_input"], mlp_reads, rtol=0, atol=TOLERANCE)
            added = _norm(model, hook_map, layer, after[1])(seen[layer, "mlp_output"])
            torch.testing.assert_close(
                seen[layer, "block_output"], middle + added, rtol=0, atol=TOLERANCE
            )


def test_gpt_neox_without_parallel_residual_is_right_as_well():
    model: Any = tiny("gpt_neox")
    for block in model.gpt_neox.layers:
        block.use_parallel_residual = False
    hook_map = hook_map_for(model)
    mlp = model.get_submodule(hook_map.point(0, "mlp_input").path)
    block, seen = model.gpt_neox.layers[0], []
    block.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    block.attention.register_forward_hook(lambda _, __, output: seen.append(output[0]))
    mlp.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        model(TOKENS, use_cache=False)
        enters, mixed, read = seen
        wanted = block.post_attention_layernorm(enters + mixed)
    torch.testing.assert_close(read, wanted, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_are_as_wide_as_the_config_says(family):
    model, hook_map, seen = _observed(family)
    config = model.config.get_text_config()
    inside = [(at, p) for at, p in hook_map.points.items() if p.heads and "hook_" not in p.path]
    wide = getattr(config, "head_dim", None) or config.hidden_size // (
        getattr(config, "num_attention_heads", None) or 1
    )
    for at, point in inside:
        assert seen[at].shape[-1] == point.heads * wide, at


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "stablelm", "jamba"])
def test_a_head_of_keys_or_values_is_shared_by_its_group_of_queries(family):
    """Two heads of keys for four of queries: noise in one moves the outputs of its two."""
    model: Any = tiny(family)
    hook_map = hook_map_for(model)
    points = {word: hook_map.point(1, word) for word in ("q", "k", "v", "head_output")}
    assert [point.heads for point in points.values()] == [4, 2, 2, 4]
    outputs: list[torch.Tensor] = []
    model.get_submodule(points["head_output"].path).register_forward_pre_hook(
        lambda _, args: outputs.append(args[0].unflatten(-1, (4, -1)))
    )
    with torch.no_grad():
        model(TOKENS, use_cache=False)
        for word, head, moved in (
            ("q", 2, [2]), ("k", 0, [0, 1]), ("k", 1, [2, 3]), ("v", 0, [0, 1]), ("v", 1, [2, 3]),
        ):  # fmt: skip

            def louder(_: Any, __: Any, out: Any, word: str = word, head: int = head) -> Any:
                parts = out.clone().unflatten(-1, (points[word].heads, -1))
                parts[:, 1:, head] += torch.arange(parts.shape[-1]) - 2.0
                return parts.flatten(-2)

            handle = model.get_submodule(points[word].path).register_forward_hook(louder)
            model(TOKENS, use_cache=False)
            handle.remove()
            change = (outputs[-1] - outputs[0]).abs().amax((0, 1, 3))
            assert [i for i, size in enumerate(change) if size > 1e-4] == moved, (word, head)


@pytest.mark.parametrize(
    ("family", "mixers"),
    [
        ("jamba", ["JambaMambaMixer", "JambaAttention"]),
        ("bamba", ["BambaMixer", "BambaAttention"]),
        ("zamba2", ["Zamba2MambaMixer", "Zamba2MambaMixer"]),
        ("falcon_h1", ["FalconH1Mixer", "FalconH1Mixer"]),
        ("granitemoehybrid", ["GraniteMoeHybridMambaLayer", "GraniteMoeHybridAttention"]),
        ("qwen3_next", ["Qwen3NextGatedDeltaNet", "Qwen3NextAttention"]),
        ("nemotron_h", ["NemotronHMamba2Mixer", "NemotronHAttention"]),
        ("recurrent_gemma", ["RecurrentGemmaRecurrentBlock", "RecurrentGemmaAttention"]),
    ],
)
def test_the_mixer_of_a_hybrids_layer_is_this_one(family, mixers):
    model, hook_map, _ = _observed(family)
    for layer, kind in enumerate(mixers):
        for word in ("mixer_input", "mixer_output"):
            path = hook_map.point(layer, word).path
            assert type(model.get_submodule(path)).__name__ == kind


def test_a_block_that_is_an_mlp_alone():
    model: Any = tiny("nemotron_h", layers_block_type=["linear_attention", "mlp"])
    hook_map = hook_map_for(model)
    assert set(hook_map.components(1)) == {"block_input", "mlp_input", "mlp_output", "block_output"}
    block, seen = model.model.layers[1], {}
    for word in ("mlp_input", "mlp_output"):
        point = hook_map.point(1, word)
        assert (point.path, point.io) == ("model.layers.1.mixer", word.partition("_")[2])
    block.register_forward_hook(lambda _, args, out: seen.update(enters=args[0], leaves=out))
    block.mixer.register_forward_hook(lambda _, args, out: seen.update(reads=args[0], adds=out))
    with torch.no_grad():
        model(TOKENS, use_cache=False)
        wanted = block.norm(seen["enters"])
    torch.testing.assert_close(seen["reads"], wanted, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(
        seen["leaves"], seen["enters"] + seen["adds"], rtol=0, atol=TOLERANCE
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_patched_embedding_moves_that_position_and_those_after(family):
    model, hook_map, _ = _observed(family)
    module = model.get_submodule(hook_map.point(None, "embed").path)
    with torch.no_grad():
        clean = model(TOKENS, use_cache=False).logits

        def patch(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
            output = output.clone()
            output[:, 2] = 1.0 + torch.arange(output.shape[-1]) % 3
            return output

        handle = module.register_forward_hook(patch)
        patched = model(TOKENS, use_cache=False).logits
        handle.remove()
    moved = (patched - clean).abs().amax(dim=(0, 2))
    assert moved[:2].max() <= TOLERANCE
    assert moved[2:].min() > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_is_named(family):
    model, hook_map, _ = _observed(family)
    assert model.get_submodule(hook_map.head) is model.get_output_embeddings()
    assert model.get_submodule(hook_map.embed) is model.get_input_embeddings()
    assert hook_map.num_layers == LAYERS
    assert hook_map.origin == "table"
