"""Another package's mixer, task and HookMap, found by entry points; broken ones only warn."""

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fake_distributions import install

PACKAGE = Path(__file__).parent / "plugin_package"
PROJECT = tomllib.loads((PACKAGE / "pyproject.toml").read_text(encoding="utf-8"))["project"]

USE = """
import sys
import torch
import patchbench as pb
from plugged.model import TwinStack, TwinStackConfig
from transformers import AutoModelForCausalLM
from patchbench.adapters import MIXERS, MixerLMConfig, MixerLMForCausalLM, load_model

config = MixerLMConfig.preset("leaky,attention", width=8, layers=2, vocab_size=36, decay=0.5)
model = MixerLMForCausalLM(config).eval()
ids = torch.tensor([[0, 1, 2, 3]])
model.save_pretrained(sys.argv[1])
loaded = AutoModelForCausalLM.from_pretrained(sys.argv[1])
assert torch.equal(loaded(ids).logits, model(ids).logits)
out = model(ids[:, :3], use_cache=True)
torch.testing.assert_close(model(ids[:, 3:], cache=out.cache).logits, model(ids).logits[:, 3:])
half = loaded.bfloat16()(ids, use_cache=True)
assert half.cache.states[0]["ssm_state"].dtype == torch.float32
torch.testing.assert_close(half.logits.float(), model(ids).logits, atol=0.05, rtol=0.05)
assert (0, "ssm_state") in load_model(sys.argv[1]).hook_map.points
try:
    MixerLMConfig.preset("leaky", vocab_size=5, decay="fast")
except pb.UserError as error:
    print(error)

task = pb.load_task("spaced_recall/wide", num_pairs=3)
for row in task.dataset("test", 20):
    assert task.solve(row["input_ids"]) == (row["answer"],)
    assert row["roles"]["value"] - row["roles"]["key"] == 5
result = pb.evaluate(sys.argv[1], task, n=8, components=["block_input", "ssm_state"])
print(result.verdict.label, len(result.rows))

own = TwinStack(TwinStackConfig(vocab_size=task.vocab_size)).eval()
result = pb.evaluate(own, task, n=8, components=["mixer_input"], positions=["key"])
print(sorted(e["site"] for r in result.summary["runs"] for e in r["effects"]) or "below the gate")
print(set(result.rows["site"].to_pylist()) >= {"L0.mixer_input@key", "L1.mixer_input@key"})
"""
BROKEN = {
    "broken": ("mixers", "raise RuntimeError('no luck')", "RuntimeError: no luck"),
    "ends": ("mixers", "raise SystemExit(3)", "SystemExit: 3"),
    "no_class": ("mixers", "thing = 5", "it is no subclass of patchbench.adapters.mixers.Mixer"),
    "a,b": ("mixers", "thing = 5", "a name has letters, digits and _ . + - only"),
    "half": (
        "tasks",
        "from patchbench.tasks import Task\nclass thing(Task):\n    draw = None",
        "it does not define derive, heuristic_floor, kinds, max_length, solve, symbols",
    ),
    "ar": ("tasks", "from patchbench.tasks.atr import ATRTask as thing", "the name is taken"),
    "no_map": ("adapters", "thing = 'map'", "it is no function of a model"),
}


def run(site: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(site), str(PACKAGE / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *command], env=os.environ | {"PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the package, as if it were installed, and one that is nothing but broken."""
    site = tmp_path_factory.mktemp("site")
    install(site, "plugged", points=PROJECT["entry-points"])
    for number, (name, (group, source, _)) in enumerate(BROKEN.items()):
        (site / f"bad{number}.py").write_text(source)
        install(site, f"bad{number}", points={f"patchbench.{group}": {name: f"bad{number}:thing"}})
    return site


def test_what_a_package_adds_is_used_like_our_own(site, tmp_path):
    done = run(site, "-W", "ignore", "-c", USE, str(tmp_path / "model"))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "layer 0: leaky: decay is 'fast': give a finite number" in done.stdout
    verdict, effects, sites = done.stdout.splitlines()[-3:]
    assert verdict.startswith("not solved ")
    assert effects == "below the gate"
    assert sites == "True"


@pytest.mark.parametrize("command", ["models", "tasks"])
def test_it_is_listed_and_the_broken_ones_are_named(site, command):
    done = run(site, "-c", "from patchbench.cli import main; main()", command)
    assert done.returncode == 0, done.stderr[-2000:]
    words = done.stdout.split()
    assert "Traceback" not in done.stderr
    shown = {"models": ["leaky", "twin_stack"], "tasks": ["spaced_recall", "spaced_recall/wide"]}
    assert set(shown[command]) <= set(words)
    groups = {"models": ("mixers", "adapters"), "tasks": ("tasks",)}
    told = " ".join(done.stderr.split())
    for name, (group, _, reason) in BROKEN.items():
        mentioned = f"{name!r}) is skipped: {reason}" in told
        assert mentioned == (group in groups[command]), (name, done.stderr)
    # A line each: no file, and no line of its code.
    assert len(done.stderr.splitlines()) == told.count("is skipped: ")
    assert all(line.startswith("warning: plugin ") for line in done.stderr.splitlines())
    assert not set(words) & {"broken", "ends", "no_class", "a,b", "half", "no_map"}


@pytest.mark.skipif(
    find_spec("setuptools.command.bdist_wheel") is None and find_spec("wheel") is None,
    reason="building a wheel needs setuptools>=70.1",
)
def test_pip_installs_it_without_a_network(tmp_path):
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps",
         "--no-index", "--disable-pip-version-check", "--target", str(site), str(_copy(tmp_path))],
        check=True, capture_output=True,
    )  # fmt: skip
    (found,) = distributions(path=[str(site)])
    points = {}
    for point in found.entry_points:
        points.setdefault(point.group, {})[point.name] = point.value
    assert points == PROJECT["entry-points"]
    code = (
        "import json, plugged\n"
        "from patchbench.tasks import list_tasks\n"
        "print(json.dumps([plugged.__file__, *(i.name for i in list_tasks())]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    file, *names = json.loads(done.stdout)
    assert Path(file).is_relative_to(site)
    assert {"spaced_recall", "spaced_recall/wide"} <= set(names)


def _copy(folder: Path) -> Path:
    """Return a copy of the package: a build leaves files beside its sources."""
    import shutil

    ignored = shutil.ignore_patterns("*.egg-info", "build", "__pycache__")
    return shutil.copytree(PACKAGE, folder / "package", ignore=ignored)
