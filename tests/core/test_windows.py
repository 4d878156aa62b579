"""Every token once: in each example, the names of a whole sweep are the document's positions."""

from dataclasses import replace

import numpy as np
import pytest

import patchbench as pb
from patchbench.engines.base import make_batches
from patchbench.interventions import Intervention
from patchbench.sites import Site
from patchbench.windows import window_positions, with_windows
from tests.core.batches import random_batch
from tests.tasks.tiny_tokenizers import tiny_tokenizer
from tests.tiny_models import tiny


def covered(batch, positions):
    """The absolute positions that each example is measured at."""
    found = [[] for _ in range(len(batch))]
    for position in positions:
        measured = Intervention(sites=(Site(0, "block_input", position),), corruption="key")
        for example in np.flatnonzero(batch.usable(measured)):
            found[example].append(int(batch.positions[position.role][example]) + position.offset)
    return [sorted(places) for places in found]


def data(kind):
    if kind == "random":
        return [random_batch(size=9, length=12, seed=seed) for seed in range(3)]
    if kind == "coinciding":
        batch = random_batch(size=6)
        some = np.where(np.arange(6) % 2, batch.positions["key"], batch.positions["value"])
        positions = {**batch.positions, "value": some, "bos": np.full(6, -1)}
        return [replace(batch, positions=positions)]
    name, rendered = kind.split()
    task = pb.load_task(name)
    dataset = task.dataset("test", 24)
    if rendered == "words":
        from patchbench.tasks.rendering import RenderConfig, Renderer

        tokenizer = tiny_tokenizer("byte_bpe")
        dataset = Renderer(task, tokenizer, RenderConfig(shots=1)).dataset("test", 12)
    return make_batches(dataset, 7, ["key"])


@pytest.mark.parametrize(
    "kind", ["random", "coinciding", "ar/tiny symbolic", "atr/easy symbolic", "ar/tiny words"]
)
def test_every_token_is_covered_exactly_once(kind):
    batches = [with_windows(batch) for batch in data(kind)]
    positions = window_positions(batches)
    assert len(set(positions)) == len(positions)
    for batch in batches:
        reach = np.flatnonzero(batch.available["key"])
        found = covered(batch, positions)
        assert len(reach)
        for example in reach:
            assert found[example] == list(range(batch.length))


def test_a_window_ends_where_the_next_role_begins():
    (batch,) = data("ar/tiny symbolic")[:1]
    names = {str(position) for position in window_positions([with_windows(batch)])}
    assert {"bos", "key", "value", "query", "answer"} <= names
    assert "key+1" not in names  # that is the value in every example
    assert "answer+1" not in names


def test_a_whole_sweep_has_the_rows_of_the_positions_one_by_one():
    """Each example's rows of a sweep are those of the single position that the token has."""
    task = pb.load_task("ar", num_pairs=3, num_keys=8, num_values=8)
    whole = pb.evaluate(tiny("gpt2"), task, n=6, layers=[1], positions="all")
    rows = [row for row in whole.rows.to_pylist() if row["control"] is None]
    places = {
        (row["example"], example["roles"][row["role"]] + row["offset"])
        for row, example in ((row, task.dataset("test", 6)[row["example"]]) for row in rows)
    }
    lengths = [example["roles"]["answer"] + 1 for example in task.dataset("test", 6)]
    assert len(rows) == len(places) == sum(lengths)
    some = sorted({row["site"].split("@")[1] for row in rows})[:4]
    single = pb.evaluate(tiny("gpt2"), task, n=6, layers=[1], positions=some)
    alone = [row for row in single.rows.to_pylist() if row["control"] is None]
    theirs = {(row["example"], row["site"]): row["p_patched"] for row in alone}
    ours = [row for row in rows if (row["example"], row["site"]) in theirs]
    assert len(ours) > 4
    for row in ours:
        other = theirs[row["example"], row["site"]]
        assert row["p_patched"] == pytest.approx(other, abs=1e-5)
    assert whole.config["positions"] == ["all"]
    with pytest.raises(pb.UserError, match="stands alone"):
        pb.evaluate(tiny("gpt2"), task, n=4, positions=["all", "key"])
