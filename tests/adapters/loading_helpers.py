"""What the tests of loading share: a small tokenizer, a hub's cache, what a refusal looks like."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from patchbench.adapters import load_model
from patchbench.common import UserError

TOKENS = torch.tensor([[3, 9, 27, 17]])


def small_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of five words: "river" is 3, "dog" 4."""
    words = {word: index for index, word in enumerate(["<s>", "</s>", "<unk>", "river", "dog"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", bos_token="<s>")


def refused(pattern: str, *arguments: Any, **settings: Any) -> None:
    """Check that loading fails with one line that says what and the remedy."""
    with pytest.raises(UserError, match=pattern) as caught:
        load_model(*arguments, **settings)
    message = str(caught.value)
    assert "\n" not in message
    assert ": " in message  # what: remedy


def cached(name: str, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lay out the hub's cache by hand, and be offline; return where the files are."""
    from huggingface_hub import constants

    commit = "0" * 40
    home = cache / f"models--{name.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    return Path(shutil.copytree(folder, home / "snapshots" / commit))
