"""Any command line ends with code 0 or 2, the latter with one line that says what is wrong."""

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from patchbench import cli
from patchbench.adapters.bundled import WEIGHTS
from patchbench.common import UserError
from tests.fuzz.cases import TEXTS, either, fuzzed

RESULTS = [str(WEIGHTS / name / "result") for name in ("ar-based", "ar-attention", "ar-mamba")]
# Large numbers are true wishes: nobody waits here for as many rows as they ask for.
NUMBERS = st.one_of(
    st.integers(-3, 20).map(str),
    st.sampled_from(["1e-3", "0.5", "-0.1", "nan", "inf", "1_0", "0x10", "٣", "1" * 5000, "1,2"]),
)
# More than any row, step or width is counted by.
HUGE = st.sampled_from([str(2**63), str(10**20), "-9223372036854775809", "1e309", "9" * 400])
COMPONENTS = ["block_input", "mixer_output,mlp_output", "conv_output", "block_input, q"]
MEANT = {
    "--model": ["patchbench/ar-based", "patchbench/ar-mamba", "patchbench/nothing", "EleutherAI/x"],
    "--task": ["ar", "ar/mini", "atr/easy", "ar/nothing", "mqar"],
    "--set": ["num_pairs=4", "num_pairs=0", "reverse=true", "nothing=1", "num_pairs", "=4"],
    "--train": ["steps=4", "lr=0.1", "steps=x", "nothing=3"],
    "--corruption": ["key", "value", "swap", "key,value", "other"],
    "--direction": ["denoise", "noise", "denoise,noise", "there"],
    "--component": COMPONENTS, "--components": COMPONENTS, "--dynamics-components": COMPONENTS,
    "--positions": ["key", "value,value+1", "query-1", "all", "value+99", "here"],
    "--sites": ["L0.block_input@value", "L*.block_input@value+0..2", "A & B", "L9.x@"],
    "--engine": ["native", "pyvene", "nnsight"], "--method": ["exact", "atp", "eap", "eap-ig"],
    "--split": ["test", "dev", "train"], "--layers": ["0", "0-1", "1,0", "3-", "0-10000000000"],
    "--arch": ["mamba", "attention,based", "list", "transformer"], "--preset": ["tiny", "list"],
    "--schedule": ["cosine", "constant"], "--data": ["fresh", "fixed"], "--init": ["pytorch"],
    "--lr": ["1e-3", "auto"], "--lrs": ["1e-3,1e-2"], "--widths": ["16,32"], "--seeds": ["0,1"],
    "--option": ["positions=learned", "d_conv=2", "d_conv=x", "nothing=1"],
    "--curriculum": ["num_pairs=2:3", "num_pairs=2", "drawn_keys=3,num_pairs=1:2"],
    "--scale": ["mini", "paper"], "--only": ["mamba*", "nothing*"], "--executor": ["local", "ray"],
    "--device": ["cpu", "auto"], "--dtype": ["float32", "auto"], "--wandb-mode": ["offline"],
    "--template": ["symbolic", "colon"], "--html": ["page.html", "."], "--out": ["out", "a/b", "."],
    "--reference": [RESULTS[0], "ar-based"], "--tokenizer": ["nothing"], "--report-to": ["none"],
}  # fmt: skip
FOLDERS = st.lists(either([*RESULTS, str(WEIGHTS), "nothing", "."], wrong=TEXTS), max_size=3)
NAMES = either(["ar", "atr/easy", "induction", "ar/nothing"], wrong=TEXTS)
RECIPES = either(["paper_ar", "paper_atr_noconv", "paper"], wrong=TEXTS)
# Of each command: what stands before its options, what ends it before the work, and its operands.
COMMANDS = {
    "evaluate": (("evaluate",), ("--dry-run",), st.just([])),
    "train": (("train",), (), st.just([])),
    "sweep": (("sweep",), ("--dry-run",), st.lists(RECIPES, min_size=1, max_size=1)),
    "recipes": (("recipes",), (), st.just([])),
    "show": (("show",), (), FOLDERS),
    "compare": (("compare",), (), FOLDERS),
    "pool": (("pool",), (), FOLDERS),
    "leaderboard": (("leaderboard",), (), FOLDERS),
    "log": (("log",), (), FOLDERS),
    "selftest": (("selftest",), (), st.just([])),
    "doctor": (("doctor",), (), st.just([])),
    "models": (("models",), (), st.just([])),
    "sites": (("sites",), (), st.just([])),
    "tasks": (("tasks",), (), st.just([])),
    "export": (("tasks", "export"), ("--n", "4"), st.lists(NAMES, max_size=2)),
}
# What looks at the whole machine each time.
SLOW = {"doctor"}
# What is not tried at random: it leaves the machine, or ends only when the work is done.
NEVER = {"--push-to-hub", "--help", "--trust-remote-code", "--address", "--device-map"}


