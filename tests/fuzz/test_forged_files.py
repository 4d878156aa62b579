"""Files that whole programs wrote, but not ours: other bytes, other tables, giant sizes.

The digest in `result.json` is written anew, as whoever forges a Result can do.
"""

import copy
import json
import shutil
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import patchbench as pb
from patchbench.common import UserError
from patchbench.report import terminal
from patchbench.results import Result
from patchbench.training.folder import read_folder
from tests.fuzz.cases import fuzzed, told
from tests.fuzz.test_files import FOLDER, MODEL, content, damaged, places, written
from tests.tiny_models import tiny

# What no JSON file of ours begins with, or holds.
STRANGE = [
    b"",
    b"null",
    b"\xef\xbb\xbf{}",
    b"\xff\xfe",
    b"[" * 10**5,
    b"9" * 5000,
    b'{"a":1,"a":2}',
]
NESTED = b'{"x":' * 5000 + b"1" + b"}" * 5000
GIANT = [2**16, 2**31, 2**40, 2**62, 2**63, 10**30, 1e308]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A copy of a trained model with its Result, of which every test writes all that it changes."""
    return shutil.copytree(MODEL, tmp_path_factory.mktemp("forged") / "model")


@st.composite
def texts(draw: Any, name: str) -> bytes:
    """Draw the bytes of a file: damaged, or none of ours."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from([*STRANGE, NESTED]))
    return damaged(draw(st.data()), (MODEL / name).read_bytes())


@pytest.mark.parametrize("name", ["result/result.json", "config.json", "training.json"])
@fuzzed(60, share=0.5)
@given(data=st.data())
def test_other_bytes_where_json_is_read(folder, name, data):
    for file in ("result/result.json", "result/rows.parquet", "config.json", "training.json"):
        shutil.copyfile(MODEL / file, folder / file)
    (folder / name).write_bytes(data.draw(texts(name)))
    if name == "config.json":
        told(pb.load_model, folder)
    elif name == "training.json":
        told(read_folder, folder)
    elif (result := told(Result.load, folder / "result")) is not None:
        with redirect_stdout(StringIO()):
            terminal.print_result(result)


def test_a_site_that_is_none_is_refused(folder):
    edited = copy.deepcopy(content("result/result.json"))
    edited["summary"]["runs"][0]["effects"][0]["site"] = "\x80.block_input@query"
    shutil.copyfile(FOLDER / "rows.parquet", folder / "result" / "rows.parquet")
    written(folder / "result" / "result.json", edited)
    with pytest.raises(
        UserError, match=r"result\.json is damaged.*effects\.0\.site.* is not a site"
    ):
        Result.load(folder / "result")


@st.composite
def tables(draw: Any) -> pa.Table:
    """Draw rows that are a Parquet file, with something else in their columns or their number."""
    rows = pq.read_table(FOLDER / "rows.parquet")
    names = rows.column_names
    one, other = (draw(st.sampled_from(names)) for _ in range(2))
    at = names.index(one)
    kind = draw(
        st.sampled_from(["gone", "swapped", "named", "typed", "null", "short", "twice", "value"])
    )
    if kind == "gone":
        return rows.drop_columns([one])
    if kind == "swapped":
        return rows.rename_columns([{one: other, other: one}.get(name, name) for name in names])
    if kind == "named":
        return rows.rename_columns([draw(st.text(max_size=5)) if n == one else n for n in names])
    if kind == "typed":
        wanted = draw(st.sampled_from([pa.string(), pa.float64(), pa.int8(), pa.list_(pa.int8())]))
        return rows.set_column(at, one, pa.nulls(len(rows), wanted))
    if kind == "null" and rows.schema.field(at).nullable:
        return rows.set_column(at, rows.schema.field(at), pa.nulls(len(rows), rows.schema[at].type))
    if kind == "short":
        return rows.slice(draw(st.integers(0, len(rows))), draw(st.integers(0, 40)))
    if kind == "twice":
        return pa.concat_tables([rows, rows])
    type_ = rows.schema[at].type
    numbers = pa.types.is_floating(type_)
    values: list[Any] = [float("nan"), float("inf"), -1e30] if numbers else [0, -1, 2**31 - 1]
    if pa.types.is_string(type_) or pa.types.is_dictionary(type_):
        values = ["", "L0.x@key", "\x1b[31m", "九" * 500]
    elif pa.types.is_boolean(type_):
        values = [True, False]
    value = draw(st.sampled_from(values))
    return filled(rows, at, value)


def filled(rows: pa.Table, at: int, value: Any) -> pa.Table:
    """Return the rows with one value in all of a column, if its type can hold it."""
    try:
        column = pa.array([value] * len(rows), rows.schema[at].type)
    except (pa.ArrowException, OverflowError):
        return rows
    return rows.set_column(at, rows.schema.field(at), column)


@fuzzed(20, share=0.2)
@given(rows=tables(), digest=st.booleans())
def test_rows_of_another_table(folder, rows, digest):
    """Only rows whose columns are ours are taken, and every reader of them answers or refuses."""
    from patchbench.results import _digest

    result = folder / "result"
    pq.write_table(rows, result / "rows.parquet")
    edited = copy.deepcopy(content("result/result.json"))
    if digest:
        edited["rows"]["sha256"] = _digest(result / "rows.parquet")
    written(result / "result.json", edited)
    loaded = told(Result.load, result)
    if loaded is None:
        return
    assert loaded.rows.schema.names == pq.read_schema(FOLDER / "rows.parquet").names
    with redirect_stdout(StringIO()):
        told(terminal.print_result, loaded)
    for component in edited["config"]["components"]:
        told(loaded.table, component)
    told(loaded.attrib, "L0.block_input@key")
    told(loaded.to_pandas)


@pytest.fixture(scope="module")
def models(folder, tmp_path_factory):
    """Tiny checkpoints: one of ours, and of families with tables of positions and of rotations."""
    root = tmp_path_factory.mktemp("giants")
    made = {"own": folder}
    for family in ("gpt2", "llama", "mamba"):
        tiny(family).save_pretrained(root / family)
        made[family] = root / family
    texts = {family: (path / "config.json").read_text() for family, path in made.items()}
    return {family: (path, texts[family]) for family, path in made.items()}


@pytest.mark.parametrize("family", ["own", "gpt2", "llama", "mamba"])
@fuzzed(25, share=0.2)
@given(data=st.data())
def test_a_declared_giant_takes_no_memory(models, family, data):
    """What the files hold bounds what is taken: a megabyte or so of weights."""
    path, text = models[family]
    config = json.loads(text)
    sizes = [way for way in places(config) if isinstance(at(config, way), int)]
    for way in data.draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=2)):
        at(config, way[:-1])[way[-1]] = data.draw(st.sampled_from(GIANT))
    written(path / "config.json", config)
    before = peak()
    loaded = told(pb.load_model, path)
    if loaded is not None:
        with torch.no_grad():
            told(loaded.model, torch.zeros(1, 3, dtype=torch.long))
    assert peak() - before < 300, config


def at(tree: Any, way: tuple[Any, ...]) -> Any:
    """Return what is at the end of a way."""
    for key in way:
        tree = tree[key]
    return tree


def peak() -> float:
    """Return the most memory that this process ever held, in MB."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
