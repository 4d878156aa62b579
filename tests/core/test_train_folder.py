"""What a training leaves on disk: one process at a time, damaged files, a full disk."""

import errno
import json
import shutil

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import Trainer

import patchbench as pb
from patchbench.common.locks import LOCK, locked
from patchbench.training import ModelSpec, Trained, train
from patchbench.training.folder import TrainFolder

SPEC = ModelSpec(arch="delta_net", width=16)


@pytest.fixture(scope="module")
def task():
    return pb.load_task("ar", num_pairs=2, num_keys=4, num_values=4)


def run(task, out, **more):
    settings = {
        "steps": 12, "log_every": 2, "dynamics_every": 4, "dynamics_n": 4, "dev_n": 16,
        "test_n": 8, "train_n": 256, "batch_size": 8, "device": "cpu", **more,
    }  # fmt: skip
    return train(SPEC, task, out=out, **settings)


@pytest.fixture(scope="module")
def whole(task, tmp_path_factory):
    return run(task, tmp_path_factory.mktemp("whole") / "run")


def weights(trained):
    return load_file(trained.path / "model.safetensors")


def same(first, second):
    one, two = weights(first), weights(second)
    files = [(run.path / "dynamics.parquet").read_bytes() for run in (first, second)]
    return (
        all(torch.equal(one[name], two[name]) for name in one)
        and first.history == second.history
        and files[0] == files[1]
    )


def interrupt(task, out, step=9, **more):
    """Leave a training as one that was interrupted after so many steps; return its work."""

    def stop(rate, done, *rest):
        if done >= step:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("patchbench.training.watcher._SECONDS_BETWEEN_REPORTS", -1)
        with pytest.raises(KeyboardInterrupt):
            run(task, out, progress=stop, **more)
    return out / "work" / "lr-0.001"


def truncate(file):
    file.write_bytes(file.read_bytes()[:-7])


def flip(file):
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, flip, lambda file: file.unlink()])
@pytest.mark.parametrize(
    "name", ["model.safetensors", "trainer_state.json", "optimizer.pt", "complete"]
)
def test_a_damaged_checkpoint_costs_its_steps_and_no_more(task, whole, tmp_path, name, damage):
    checkpoints = interrupt(task, tmp_path / "run") / "checkpoints"
    assert {path.name for path in checkpoints.iterdir()} == {"checkpoint-6", "checkpoint-8"}
    damage(checkpoints / "checkpoint-8" / name)
    assert same(run(task, tmp_path / "run"), whole)


