"""`patchbench train` as a user meets it."""

import json
import os
import subprocess
import sys

import pytest

from tests.tiny_models import tiny

AR = ("--task", "ar/tiny", "--steps", 6, "--dev-n", 16, "--test-n", 8, "--train-n", 64)
TINY = ("--arch", "delta_net", "--width", 16, "--device", "cpu", *AR)


def test_train_prints_and_writes_what_evaluate_takes(run, tmp_path):
    out = tmp_path / "run"
    code, stdout, stderr = run("train", *TINY, "--out", out)
    assert code == 0, stderr
    # Paths are printed whole, however long.
    assert max(len(line) for line in stdout.splitlines() if str(out) not in line) <= 80
    for word in ("trained 6 steps", "0.001", "ar/tiny", "accuracy", f"{out}"):
        assert word in stdout.replace("\n", "")
    evaluated = json.loads(
        run("evaluate", "--model", out, "--task", "ar/tiny", "--n", 8, "--json")[1]
    )
    recorded = json.loads((out / "result" / "result.json").read_text())
    assert evaluated["accuracy"] == recorded["summary"]["accuracy"]
    assert "patchbench train" in recorded["provenance"]["command"]


def test_what_a_training_that_was_killed_at_its_end_lacks_is_told(run, monkeypatch, tmp_path):
    """Its model is there and is measured; the note says that its own Result is not."""
    monkeypatch.chdir(tmp_path)
    note = "the training in run has not ended, and its own Result is missing"

    def told() -> bool:
        code, stdout, _ = run("evaluate", "--model", "run", "--task", "ar/tiny", "--n", 8)
        assert code == 0
        return note in " ".join(stdout.split())

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("patchbench.training.job.Job.after", killed)
        assert run("train", *TINY, "--out", "run")[0] == 130
    assert told()
    assert run("train", *TINY, "--out", "run")[0] == 0
    assert not told()


def test_the_grid_is_printed_and_json_is_alone_on_stdout(run, tmp_path):
    grid = ("--lr", "auto", "--lr-grid", "1e-4,1e-2")
    code, stdout, _ = run("train", *TINY, *grid, "--out", tmp_path / "run")
    assert code == 0
    assert "dev loss" in stdout
    code, stdout, stderr = run("train", *TINY, *grid, "--out", tmp_path / "run", "--json")
    assert (code, stderr) == (0, "")
    content = json.loads(stdout)
    assert [line["rate"] for line in content["grid"]] == [1e-4, 1e-2]


def test_a_page_that_cannot_be_written_costs_no_numbers(run, monkeypatch, tmp_path):
    """They are printed and sent, and the same command writes the page later."""
    sent: list[str] = []
    monkeypatch.setattr("patchbench.cli_train.send", lambda results, *_: sent.extend(results))
    out = tmp_path / "run"
    train = (*TINY, "--dynamics-every", 0, "--out", out)
    assert run("train", *train, "--no-report")[0] == 0
    (out / "report.html").mkdir()
    code, stdout, stderr = run("train", *train)
    assert code == 2
    assert "report.html cannot be written" in stderr
    assert stderr.count("\n") == 1
    assert "trained 6 steps" in stdout
    assert sent == ["run", "run"]
    (out / "report.html").rmdir()
    assert run("train", *train)[0] == 0
    assert (out / "report.html").is_file()


