"""Labels from rows whose effects are known: each rule, its limits, and what is not said."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest

from patchbench.mechanism import LABELS, Verdict, decide
from patchbench.results import Result
from tests.core.rows import PROVENANCE, make_rows

START = {"L0.block_input@key": 1.0, "L0.block_input@value": 0.0, "L0.block_input@query": 0.0}


def verdict(effects: dict, *, layers: int = 2, components=("block_input",), value=None, **rows):
    tables = [make_rows(START | effects, n=60, right=56, **rows)]
    if value is not None:
        other = make_rows(value, n=60, right=56, **rows)
        field = other.schema.field(index := other.schema.get_field_index("corruption"))
        tables.append(other.set_column(index, field, pa.array(["value"] * len(other))))
    model = PROVENANCE["model"] | {"num_layers": layers, "components": list(components)}
    return Result.from_rows(
        pa.concat_tables(tables),
        config={"seed": 0, "resamples": 500},
        provenance=PROVENANCE | {"model": model},
    ).verdict


def entering(layer: int, **effects: float) -> dict[str, float]:
    names = {"plus": "value+1"}
    return {f"L{layer}.block_input@{names.get(k, k)}": v for k, v in effects.items()}


CONV = "L0.conv_output@value"
CASES = {
    "stored at the value": (entering(1, key=0, value=1, query=0), "induction"),
    "most at the value": (entering(1, key=0.2, value=0.7, query=0), "induction"),
    "behind the value": (entering(1, key=0, value=0, plus=0.9, query=0), "induction"),
    "behind it by convolution": (
        entering(1, key=0, value=0, plus=0.9, query=0) | {CONV + "+1": 0.9},
        "conv-bound induction",
    ),
    "behind it, convolved later": (
        entering(1, key=0, value=0, plus=0.9, query=0) | {"L1.conv_output@value+1": 0.9},
        "induction",
    ),
    "convolution": (
        entering(1, key=0.7, value=0, query=0.3) | {"L1.conv_output@value+2": 0.9},
        "conv-bound induction",
    ),
    "convolution, then stored": (
        entering(1, key=0, value=1, query=0) | {CONV: 1.0},
        "induction",
    ),
    "key shifted": (entering(1, key=0, value=0, query=1) | {CONV: 1.0}, "direct retrieval, early"),
    "early": (entering(1, key=0, value=0, query=1), "direct retrieval, early"),
    "late": (entering(1, key=1, value=0, query=0), "direct retrieval, late"),
    "distributed": (entering(1, key=0.3, value=0.3, query=0.35), "distributed"),
    "hardly half together": (entering(1, key=0.26, value=0, query=0.243), None),
    "elsewhere": (entering(1, key=0.1, value=0.0, query=0.1), None),
    "a half": (entering(1, key=0, value=0.5, query=0.5), None),
    "two ways": (entering(1, key=0, value=0.9, query=0.9), None),
    "value unseen": (entering(1, key=0, query=1), None),
    "stored, key unseen": (entering(1, value=1, query=0), None),
    "stored, query unseen": (entering(1, key=0, value=1), None),
    "stored, key unsure": (entering(1, key=0.5, value=1, query=0), None),
    "parts, query unseen": (entering(1, key=0.4, value=0.4, plus=0.3), None),
    "parts, key unseen": (entering(1, value=0.4, plus=0.4, query=0.4), None),
    "no boundary": ({}, None),
}


@pytest.mark.parametrize("direction", ["denoise", "noise"])
@pytest.mark.parametrize(("effects", "label"), CASES.values(), ids=CASES)
def test_labels(effects, label, direction):
    found = verdict(effects, direction=direction)
    assert found.label == label
    assert found.is_mechanism == (label is not None)
    assert str(found) == (label or "no verdict")
    verb = "restores" if direction == "denoise" else "removes"
    assert label in (None, "distributed") or verb in found.sentence


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ({CONV: 1.0}, "conv-bound induction"),  # the convolution holds both
        ({CONV: 0.0}, "direct retrieval, early"),  # it shifts the key, the value goes elsewhere
    ],
)
def test_at_the_value_itself_two_corruptions_tell_binding_from_shifting(value, label):
    effects = entering(1, key=0, value=0, query=1) | {CONV: 1.0}
    assert verdict(effects, value=value).label == label


@pytest.mark.parametrize(
    ("fetched", "label"),
    [(1, "early"), (3, "early"), (4, "late"), (5, "late"), (6, "late")],
)
def test_halves_of_a_deep_model(fetched, label):
    """Layer fetched − 1 fetches; of six layers three are the first half."""
    effects = {}
    for layer in range(1, 6):
        query = float(layer >= fetched)
        effects |= entering(layer, key=1 - query, value=0, query=query)
    found = verdict(effects, layers=6)
    assert found.label == f"direct retrieval, {label}"
    assert found.arrives is not None
    assert (found.arrives.value, found.arrives.low, found.arrives.high) == (fetched,) * 3


def test_layers_that_were_not_looked_at_leave_the_half_open():
    effects = entering(1, key=1, value=0, query=0) | entering(5, key=0, value=0, query=1)
    found = verdict(effects, layers=6)
    assert found.label is None
    assert "between layer 1 and 4" in found.sentence


def test_the_layer_of_a_crossing_has_an_interval_over_examples():
    effects = (
        entering(1, key=0.9, value=0.1, query=0)
        | entering(2, key=0.1, value=0.501, query=0)
        | entering(3, key=0, value=0.9, query=0)
    )
    found = verdict(effects, layers=4)
    assert found.label == "induction"
    assert found.appears is not None
    assert (found.appears.value, found.appears.low, found.appears.high) == (2, 2, 3)
    assert "[2, 3]" in found.sentence


@pytest.mark.parametrize(
    ("settings", "label", "says"),
    [({"right": 20}, "not solved", "floor"), ({"corrupted": 0.9}, None, "p(answer)")],
)
def test_below_the_gate_no_mechanism_is_named(settings, label, says):
    rows = make_rows(START | entering(1, value=1), n=60, **{"right": 56, **settings})
    found = Result.from_rows(rows, config={"resamples": 200}, provenance=PROVENANCE).verdict
    assert found.label == label
    assert not found.is_mechanism
    assert says in found.sentence


FETCHED = entering(1, key=0, value=0, query=1)
AT_KEY = entering(1, key=1, value=0, query=0)
BOTH = {CONV: 0.0, CONV + "+1": 0.0}
ALL = BOTH | {CONV + "+2": 0.0}


@pytest.mark.parametrize(
    ("effects", "label", "says"),
    [
        (FETCHED, None, "not looked at, and may bind the pair ("),
        (FETCHED | {CONV: 0.0}, None, "not looked at @value+1, and may"),
        (FETCHED | {CONV + "+1": 0.0}, None, "not looked at @value, and may"),
        # What a convolution of width 4 binds two tokens behind the value, right behind the key.
        (AT_KEY | BOTH, None, "not looked at @value+2, and may"),
        (
            FETCHED | {"L0.conv_output@query": 0.0},
            None,
            "not looked at, and may bind the pair (",
        ),
        (FETCHED | ALL, "direct retrieval, early", ""),
        (AT_KEY | ALL, "direct retrieval, late", ""),
        (CASES["distributed"][0], None, "not looked at, and may bind the pair ("),
        (CASES["distributed"][0] | ALL, "distributed", ""),
        # What is seen to be stored is stored, whatever else binds.
        (CASES["stored at the value"][0], "induction", "; its short convolutions were not"),
    ],
)
def test_a_short_convolution_that_was_not_looked_at_may_bind(effects, label, says):
    found = verdict(effects, components=("block_input", "conv_output"))
    assert found.label == label
    assert says in found.sentence
    assert found.sentence.count("convolutions") == bool(says)
    remedy = (
        "; --components block_input,conv_output --positions key,value,value+1,value+2,query "
        "looks at them."
    )
    assert found.sentence.endswith(remedy) == (label is None)
    assert "convolutions" not in verdict(FETCHED).sentence


def with_nan(effects: dict, site: str) -> Verdict:
    """Return the verdict on rows in which a site has five examples, hence no interval."""
    rows = make_rows(START | effects, n=60, right=56)
    keep = pa.compute.or_(
        pa.compute.not_equal(rows["site"], site), pa.compute.less(rows["example"], 5)
    )
    model = PROVENANCE["model"] | {"num_layers": 2, "components": ["block_input"]}
    return Result.from_rows(
        rows.filter(keep), config={"resamples": 200}, provenance=PROVENANCE | {"model": model}
    ).verdict


@pytest.mark.parametrize(
    ("effects", "site", "label", "says"),
    [
        (FETCHED, "L1.block_input@value", None, "value has no interval"),
        (entering(1, key=0, value=1, query=0), "L1.block_input@key", None, "key has no interval"),
        (entering(1, key=0, value=1, query=0), "L1.block_input@query", None, "has no interval"),
        (FETCHED, "L1.block_input@key", "direct retrieval, early", "at the input of layer 1"),
        # It hides nothing: the other one is told.
        (
            entering(1, key=0, value=0, query=1) | {"L1.block_input@answer-1": 1.0},
            "L1.block_input@answer-1",
            "direct retrieval, early",
            "at the query the answer is first seen at the input of layer 1",
        ),
    ],
)
def test_a_site_without_an_interval_decides_nothing(effects, site, label, says):
    found = with_nan(effects, site)
    assert found.label == label
    assert says in found.sentence


@pytest.mark.parametrize("site", ["key", "value", "query"])
def test_wide_intervals_decide_nothing(site):
    """Examples that differ by so much that no mean is known to a half."""
    rows = make_rows(START | entering(1, key=0, value=1, query=0), n=60, right=56)
    own = pa.compute.equal(rows["site"], f"L1.block_input@{site}").to_numpy(zero_copy_only=False)
    noise = np.random.default_rng(0).normal(0, 6, len(rows)) * own
    field = rows.schema.field(index := rows.schema.get_field_index("p_patched"))
    rows = rows.set_column(index, field, pa.array(rows["p_patched"].to_numpy() + noise))
    others = dict.fromkeys(("base", "source", "patched"))
    for name in others:  # no counterfactual: the probability is read
        field = rows.schema.field(index := rows.schema.get_field_index(f"logit_diff_{name}"))
        rows = rows.set_column(index, field, pa.nulls(len(rows), pa.float64()))
    model = PROVENANCE["model"] | {"num_layers": 2, "components": ["block_input"]}
    found = Result.from_rows(
        rows, config={"resamples": 500}, provenance=PROVENANCE | {"model": model}
    ).verdict
    assert found.label is None
    assert "includes a half" in found.sentence


def test_one_layer_is_told_by_elimination_and_says_so():
    one = {"L0.block_input@key": 1.0, "L0.block_input@value": 0.0, "L0.block_input@query": 0.0}
    found = verdict(one, layers=1)
    assert found.label == "direct retrieval, early"
    assert "nothing was seen to bind it before" in found.sentence
    assert "first seen" not in found.sentence
    assert verdict(one, layers=1, components=("block_input", "conv_output")).label is None
    lost = verdict(one | {"L0.block_input@key": 0.3}, layers=1)
    assert lost.label is None
    assert "the only layer was not looked at" in lost.sentence


def test_layers_are_named_as_far_as_they_were_looked_at():
    effects = entering(2, key=0, value=1, query=0)
    found = verdict(effects, layers=6)
    assert found.label == "induction"
    assert "first seen at the input of layer 2:" in found.sentence
    assert "behind the input of layer 2, the last that was looked at" in found.sentence
    assert "behind the last layer" in verdict(effects, layers=3).sentence


@pytest.mark.parametrize("low", [0.6, 0.4, None])
def test_a_control_that_carries_more_than_half_takes_the_label_away(low):
    rows = make_rows(START | CASES["stored at the value"][0], n=60, right=56)
    model = PROVENANCE["model"] | {"num_layers": 2, "components": ["block_input"]}
    result = Result.from_rows(
        rows, config={"resamples": 200}, provenance=PROVENANCE | {"model": model}
    )
    control = {"control": "random site", "site": "L1.block_input@random", "attrib": {"low": low}}
    run = result.summary["runs"][0] | {"soft_controls": [control]}
    found = decide(rows, run, model=model, resamples=200)
    assert found.label == ("induction" if low != 0.6 else None)
    assert ("'random site' at L1.block_input@random carries" in found.sentence) == (low == 0.6)


@pytest.mark.parametrize("corruption", ["value", "swap"])
def test_with_the_fetched_token_corrupted_only_its_arrival_is_told(corruption):
    rows = make_rows(START | FETCHED, n=60, right=56)
    field = rows.schema.field(index := rows.schema.get_field_index("corruption"))
    rows = rows.set_column(index, field, pa.array([corruption] * len(rows)))
    model = PROVENANCE["model"] | {"num_layers": 2, "components": ["block_input"]}
    found = Result.from_rows(
        rows, config={"resamples": 200}, provenance=PROVENANCE | {"model": model}
    ).verdict
    assert found.label is None
    assert found.sentence == (
        f"With the {corruption} corrupted no mechanism is told from another; at the query its "
        "effect is first seen at the input of layer 1."
    )


def test_no_sentence_claims_more_than_numbers():
    for effects, _ in CASES.values():
        words = verdict(effects).sentence.lower()
        assert words.count(".") >= 1
        assert not any(word in words for word in ("cheat", "understand", "generalis"))


def test_a_verdict_goes_to_json_and_back():
    found = verdict(entering(1, key=0, value=1, query=0))
    assert found.label in LABELS
    assert Verdict.from_json(json.loads(json.dumps(found.to_json()))) == found
