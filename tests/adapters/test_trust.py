"""What a checkpoint names is not fetched from elsewhere, and code that it brings is not run."""

import json
import pickle
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from patchbench.adapters import load_model
from tests.adapters.loading_helpers import refused, small_tokenizer


@pytest.fixture
def mark(tmp_path):
    """A file that exists when a payload has run."""
    path = tmp_path / "ran"
    yield path
    assert not path.exists()


def bomb(mark: Path) -> bytes:
    class Bomb:
        def __reduce__(self):
            return Path.touch, (mark,)

    return pickle.dumps({"x": Bomb()})


def edit(folder: Path, **changes: object) -> None:
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))


def with_index(folder: Path, kind: str, file: str) -> None:
    """Let an index name `file` for every weight of a checkpoint."""
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    save_file(state, folder.parent / "outside.safetensors", metadata={"format": "pt"})
    (folder / "inner").mkdir()
    save_file(state, folder / "inner" / "all.safetensors", metadata={"format": "pt"})
    content = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(state, file)}
    (folder / f"{kind}.index.json").write_text(json.dumps(content))


@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize(
    "place", ["../outside.safetensors", "inner/../../outside.safetensors", "/"]
)
def test_an_index_names_no_weights_elsewhere(folder, tmp_path, kind, place):
    """The file is there and fits: it would be read."""
    with_index(folder, kind, str(tmp_path / "outside.safetensors") if place == "/" else place)
    refused("names weights outside of its folder", folder)


def test_an_index_names_weights_in_a_folder_below(folder):
    with_index(folder, "model.safetensors", "inner/all.safetensors")
    assert load_model(folder).num_parameters > 0


@pytest.mark.parametrize(
    "content", ["5", "[]", "{}", '{"weight_map": 5}', '{"weight_map": {"a": 5}}', "{", "[" * 10**5]
)
def test_an_index_that_is_none(folder, content):
    with_index(folder, "model.safetensors", "x")
    (folder / "model.safetensors.index.json").write_text(content)
    refused("index.json is no index of weights", folder)


@pytest.mark.parametrize("key", ["transformers_weights", "model_type", "architectures"])
def test_a_config_names_no_file_elsewhere(folder, tmp_path, key):
    state = load_file(folder / "model.safetensors")
    save_file(
        {name: weight * 2 for name, weight in state.items()},
        tmp_path / "outside.safetensors",
        metadata={"format": "pt"},
    )
    name = "../outside.safetensors"
    edit(folder, **{key: [name] if key == "architectures" else name})
    if key == "architectures":  # which is not looked at
        weight = load_model(folder).model.state_dict()["transformer.wte.weight"]
        assert (weight == state["transformer.wte.weight"]).all()
    else:
        refused("inside the model directory|not recognize this architecture", folder)


@pytest.mark.parametrize("value", ["someone/kernel", {"": "someone/kernel"}], ids=["name", "parts"])
@pytest.mark.parametrize(
    "key", ["attn_implementation", "_attn_implementation", "experts_implementation"]
)
def test_a_config_gets_no_kernel_from_the_hub(folder, key, value):
    edit(folder, **{key: value})
    refused("asks for code from the hub .*--trust-remote-code", folder)
    edit(folder, **{key: None}, text_config={key: value})
    refused("asks for code from the hub", folder)


def test_a_pickle_that_an_index_names_is_not_run(folder, mark):
    with_index(folder, "pytorch_model.bin", "evil.bin")
    (folder / "evil.bin").write_bytes(bomb(mark))
    refused("the model cannot be read", folder)


def test_a_pickle_with_an_adapter_is_not_run(folder, mark):
    adapter = {"peft_type": "LORA", "base_model_name_or_path": "/", "target_modules": ["c_attn"]}
    adapter["auto_mapping"] = {"base_model_class": "system", "parent_library": "os"}
    (folder / "adapter_config.json").write_text(json.dumps(adapter))
    (folder / "adapter_model.bin").write_bytes(bomb(mark))
    refused("the model cannot be read", folder)


def test_code_beside_a_tokenizer_is_not_run(folder, mark):
    small_tokenizer().save_pretrained(folder)
    config = folder / "tokenizer_config.json"
    own = {"auto_map": {"AutoTokenizer": [None, "code.Mine"]}, "tokenizer_class": "Mine"}
    config.write_text(json.dumps({**json.loads(config.read_text()), **own}))
    (folder / "code.py").write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\n")
    tokenizer = load_model(folder).tokenizer
    assert tokenizer is not None
    assert tokenizer("dog")["input_ids"] == [4]