def test_architectures_are_listed(run):
    code, stdout, _ = run("train", "--arch", "list")
    assert code == 0
    for name in ("attention", "based", "mamba_noconv", "gated_delta_net"):
        assert name in stdout


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--arch", "delta_nett"], "delta_net"),
        (["--lr", "quick"], "auto"),
        (["--schedule", "cosin"], "cosine"),
        (["--data", "fres"], "fresh"),
        (["--option", "d_convv=2"], "d_conv"),
        (["--option", "d_conv"], "--option 'd_conv' is not NAME=VALUE"),
        (["--init", "xavier"], "known"),
        (["--epochs", "1"], "steps or epochs"),
        (["--init-from", "nowhere"], "either"),
        (["--threads", "0"], "at least 1"),
        (["--width", "10000000"], "at most 65,536"),
        (["--layers", "100000"], "at most 1,000"),
        (["--option", "vocab_size=5"], "the task decides it"),
        (["--option", "num_heads=x"], "give a whole number"),
        (["--batch-size", "100000"], "is more than train_n"),
        (["--test-n", "200000"], "at most 100,000"),
        (["--option", "d_conv=1000000000"], "whose training takes"),
        (["--option", "name=x"], "give --arch"),
        (["--option", "dtype=float16"], "no option 'dtype'"),
        (["--warmup", "nan"], "a finite number"),
        (["--clip", "inf"], "a finite number"),
        (["--weight-decay", "-1"], "at least 0"),
        (["--seed", str(2**32)], "at most 4,294,967,295"),
        (["--steps", "1" + "0" * 30], "at most 1,000,000,000"),
        (["--lr-grid", "1e-3,1e-2"], "give that too"),
        (["--lr", "auto", "--lr-grid", ","], "different rates"),
        (["--dynamics-components", ","], "dynamics_every=0"),
        (["--curriculum", "seed=3:2"], "settings alone"),
        (["--curriculum", "num_pairs=2,num_pairs=3:2"], "sets a name twice"),
        (["--set", "seed=3"], "give --seed"),
        (["--set", "name=ar"], "give --task"),
        (["--out", "/tmp/" + "x" * 300], "too long"),
        (["--batch-size", "0"], "at least 1"),
        (["--task", "arr"], "ar"),
        (["--out", "/proc/nowhere/run"], "/proc"),
        (["--dynamics-n", "99999"], "at most 10,000"),
        (["--report-to", "nonsense"], "unknown logger 'nonsense'"),
        (["--report-to", "wandbb,none"], "did you mean 'wandb'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_code_2(run, tmp_path, change, says):
    code, stdout, stderr = run("train", *TINY, "--out", tmp_path / "run", *change)
    assert code == 2, stderr
    assert stdout == ""
    assert len(stderr.strip().splitlines()) == 1
    assert says in stderr
    assert not (tmp_path / "run").exists()


def test_a_logger_that_is_not_installed_is_one_line_and_code_2(run, monkeypatch, tmp_path):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "wandb" else find(name, *rest),
    )
    code, stdout, stderr = run("train", *TINY, "--out", tmp_path / "run", "--report-to", "wandb")
    assert (code, stdout) == (2, "")
    assert len(stderr.strip().splitlines()) == 1
    assert "logger 'wandb' cannot be used (WandbCallback requires wandb" in stderr
    assert not (tmp_path / "run").exists()


def test_wandb_without_a_login_is_one_line_and_code_2(tmp_path):
    pytest.importorskip("wandb")
    script = "from patchbench.cli import main; main()"
    arguments = map(str, ["train", *TINY, "--out", tmp_path / "run", "--report-to", "wandb"])
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**kept, "HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "wandb login" in done.stderr
    assert not (tmp_path / "run").exists()


def test_logging_to_none_is_no_logging(run, tmp_path):
    code, _, stderr = run("train", *TINY, "--out", tmp_path / "run", "--report-to", "none")
    assert (code, stderr) == (0, "")


def test_rates_that_differ_in_the_tenth_digit_are_told_apart(run, tmp_path):
    grid = ("--lr", "auto", "--lr-grid", "1e-3,0.001000000001")
    code, stdout, stderr = run("train", *TINY, *grid, "--out", tmp_path / "run")
    assert code == 0, stderr
    assert "0.001000000001" in stdout
    assert len([line for line in stdout.splitlines() if line.strip().startswith("0.001")]) == 2


def test_what_does_not_fit_together_is_one_line_and_code_2(run, tmp_path):
    tiny("gpt2", vocab=8).save_pretrained(tmp_path / "small")
    cases = {
        "36 token ids": ("--init-from", tmp_path / "small"),
        "max_position_embeddings": ("--arch", "attention", "--option", "max_position_embeddings=4"),
    }
    for says, model in cases.items():
        code, _, stderr = run("train", *model, *AR, "--out", tmp_path / "run")
        assert code == 2, stderr
        assert len(stderr.strip().splitlines()) == 1
        assert says in stderr
    code, _, stderr = run("train", *TINY, "--out", tmp_path / "run2")
    assert code == 0, stderr
    code, _, stderr = run("train", *TINY, "--out", tmp_path / "run2", "--seed", 1)
    assert code == 2
    assert "training.seed: 0 → 1" in stderr
