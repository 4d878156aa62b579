"""The smallest fine-tuning there is: a "pretrained" model with its tokenizer, trained on `ar`."""

import torch
from safetensors.torch import load_file

import patchbench as pb
from patchbench.training import train
from tests.core.tiny_training import QUICK
from tests.tasks.tiny_tokenizers import tiny_tokenizer
from tests.tiny_models import tiny

TOKENIZER = tiny_tokenizer("byte_bpe_bos")
ENOUGH = {**QUICK, "steps": 40, "lr": 3e-3, "log_every": 10}


def save_start(folder, family="llama", tokenizer=TOKENIZER, **changes):
    """Write a "pretrained" model, and return the folder."""
    model = tiny(family, vocab=len(TOKENIZER))
    for name, value in changes.items():
        setattr(model.config, name, value)
    model.tie_weights()
    model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return folder


def weights(folder):
    return load_file(folder / "model.safetensors")


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def fine_tuned(family, task, root, **settings):
    """Return what was trained, the model that was given, and the folder it came from."""
    # gpt2 has other linear maps (Conv1D), and here a tied head.
    start = save_start(root / "start", family, tie_word_embeddings=family == "gpt2")
    loaded = pb.load_model(start)
    return train(loaded, task, out=root / "run", **{**ENOUGH, **settings}), loaded, start
