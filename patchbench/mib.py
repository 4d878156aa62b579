"""A Result as node scores of the Mechanistic Interpretability Benchmark's circuit track.

Use:

    sites = [f"{node}@{role}" for role in ("key", "value", "query") for node in NODES]
    result = evaluate(model, task, sites=sites)
    write_circuit(result, "ar_gpt2/importances.json", model.config)

A node is an attention head, an MLP or the input; its score is the Attrib, of those measured at any
position, that is farthest from 0. An edge has the score of the node that it leaves. Format:
https://github.com/aaronmueller/MIB (Mueller et al., arXiv 2504.13151).
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchbench.common import UserError, atomic_write
from patchbench.sites import single_site

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from patchbench.results import Result

# The sites, without their position, that a circuit is made of.
NODES = ("embed", "L*.head_output[*]", "L*.mlp_output")


def circuit(
    result: "Result",
    config: "PreTrainedConfig",
    *,
    corruption: str = "key",
    direction: str = "denoise",
    parallel: bool = False,
) -> dict[str, Any]:
    """Return the graph: "cfg", "nodes" and "edges".

    Args:
        result: with a site for every head, every MLP and the embedding.
        config: the model's, for the numbers of heads and features. Where it has no number of heads
            the heads are those that were measured.
        corruption: which of the measured ones.
        direction: which of the measured ones.
        parallel: whether the MLP of a block reads what its attention reads.

    Raises:
        UserError: a node was not measured, or the Result is below the gate.
    """
    layers = int(result.provenance["model"]["num_layers"])
    scores = _scores(result, corruption, direction)
    heads = getattr(config, "num_attention_heads", None)
    if heads is None:
        heads = 1 + max(
            (head for head in result.rows["head"].to_pylist() if head is not None), default=0
        )
    names = ["input", *(f"a{la}.h{h}" for la in range(layers) for h in range(heads))]
    names += [f"m{layer}" for layer in range(layers)]
    if missing := [name for name in names if name not in scores]:
        raise UserError(
            f"{len(missing)} nodes of the circuit have no score, among them {missing[0]}",
            f"measure {', '.join(NODES)} at one or more positions, on a model above the gate",
        )
    nodes = {name: {"in_graph": False, "score": scores[name]} for name in names}
    return {
        "cfg": {
            "n_layers": layers,
            "n_heads": heads,
            "parallel_attn_mlp": parallel,
            "d_model": int(config.hidden_size),
        },
        "nodes": {**nodes, "logits": {"in_graph": False, "score": 0.0}},
        "edges": {
            f"{start}->{end}": {"score": scores[start], "in_graph": False}
            for start, end in _edges(layers, heads, parallel)
        },
    }


def write_circuit(
    result: "Result", path: str | Path, config: "PreTrainedConfig", **settings: Any
) -> None:
    """Write what `circuit` returns as JSON."""
    text = json.dumps(circuit(result, config, **settings), indent=1)
    with atomic_write(Path(path)) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _scores(result: "Result", corruption: str, direction: str) -> dict[str, float]:
    scores: dict[str, float] = {}
    for run in result.summary["runs"]:
        if (run["corruption"], run["direction"]) != (corruption, direction):
            continue
        for effect in run["effects"]:
            name, value = _node(effect), (effect.get("attrib") or {}).get("value")
            if name is not None and value is not None:
                scores[name] = max(scores.get(name, 0.0), float(value), key=abs)
    return scores


def _node(effect: Mapping[str, Any]) -> str | None:
    site = single_site(effect["site"])
    if site is None:
        return None
    if site.component == "embed":
        return "input"
    if site.component == "mlp_output":
        return f"m{site.layer}"
    if site.component == "head_output" and site.head is not None:
        return f"a{site.layer}.h{site.head}"
    return None


def _edges(layers: int, heads: int, parallel: bool) -> Iterator[tuple[str, str]]:
    """Yield every edge of a Transformer's residual stream, in the order of the layers."""
    stream = ["input"]
    for layer in range(layers):
        attention, mlp = [f"a{layer}.h{head}" for head in range(heads)], f"m{layer}"
        for start in stream:
            yield from ((start, f"{name}<{kind}>") for name in attention for kind in "qkv")
        before = stream if parallel else [*stream, *attention]
        yield from ((start, mlp) for start in before)
        stream = [*stream, *attention, mlp]
    yield from ((start, "logits") for start in stream)
