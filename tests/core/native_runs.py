"""Models, interventions and comparisons of the native engine's tests."""

from contextlib import AbstractContextManager
from unittest import mock

import numpy as np

import patchbench as pb
from patchbench.interventions import Intervention
from patchbench.sites import Site
from tests.adapters.lively import VOCAB, lively
from tests.tiny_models import tiny

MODELS = {
    "gpt2": lambda: tiny("gpt2", vocab=VOCAB),
    "llama": lambda: tiny("llama", vocab=VOCAB, layers=3),
    "transformers-mamba": lambda: tiny("mamba", vocab=VOCAB),
    "attention": lambda: lively("attention", num_heads=2),
    "mamba": lambda: lively("mamba"),
    "based": lambda: lively("based"),
    "delta_net": lambda: lively("delta_net"),
    "h3": lambda: lively("h3"),
    "hybrid": lambda: lively("mamba,attention", layers=3),
}
_loaded: dict = {}


def loaded(name: str):
    if name not in _loaded:
        _loaded[name] = pb.load_model(MODELS[name]())
    return _loaded[name]


def plan(*sites: str, **settings) -> list[Intervention]:
    return [Intervention(sites=(Site.parse(site),), corruption="key", **settings) for site in sites]


def assert_equal(rows, expected, tolerance: float = 1e-5) -> None:
    assert rows.num_rows == expected.num_rows
    for name in rows.schema.names:
        mine, theirs = rows[name], expected[name]
        if name.split("_")[0] in ("p", "logp", "logit", "kl"):
            mine, theirs = (c.to_numpy().astype(float) for c in (mine, theirs))
            np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance, err_msg=name)
        else:
            assert mine.equals(theirs), name


def cut_everywhere() -> AbstractContextManager:
    """As if forwards cost nothing: documents are cut at each position that is patched."""
    return mock.patch("patchbench.engines.native.engine.OVERHEAD", 0.0)