def options_of(words: tuple[str, ...]) -> dict[str, bool]:
    """Return the options of a command, and whether a value follows."""
    command = typer.main.get_command(cli.app)
    for word in words:
        command = command.commands[word]
    return {
        name: not param.is_flag
        for param in command.params
        for name in (*param.opts, *param.secondary_opts)
        if name.startswith("-") and not NEVER & {*param.opts}
    }


@st.composite
def command_lines(draw, name):
    """Draw the words after "patchbench"."""
    words, ending, operands = COMMANDS[name]
    options = options_of(words)
    found = [*words, *draw(operands)]
    for option in draw(st.lists(st.sampled_from(sorted(options)), max_size=4)) if options else []:
        found.append(option)
        if options[option]:
            meant = st.sampled_from(MEANT[option]) if option in MEANT else NUMBERS
            found.append(draw(either(meant, wrong=st.one_of(TEXTS, NUMBERS, HUGE))))
    found += draw(either([[]], wrong=st.lists(TEXTS, max_size=2)))
    # Seldom the last option lacks its value; "--version" is for commands that have no such option.
    valued = sorted(option for option, takes in options.items() if takes) or ["--version"]
    return [*found, *ending, *draw(either([[]], wrong=st.sampled_from(valued).map(lambda o: [o])))]


@pytest.fixture(scope="module", autouse=True)
def no_work(tmp_path_factory):
    """Stop before a training, a selftest or a tracker would begin; write to a folder of its own."""

    def reached(*_, **__):
        raise UserError("the work would begin", "none: it was asked for")

    with pytest.MonkeyPatch.context() as patched:
        for place in ("patchbench.training.train", "patchbench.cli_tracking.send"):
            patched.setattr(place, reached)
        patched.setattr("patchbench.selftest.run", reached)
        patched.setenv("COLUMNS", "80")
        patched.chdir(tmp_path_factory.mktemp("cwd"))
        yield


def ended(words: list[str]) -> tuple[int, str, str]:
    """Run a command line in this process: (exit code, stdout, stderr)."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(out), redirect_stderr(err):
        patched.setattr(sys, "argv", ["patchbench", *words])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
    return int(stopped.value.code or 0), out.getvalue(), err.getvalue()


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - SLOW))
@fuzzed(25)
@given(data=st.data())
def test_any_command_line(name, data):
    ends_as_documented(data.draw(command_lines(name)))


@pytest.mark.parametrize("name", sorted(SLOW))
@fuzzed(4, share=0.05)
@given(data=st.data())
def test_any_command_line_of_a_slow_command(name, data):
    ends_as_documented(data.draw(command_lines(name)))


def ends_as_documented(words: list[str]) -> None:
    """Assert it of a command line that a system can pass on."""
    here = Path.cwd()
    if any("\0" in word or "\ud800" in word for word in words):
        return
    code, _, stderr = ended(words)
    assert here == Path(os.getcwd())
    lines = [line for line in stderr.splitlines() if line.startswith("patchbench: ")]
    assert code in (0, 2), (words, stderr)
    assert len(lines) == (code == 2), (words, stderr)
    assert "Traceback" not in stderr
