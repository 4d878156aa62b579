"""A module that is no PreTrainedModel, patched by every engine, against hooks written by hand."""

import pytest
import torch
from torch import nn

import patchbench as pb
from patchbench.adapters import HookMap, HookPoint
from patchbench.effects import select
from patchbench.engines import ENGINES
from patchbench.training import train


class Plain(nn.Module):
    """Two GRU blocks that know nothing of transformers."""

    def __init__(self, vocab, width=16, give="tensor"):
        super().__init__()
        self.table = nn.Embedding(vocab, width)
        self.cells = nn.ModuleList(nn.GRU(width, width, batch_first=True) for _ in range(2))
        self.out = nn.Linear(width, vocab)
        self.give = give

    def forward(self, ids):
        x = self.table(ids)
        for cell in self.cells:
            x = cell(x)[0]
        logits = self.out(x)
        return {"tensor": logits, "tuple": (logits, x), "dict": {"logits": logits}}[self.give]


def plain_map():
    points = {
        (None, "embed"): HookPoint(component="embed", path="table", io="output", layer=None),
        **{
            (layer, name): HookPoint(component=name, path=f"cells.{layer}", io=io, layer=layer)
            for layer in range(2)
            for name, io in (("block_input", "input"), ("block_output", "output"))
        },
    }
    return HookMap(
        model_type="plain", origin="user", num_layers=2, blocks="cells", points=points, head="out"
    )


@pytest.fixture(scope="module")
def task():
    return pb.load_task("ar/tiny")


def lively(task, **settings):
    torch.manual_seed(0)
    model = Plain(task.vocab_size, **settings).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.5)
    return model


def by_hand(model, clean, corrupted, place):
    """Return what the model gives with the second block's clean input put at a place."""
    kept = []
    handle = model.cells[1].register_forward_pre_hook(lambda m, a: kept.append(a[0].clone()))
    model(clean)
    handle.remove()

    def put(module, args):
        x = args[0].clone()
        x[:, place] = kept[0][:, place]
        return (x,)

    handle = model.cells[1].register_forward_pre_hook(put)
    out = model(corrupted)
    handle.remove()
    return out


@pytest.mark.parametrize("give", ["tensor", "tuple", "dict"])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_gives_what_raw_hooks_give(task, engine, give):
    if give != "tensor" and engine != "native":
        pytest.skip("what the network returns is unpacked before any engine sees it")
    model = lively(task, give=give)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    loaded = pb.load_model(model, hook_map=plain_map())
    result = pb.evaluate(
        loaded, task, n=6, layers=[1], positions=["value+1"], engine=engine, selfcheck=False
    )
    rows = select(result.rows, "key", "denoise")
    for row, example in zip(rows.to_pylist(), task.dataset("test", 6), strict=True):
        read = example["roles"]["answer"]
        clean, corrupted = (
            torch.tensor([ids[:read]])
            for ids in (example["input_ids"], example["corruptions"]["key"]["input_ids"])
        )
        out = by_hand(model, clean, corrupted, example["roles"]["value"] + 1)
        logits = out if give == "tensor" else out[0] if give == "tuple" else out["logits"]
        expected = logits[0, -1].softmax(-1)[example["answer"]].item()
        assert row["p_patched"] == pytest.approx(expected, abs=1e-6)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_the_module_keeps_its_mode_and_its_weights_are_not_copied(task):
    model = lively(task).train()
    model.cells[0].eval()  # as one freezes a part
    loaded = pb.load_model(model, hook_map=plain_map())
    assert loaded.model.get_input_embeddings() is model.table
    assert loaded.model.get_output_embeddings() is model.out
    assert loaded.name == "Plain"
    assert loaded.vocab_size == task.vocab_size
    pb.evaluate(loaded, task, n=2, positions=["key"])
    assert [m.training for m in (model, *model.cells)] == [True, False, True]


def test_it_is_not_trained_where_nobody_could_read_it_again(task, tmp_path):
    loaded = pb.load_model(lively(task), hook_map=plain_map())
    with pytest.raises(pb.UserError, match="type 'wrapped' cannot be read again"):
        train(loaded, task, out=tmp_path / "out", steps=2)
    assert not (tmp_path / "out").exists()


class Odd(Plain):
    def forward(self, ids):
        return super().forward(ids)[:, 0]


@pytest.mark.parametrize(
    ("make", "hook_map", "message"),
    [
        (Plain, None, "components nobody knows: take load_model"),
        (Odd, plain_map(), r"Odd returns \(.*\) for \(.*\) ids: return logits"),
    ],
    ids=["no map", "no logits over time"],
)
def test_what_cannot_be_wrapped_is_one_line(task, make, hook_map, message):
    with pytest.raises(pb.UserError, match=message):
        pb.load_model(make(task.vocab_size), hook_map=hook_map)
