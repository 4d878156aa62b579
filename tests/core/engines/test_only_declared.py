"""What an engine keeps of a run: nothing but the sites that were declared."""

from collections import Counter

import pytest
import torch

import patchbench as pb
from patchbench.engines import ENGINES
from patchbench.interventions import Intervention
from patchbench.sites import Site
from tests.core.batches import random_batch
from tests.tiny_models import tiny


@pytest.mark.parametrize("engine", ["native", "pyvene"])
@pytest.mark.parametrize(("family", "inner"), [("llama", "mlp_output"), ("mamba", "conv_output")])
def test_hooks_stand_at_declared_sites_alone(engine, family, inner, monkeypatch):
    """Beside the entries of whole blocks, at which the native engine resumes."""
    loaded = pb.load_model(tiny(family, layers=4), device="cpu")
    declared = [Site.parse(f"L1.{inner}@key"), Site.parse("L3.block_input@query")]
    hooked: Counter[str] = Counter()
    names = {module: name for name, module in loaded.model.named_modules()}
    for kind in ("register_forward_hook", "register_forward_pre_hook"):
        real = getattr(torch.nn.Module, kind)

        def spy(module, *args, real=real, **kwargs):
            hooked[names[module]] += 1
            return real(module, *args, **kwargs)

        monkeypatch.setattr(torch.nn.Module, kind, spy)
    plan = [Intervention(sites=(site,), corruption="key") for site in declared]
    ENGINES[engine]().run(loaded, plan, random_batch())
    places = {loaded.hook_map.point(site.layer, site.component).path for site in declared}
    blocks = {f"{loaded.hook_map.blocks}.{layer}" for layer in range(4)}
    assert places <= hooked.keys()
    assert hooked.keys() <= places | (blocks if engine == "native" else set())
