"""Files that were damaged or edited are read as they are, or refused in one line."""

import copy
import io
import json
import shutil
import struct
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import patchbench as pb
from patchbench.adapters.bundled import WEIGHTS
from patchbench.comparing import compare
from patchbench.report import terminal
from patchbench.report.html import render_report
from patchbench.results import Result
from patchbench.training.folder import read_folder
from tests.fuzz.cases import JSON, fuzzed, told

MODEL = WEIGHTS / "ar-based"
FOLDER = MODEL / "result"
GONE = object()


@cache
def content(name: str) -> Any:
    """Return what a JSON file of the bundled model says; nobody changes it."""
    return json.loads((MODEL / name).read_text())


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to everything in a JSON value, of long lists to the first two items."""
    inner = tree.items() if isinstance(tree, dict) else ()
    inner = enumerate(tree[:2]) if isinstance(tree, list) else inner
    for key, value in inner:
        yield (*path, key)
        yield from places(value, (*path, key))


@st.composite
def edits(draw: Any, name: str) -> Any:
    """Draw a file's content with one or two things in it changed, gone or told twice."""
    edited = copy.deepcopy(content(name))
    for _ in range(draw(st.integers(1, 2))):
        *way, last = draw(st.sampled_from(sorted(places(edited), key=str)))
        inner = edited
        for key in way:
            inner = inner[key]
        value = draw(st.one_of(st.just(GONE), st.just([inner[last]] * 2), JSON))
        if value is GONE:
            del inner[last]
        else:
            inner[last] = value
    return edited


def written(path: Path, edited: Any) -> None:
    """Write JSON as Python writes it, with NaN and lone surrogates."""
    path.write_text(json.dumps(edited), encoding="utf-8")


@pytest.fixture(scope="module")
def result_folder(tmp_path_factory):
    """A copy of a Result, of which every test writes all that it changes."""
    return shutil.copytree(FOLDER, tmp_path_factory.mktemp("results") / "result")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A copy of a trained model."""
    return shutil.copytree(MODEL, tmp_path_factory.mktemp("models") / "model")


@fuzzed(100)
@given(edited=edits("result/result.json"))
def test_an_edited_result(result_folder, edited):
    """What is taken can be shown."""
    result = taken(result_folder, edited)
    if result is not None:
        with redirect_stdout(io.StringIO()):
            terminal.print_result(result)


@fuzzed(8, share=0.02)
@given(edited=edits("result/result.json"))
def test_an_edited_result_in_pictures(result_folder, edited):
    """What is taken can be put beside another, and drawn; both take a second."""
    result = taken(result_folder, edited)
    if result is not None:
        told(compare, {"a": result, "b": Result.load(FOLDER)})
        told(render_report, result)


def taken(folder: Path, edited: Any) -> Result | None:
    """Return the Result that a folder with such a file has, None if it is refused."""
    shutil.copyfile(FOLDER / "rows.parquet", folder / "rows.parquet")
    written(folder / "result.json", edited)
    return told(Result.load, folder)


def damaged(data: Any, good: bytes) -> bytes:
    """Draw bytes that are not these: cut short, longer, or with some bytes of their own."""
    at = data.draw(st.integers(0, len(good) - 1))
    kind = data.draw(st.sampled_from(["cut", "longer", "other", "twice"]))
    if kind == "cut":
        return good[:at]
    if kind == "longer":
        return good + data.draw(st.binary(min_size=1, max_size=8))
    if kind == "twice":
        return good[:at] + good[max(0, at - 8) :]
    other = data.draw(
        st.binary(min_size=1, max_size=8).filter(lambda b: b != good[at : at + len(b)])
    )
    return good[:at] + other + good[at + len(other) :]


@fuzzed(150)
@given(data=st.data())
def test_damaged_rows_are_never_taken(result_folder, data):
    good = (FOLDER / "rows.parquet").read_bytes()
    bad = damaged(data, good)
    shutil.copyfile(FOLDER / "result.json", result_folder / "result.json")
    (result_folder / "rows.parquet").write_bytes(bad)
    assert (told(Result.load, result_folder) is None) == (bad != good)


@fuzzed(100)
@given(data=st.data())
def test_rows_that_only_parquet_can_refuse(result_folder, data):
    """Whoever edits the rows may write down what they are then."""
    from patchbench.results import _digest

    (result_folder / "rows.parquet").write_bytes(
        damaged(data, (FOLDER / "rows.parquet").read_bytes())
    )
    edited = copy.deepcopy(content("result/result.json"))
    edited["rows"]["sha256"] = _digest(result_folder / "rows.parquet")
    written(result_folder / "result.json", edited)
    told(Result.load, result_folder)


@fuzzed(100, share=0.5)
@given(edited=edits("config.json"))
def test_an_edited_config(model_folder, edited):
    """What is taken fits the weights, and runs."""
    shutil.copyfile(MODEL / "model.safetensors", model_folder / "model.safetensors")
    written(model_folder / "config.json", edited)
    loaded = told(pb.load_model, model_folder)
    if loaded is not None:
        assert all(p.isfinite().all() for p in loaded.model.parameters())
        with torch.no_grad():
            told(loaded.model, torch.zeros(1, 3, dtype=torch.long))


@fuzzed(100)
@given(edited=edits("training.json"))
def test_an_edited_training(model_folder, edited):
    written(model_folder / "training.json", edited)
    folder = told(read_folder, model_folder)
    if folder is not None:
        assert folder.finished in (True, False)


HEADER = json.loads(
    (MODEL / "model.safetensors").read_bytes()[8:][
        : struct.unpack("<Q", (MODEL / "model.safetensors").read_bytes()[:8])[0]
    ]
)


@fuzzed(100, share=0.5)
@given(data=st.data())
def test_damaged_weights(model_folder, data):
    """Random bytes among the numbers are numbers as well; anywhere else they are refused."""
    good = (MODEL / "model.safetensors").read_bytes()
    start = 8 + struct.unpack("<Q", good[:8])[0]
    if data.draw(st.booleans()):
        bad = damaged(data, good[:start]) + good[start:]
    else:
        header = copy.deepcopy(HEADER)
        name = data.draw(st.sampled_from(sorted(set(header) - {"__metadata__"})))
        key = data.draw(st.sampled_from(["dtype", "shape", "data_offsets", "x"]))
        header[name][key] = data.draw(
            st.one_of(JSON, st.lists(st.sampled_from([0, 1, 2**20, 2**40, 2**62, -1]), max_size=3))
        )
        text = json.dumps(header).encode()
        bad = struct.pack("<Q", len(text)) + text + good[start:]
    shutil.copyfile(MODEL / "config.json", model_folder / "config.json")
    (model_folder / "model.safetensors").write_bytes(bad)
    loaded = told(pb.load_model, model_folder)
    if loaded is not None:
        shapes = {k: list(p.shape) for k, p in loaded.model.state_dict().items() if k in HEADER}
        assert shapes == {k: HEADER[k]["shape"] for k in shapes}
