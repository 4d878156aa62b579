"""A mixer of another package, installed as packages are: by its entry point."""

import os
import subprocess
import sys
from pathlib import Path

MIXER = """
from dataclasses import dataclass

import torch
from torch import nn

from patchbench.adapters.hook_points import HookPoints
from patchbench.adapters.mixers import Mixer, MixerOptions


@dataclass(frozen=True, kw_only=True)
class LeakyOptions(MixerOptions):
    decay: float = 0.9


class Leaky(Mixer):
    Options = LeakyOptions

    def __init__(self, config, layer):
        super().__init__(config, layer)
        self.decay = config.options_for(layer).decay
        self.hook_points = HookPoints("ssm_state")
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x, state=None, *, return_state=False):
        total = torch.zeros_like(x[:, 0]) if state is None else state["ssm_state"]
        states = []
        for t in range(x.shape[1]):
            total = self.decay * total + x[:, t]
            states.append(total)
        states = self.hook_points["ssm_state"](torch.stack(states, 1))
        return self.out_proj(states), {"ssm_state": states[:, -1]} if return_state else None

    def initial_state(self, batch, device, dtype):
        width = self.out_proj.in_features
        return {"ssm_state": torch.zeros(batch, width, device=device, dtype=dtype)}
"""

USE = """
import sys, warnings
warnings.simplefilter("ignore")
import torch
from transformers import AutoModelForCausalLM
from patchbench.adapters import MIXERS, MixerLMConfig, MixerLMForCausalLM, load_model
from patchbench.common import UserError

assert "leaky" in MIXERS and "mamba" in MIXERS
config = MixerLMConfig.preset("leaky,attention", width=8, layers=2, vocab_size=5, decay=0.5)
model = MixerLMForCausalLM(config).eval()
ids = torch.tensor([[0, 1, 2, 3]])
model.save_pretrained(sys.argv[1])
loaded = AutoModelForCausalLM.from_pretrained(sys.argv[1])
assert torch.equal(loaded(ids).logits, model(ids).logits)
out = model(ids[:, :3], use_cache=True)
torch.testing.assert_close(model(ids[:, 3:], cache=out.cache).logits, model(ids).logits[:, 3:])
assert (0, "ssm_state") in load_model(sys.argv[1]).hook_map.points
try:
    MixerLMConfig.preset("leaky", vocab_size=5, decay="fast")
except UserError as error:
    print(error)
"""


def test_an_installed_package_adds_a_mixer_and_a_broken_one_is_skipped(tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name, source, target in (
        ("leaky", MIXER, "leaky_mixer:Leaky"),
        ("broken", "raise RuntimeError('no luck')", "broken_mixer:Broken"),
    ):
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[patchbench.mixers]\n{name} = {target}\n")
        (site / f"{name}_mixer.py").write_text(source)
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    run = subprocess.run(
        [sys.executable, "-c", USE, str(tmp_path / "model")],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    assert "layer 0: leaky: decay is 'fast': give a finite number" in run.stdout
    shown = subprocess.run(
        [sys.executable, "-c", "from patchbench.adapters import MIXERS; print(list(MIXERS))"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "'leaky'" in shown.stdout
    assert "'broken'" not in shown.stdout
    assert "(mixer 'broken') is skipped: RuntimeError: no luck" in shown.stderr
