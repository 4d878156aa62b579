"""Train the presets, record what they reach, and make the models that come with the package.

    python examples/train_presets.py --out runs                       # all, three seeds: hours
    python examples/train_presets.py --out runs --preset tiny --arch mamba --arch based
    python examples/train_presets.py --out runs --bundle              # from what is in runs

A run that is there is not repeated; a killed one begins again, for its record tells what the whole
of it takes. The records are written into a checkout
(`patchbench/training/records.json`), the models into `adapters/weights/`.
"""

import json
import platform
import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from patchbench import Result, evaluate, load_model
from patchbench.adapters import bundled
from patchbench.common import UserError, atomic_write
from patchbench.training import Trained, presets, train
from patchbench.training.folder import FILE, RESULT, read_folder

POSITIONS = ("key", "value", "value+1", "query")
RECORDS_FILE = Path(presets.__file__).with_name(presets.RECORDS)
# Of each preset, the seed whose model is bundled.
BUNDLED = {("ar", "mini", arch): 0 for arch in ("attention", "based", "delta_net", "mamba")}
BUNDLED["ar", "mini", "mamba_noconv"] = 0
Key = tuple[str, str, str]


def main(
    out: Annotated[Path, typer.Option(help="Folder for the runs.")],
    task: Annotated[list[str] | None, typer.Option(help="ar or atr.  [default: both]")] = None,
    preset: Annotated[list[str] | None, typer.Option(help="[default: tiny and mini]")] = None,
    arch: Annotated[list[str] | None, typer.Option(help="[default: all]")] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each.")] = 3,
    records: Annotated[Path, typer.Option(help="Where to record them.")] = RECORDS_FILE,
    bundle: Annotated[bool, typer.Option("--bundle", help="Copy models; train none.")] = False,
) -> None:
    """Train presets, or bundle what was trained."""
    torch.set_num_threads(1)
    wanted = [
        (family, name, known)
        for (family, name), by_arch in presets.PRESETS.items()
        for known in by_arch
        if family in (task or ("ar", "atr"))
        and name in (preset or ("tiny", "mini"))
        and known in (arch or by_arch)
    ]
    if bundle:
        for key in wanted:
            if key in BUNDLED:
                copy_model(folder(out, key, BUNDLED[key]), key)
        return
    for seed in range(seeds):
        for key in wanted:
            print(json.dumps(run(folder(out, key, seed), key, seed, records)), flush=True)


def folder(out: Path, key: Key, seed: int) -> Path:
    """Return where a run is."""
    return out / "-".join((*key, str(seed)))


def run(place: Path, key: Key, seed: int, file: Path) -> dict[str, Any]:
    """Train one preset with one seed and record it in a file; return the record."""
    family, name, arch = key
    preset = presets.PRESETS[family, name][arch]
    flags = f"--arch {arch} --task {family} --preset {name} --seed {seed}"
    finished = (place / FILE).exists() and read_folder(place).finished
    started = time.process_time()
    trained = train(
        preset.spec(),
        preset.load_task(seed),
        out=place,
        overwrite=not finished,
        device="cpu",
        command=f"patchbench train {flags} --out {place.name}",
        seed=seed,
        **preset.settings,
    )
    seconds = time.process_time() - started
    before = json.loads(file.read_text())["records"] if file.exists() else []
    known = {(r["family"], r["preset"], r["arch"], r["seed"]): r for r in before}
    earlier = known.get((*key, seed))
    if finished:  # which says nothing of its time
        if earlier is None or earlier["accuracy"] != trained.result.summary["accuracy"]:
            raise UserError(f"{place} is there, and no record of its time", "remove it to run it")
        seconds = earlier["cpu_seconds"]
    known[*key, seed] = record(trained, key, seed, round(seconds, 1))
    with atomic_write(file) as temporary:
        lines = ",\n".join(json.dumps(known[k]) for k in sorted(known))
        temporary.write_text('{"records": [\n' + lines + "\n]}\n")
    return known[*key, seed]


def record(trained: Trained, key: Key, seed: int, seconds: float) -> dict[str, Any]:
    """Return what a run reached."""
    summary = trained.result.summary
    effects = {e["site"]: e["attrib"]["value"] for e in summary["runs"][0]["effects"]}
    return {
        "family": key[0],
        "preset": key[1],
        "arch": key[2],
        "seed": seed,
        "accuracy": summary["accuracy"],
        "accuracy_beyond_heuristics": summary["accuracy_beyond_heuristics"],
        "floor": summary["floor"],
        "steps": trained.steps,
        "cpu_seconds": seconds,
        "attrib": {
            position: round(effects[site], 4)
            for position in POSITIONS
            if (site := f"L1.block_input@{position}") in effects
        },
        "torch": torch.__version__,
        "machine": platform.machine(),
    }


def copy_model(place: Path, key: Key) -> None:
    """Copy a trained model into the package."""
    target = bundled.WEIGHTS / f"{key[0]}-{key[2]}"
    trained = Result.load(place / RESULT)  # before anything is replaced
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", FILE):
        shutil.copyfile(place / name, target / name)
    # Evaluated once more, so that the Result is what this version of the package makes of it.
    result = evaluate(
        load_model(target),
        presets.PRESETS[key[:2]][key[2]].load_task(BUNDLED[key]),
        n=trained.summary["n"],
        template="symbolic",
        seed=BUNDLED[key],
        command=trained.provenance["command"],
    )
    result.provenance["training"] = trained.provenance["training"]
    for part in (result.summary, result.provenance):
        part["model"]["name"] = bundled.PREFIX + target.name
    result.save(target / RESULT)
    print(f"{target}: {sum(file.stat().st_size for file in target.rglob('*')) / 1e6:.2f} MB")


if __name__ == "__main__":
    typer.run(main)
