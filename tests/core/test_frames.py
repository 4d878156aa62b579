"""A Result as a data frame, as arrays, as MIB's graph: the same numbers at their places."""

import json
from itertools import product

import numpy as np
import pytest
from transformers import GPT2Config

import patchbench as pb
from patchbench.adapters.bundled import WEIGHTS
from patchbench.mib import circuit, write_circuit

CONFIG = GPT2Config(n_layer=2, n_head=2, n_embd=64)


@pytest.fixture(scope="module")
def result():
    return pb.Result.load(WEIGHTS / "ar-attention" / "result")


def test_a_line_for_each_site(result):
    frame = result.to_pandas()
    assert len(frame) == sum(len(run["effects"]) for run in result.summary["runs"]) > 0
    for line in frame.itertuples():
        effect = result.attrib(line.site, line.corruption, line.direction)
        found = (line.attrib, line.attrib_low, line.attrib_high)
        # JSON and back keeps all digits but the last.
        assert found == pytest.approx((effect.value, effect.low, effect.high), rel=1e-12)
        assert line.site == f"L{line.layer}.{line.component}@{line.position}"


def test_every_number_stands_at_its_labels(result):
    arrays = result.to_arrays()
    names = ("corruption", "direction", "component", "layer", "position")
    assert arrays["attrib"].shape == tuple(len(arrays[name]) for name in names)
    assert list(arrays["layer"]) == sorted(arrays["layer"])
    seen = 0
    measured = set(result.to_pandas()["site"])
    for place in product(*(range(len(arrays[name])) for name in names)):
        labels = [arrays[name][i] for name, i in zip(names, place, strict=True)]
        corruption, direction, component, layer, position = labels
        site = f"L{layer}.{component}@{position}"
        value = arrays["attrib"][place]
        if site in measured:
            assert value == pytest.approx(
                result.attrib(site, corruption, direction).value, rel=1e-12
            )
            seen += 1
        else:
            assert np.isnan(value)
    assert seen == len(result.to_pandas())


def test_labelled_arrays(result):
    pytest.importorskip("xarray")
    data = result.to_xarray()
    line = result.to_pandas().iloc[0]
    found = data["attrib"].sel(
        corruption=line.corruption, direction=line.direction, component=line.component,
        layer=line.layer, position=line.position,
    )  # fmt: skip
    assert found.item() == line.attrib
    assert data.attrs["verdict"] == str(result.verdict)


def mib_result():
    """Return the bundled attention, measured at all nodes of its graph."""
    sites = ["embed@key", "embed@value", "L*.head_output[*]@query", "L*.head_output[*]@value"]
    return pb.evaluate(
        "patchbench/ar-attention", "ar/mini", n=32, sites=[*sites, "L*.mlp_output@query"],
        selfcheck=False,
    )  # fmt: skip


def test_the_graph_of_the_circuit_track(tmp_path):
    result = mib_result()
    heads = len({s for s in result.rows["head"].to_pylist() if s is not None})
    config = GPT2Config(n_layer=2, n_head=heads, n_embd=64)
    write_circuit(result, tmp_path / "importances.json", config)
    graph = json.loads((tmp_path / "importances.json").read_text())
    assert graph["cfg"] == {
        "n_layers": 2, "n_heads": heads, "parallel_attn_mlp": False, "d_model": 64
    }  # fmt: skip
    sources, layers = 1 + 2 * (heads + 1), 2
    assert len(graph["nodes"]) == sources + 1
    # Their own formula: what stands before a head, an MLP and the logits.
    before = [1 + layer * (heads + 1) for layer in range(layers)]
    edges = sum(3 * heads * n + (n + heads) for n in before) + sources
    assert len(graph["edges"]) == edges
    values = {
        name: [result.attrib(site).value for site in sites]
        for name, sites in {
            "input": ["embed@key", "embed@value"],
            "m1": ["L1.mlp_output@query"],
            "a1.h0": ["L1.head_output[0]@query", "L1.head_output[0]@value"],
        }.items()
    }
    for name, numbers in values.items():
        assert graph["nodes"][name]["score"] == pytest.approx(max(numbers, key=abs), rel=1e-12)
    assert graph["edges"]["input->a0.h0<q>"]["score"] == graph["nodes"]["input"]["score"]
    assert "m1->logits" in graph["edges"]
    assert "a1.h0->m1" in graph["edges"]
    assert "a1.h0->m1" not in circuit(result, config, parallel=True)["edges"]
    assert "m1->a1.h0<q>" not in graph["edges"]


def test_the_graph_of_a_bundled_model_with_its_own_config():
    config = pb.load_model("patchbench/ar-attention").model.config
    graph = circuit(mib_result(), config)
    assert graph["cfg"] == {
        "n_layers": 2, "n_heads": 1, "parallel_attn_mlp": False, "d_model": 64
    }  # fmt: skip
    assert [name for name in graph["nodes"] if name.startswith("a")] == ["a0.h0", "a1.h0"]


def test_a_graph_with_a_node_missing_is_refused(result):
    with pytest.raises(pb.UserError, match="nodes of the circuit have no score, among them input"):
        circuit(result, CONFIG)