def forget(file, step=4):
    """Take one measurement out of a file of dynamics."""
    pq.write_table(pq.read_table(file).filter(pc.field("step") != step), file)


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        forget,
        lambda file: file.unlink(),
        lambda file: pq.write_table(pq.read_table(file).drop(["attrib"]), file),
    ],
    ids=["cut off", "a gap", "missing", "a column less"],
)
def test_damaged_dynamics_are_named(task, tmp_path, damage):
    """Going on, the file would silently lack its beginning."""
    damage(interrupt(task, tmp_path / "run") / "dynamics.parquet")
    with pytest.raises(pb.UserError, match=r"dynamics\.parquet is damaged or missing.*--overwrite"):
        run(task, tmp_path / "run")
    assert run(task, tmp_path / "run", overwrite=True).steps == 12


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        lambda old: {**old, "config": None},
        lambda old: {key: old[key] for key in old if key != "grid"},
    ],
    ids=["cut off", "a list", "no configuration", "no grid"],
)
def test_a_damaged_record_is_named(task, tmp_path, content):
    out = run(task, tmp_path / "run", steps=2, dynamics_every=0).path
    file = out / "training.json"
    old = json.loads(file.read_text())
    file.write_text(content if isinstance(content, str) else json.dumps(content(old)))
    for read in (Trained.load, lambda path: run(task, path), lambda path: run(task, path, seed=3)):
        with pytest.raises(pb.UserError, match=r"training\.json is (damaged|no training)"):
            read(out)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("I/O error: No space left on device (os error 28)"),
        RuntimeError("[enforce fail at inline_container.cc:595] . PytorchStreamWriter failed"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_full_disk_is_one_line_and_the_run_goes_on_later(
    task, whole, tmp_path, monkeypatch, error
):
    save, calls = Trainer._save_checkpoint, []

    def full(self, *args):
        calls.append(save(self, *args))
        if len(calls) == 3:  # all was written but for the seal
            raise error

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_save_checkpoint", full)
        with pytest.raises(pb.UserError, match="cannot be written") as said:
            run(task, tmp_path / "run")
    assert "\n" not in str(said.value)
    assert same(run(task, tmp_path / "run"), whole)


def test_what_a_kill_at_the_very_end_left_goes_with_the_next_call(task, tmp_path, monkeypatch):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(TrainFolder, "clean", lambda self: None)
        run(task, out)
    (out / LOCK).touch()
    assert (out / "work").exists()
    run(task, out)
    assert {LOCK, "work"}.isdisjoint(path.name for path in out.iterdir())


def test_a_folder_with_no_more_than_a_lock_and_a_beginning_is_free(task, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    for name in (LOCK, ".training.json.new.abcdefgh"):
        (out / name).touch()
    assert run(task, out, steps=2, dynamics_every=0).steps == 2
    assert not [path.name for path in out.iterdir() if path.name.startswith(".")]


def test_one_process_at_a_time(task, tmp_path):
    out = tmp_path / "run"
    interrupt(task, out)
    before = sorted(out.rglob("*"))
    with locked(out, out):
        for overwrite in (False, True):
            with pytest.raises(pb.UserError, match="another process is writing"):
                run(task, out, overwrite=overwrite)
        assert sorted(path for path in out.rglob("*") if path.name != LOCK) == before
    assert run(task, out).steps == 12
    assert not (out / LOCK).exists()


def test_what_another_process_finished_meanwhile_is_taken(task, whole, tmp_path):
    out = tmp_path / "run"
    config = json.loads((whole.path / "training.json").read_text())["config"]
    early = TrainFolder.open(out, config)
    run(task, out)
    with early.held() as folder:
        assert folder.finished
    other = TrainFolder.open(tmp_path / "other", {**config, "model": {}})
    run(task, tmp_path / "other")
    with pytest.raises(pb.UserError, match="another configuration"), other.held():
        pass
    assert (tmp_path / "other" / "model.safetensors").exists()


def test_overwrite_leaves_nothing_of_the_old(task, tmp_path):
    out = run(task, tmp_path / "run").path
    (out / "notes").mkdir()
    (out / "notes" / "mine.txt").write_text("")
    run(task, out, overwrite=True, dynamics_every=0)
    assert {path.name for path in out.iterdir()} == {
        "config.json", "generation_config.json", "model.safetensors", "result", "training.json",
    }  # fmt: skip


def test_overwrite_takes_away_a_link_and_not_what_it_points_to(task, tmp_path):
    out = run(task, tmp_path / "run", steps=2, dynamics_every=0).path
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "mine.txt").write_text("precious")
    (out / "work").symlink_to(tmp_path / "scratch")
    run(task, out, overwrite=True, steps=3, dynamics_every=0)
    assert (tmp_path / "scratch" / "mine.txt").read_text() == "precious"
    assert not (out / "work").is_symlink()


@pytest.mark.parametrize("target", ["nowhere", "link"], ids=["nothing", "itself"])
def test_a_link_to_nothing_is_named(task, tmp_path, target):
    (tmp_path / "link").symlink_to(tmp_path / target)
    with pytest.raises(pb.UserError, match="is a link to nothing"):
        run(task, tmp_path / "link")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "result"])
def test_a_finished_training_without_its_outcome_is_named(task, tmp_path, name):
    """The same command would otherwise say that all is there."""
    out = run(task, tmp_path / "run", steps=2, dynamics_every=0).path
    (out / name).rename(tmp_path / "gone")
    for read in (Trained.load, lambda path: run(task, path, steps=2, dynamics_every=0)):
        with pytest.raises(pb.UserError, match=r"is damaged: .* is missing.*--overwrite"):
            read(out)
    assert run(task, out, steps=2, dynamics_every=0, overwrite=True).steps == 2


def test_distances_need_not_be_multiples(task, tmp_path):
    """Each is kept to, and a kill between them changes nothing."""
    distances = {"steps": 13, "log_every": 4, "dynamics_every": 3, "checkpoint_every": 5}
    trained = run(task, tmp_path / "run", **distances)
    assert [line["step"] for line in trained.history] == [3, 4, 5, 6, 8, 9, 10, 12, 13]
    measured = pq.read_table(trained.path / "dynamics.parquet")["step"].to_pylist()
    assert sorted(set(measured)) == [3, 6, 9, 12, 13]
    interrupt(task, tmp_path / "other", step=11, **distances)
    assert same(run(task, tmp_path / "other", **distances), trained)


def test_what_training_starts_from_is_not_overwritten(task, whole, tmp_path):
    """A kill would leave nothing to begin with."""
    out = shutil.copytree(whole.path, tmp_path / "start")
    loaded = pb.load_model(out).model
    for model, place in ((ModelSpec(init_from=str(out)), out), (loaded, out), (loaded, tmp_path)):
        with pytest.raises(pb.UserError, match=r"not replaced|is no training|working directory"):
            train(model, task, out=place, overwrite=True, steps=2, train_n=64)
    assert equal_files(out, whole.path)


def equal_files(one, other):
    files = [
        {p.relative_to(at): p.read_bytes() for p in at.rglob("*") if p.is_file()}
        for at in (one, other)
    ]
    return files[0] == files[1]
