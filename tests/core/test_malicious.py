"""Folders that somebody sends: nothing in them runs, leaves its place, or becomes markup."""

import copy
import io
import json
import pickle
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import patchbench as pb
from patchbench.adapters.bundled import bundled_models
from patchbench.common import UserError
from patchbench.comparing import compare
from patchbench.leaderboard import leaderboard
from patchbench.report import page
from patchbench.report.compare import write_comparison_page
from patchbench.report.html import render_report
from patchbench.report.leaderboard import write_leaderboard_page
from patchbench.results import Result
from patchbench.sweeping.folder import read_sweep
from patchbench.training import train
from patchbench.training.checkpoints import COMPLETE, seal
from tests.core.report.made import EVIL, dynamics, result
from tests.core.tiny_training import QUICK, SPEC, TASK
from tests.tiny_models import tiny

COMMANDS = "\x1b]0;evil\x07\x1b[31m\x9b31m\x08"


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A training that was interrupted after its first checkpoint."""
    out = tmp_path_factory.mktemp("begun") / "run"

    def stop(rate, done, *rest):
        if done >= 6:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("patchbench.training.watcher._SECONDS_BETWEEN_REPORTS", -1)
        with pytest.raises(KeyboardInterrupt):
            again(out, progress=stop)
    return out


def again(out, **more):
    task = pb.load_task("ar", **TASK)
    return train(SPEC, task, out=out, log_every=4, dynamics_every=0, **QUICK, **more)


class Bomb:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("zipped", [False, True], ids=["pickle", "zip"])
@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_pickle_in_the_state_of_a_training_is_not_run(begun, tmp_path, name, zipped):
    """The seal fits: whoever sends a folder can make one."""
    mark, out, payload = tmp_path / "ran", tmp_path / "run", io.BytesIO()
    shutil.copytree(begun, out)
    torch.save({"x": Bomb(mark)}, payload)
    (checkpoint,) = out.glob("work/*/checkpoints/checkpoint-*")
    (checkpoint / name).write_bytes(payload.getvalue() if zipped else pickle.dumps(Bomb(mark)))
    (checkpoint / COMPLETE).unlink()
    seal(checkpoint)
    with pytest.raises(UserError, match=r"checkpoint-4 cannot be gone on with .*: .*remove it"):
        again(out)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("trainer_state.json", "{}"),
        ("trainer_state.json", "[]"),
        ("trainer_state.json", "{"),
        ("model.safetensors", "junk"),
    ],
)
def test_a_sealed_checkpoint_that_cannot_be_read_is_named(begun, tmp_path, name, content):
    out = Path(shutil.copytree(begun, tmp_path / "run"))
    (checkpoint,) = out.glob("work/*/checkpoints/checkpoint-*")
    (checkpoint / name).write_text(content)
    (checkpoint / COMPLETE).unlink()
    seal(checkpoint)
    with pytest.raises(UserError, match=r"checkpoint-4 cannot be gone on with"):
        again(out)
    shutil.rmtree(checkpoint)
    assert again(out).steps == QUICK["steps"]


@pytest.mark.parametrize("name", ["../elsewhere", "/tmp/elsewhere", "a/../../b", ".", ""])
@pytest.mark.parametrize("both", [False, True], ids=["key", "key_and_name"])
def test_a_sweep_has_no_run_elsewhere(tmp_path, name, both):
    run = {"name": name if both else "a", "group": "a", "model": {}, "task": "ar", "training": {}}
    content = {"schema": "patchbench/sweep", "version": 1, "runs": {name: run}}
    (tmp_path / "sweep.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"letters, digits|two names"):
        read_sweep(tmp_path)


@pytest.mark.parametrize("names", [["../other"], ["/"], ["dev", "."], "dev"], ids=str)
def test_a_result_has_no_other_result_elsewhere(tmp_path, names):
    result().save(tmp_path / "other")
    result().save(tmp_path / "one")
    file = tmp_path / "one" / "result.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "beside": names}))
    with pytest.raises(UserError, match=r"result.json is damaged"):
        Result.load(tmp_path / "one")


class Tags(HTMLParser):
    """The elements of a page, with their attributes' names."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, tuple(name for name, _ in attrs)))


def leaves(content, path=()) -> Iterator[tuple]:
    """Yield where the texts of nested dicts and lists are."""
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in items:
        if isinstance(value, dict | list):
            yield from leaves(value, (*path, key))
        elif isinstance(value, str):
            yield (*path, key)


def poisoned(found: Result, text: str) -> Iterator[Result]:
    """Yield Results with `text` added: to all of the provenance, and to the rest one by one."""
    parts = {name: getattr(found, name) for name in ("config", "provenance", "summary")}
    paths = list(leaves(parts))
    origin = [path for path in paths if path[0] == "provenance"]
    for together in (origin, *([path] for path in paths if path not in origin)):
        other = copy.deepcopy(found)
        for *above, last in together:
            content = vars(other)
            for key in above:
                content = content[key]
            content[last] += text
        yield other


@pytest.fixture
def without_plotly(monkeypatch):
    monkeypatch.setattr(page, "_plotly", lambda: "")


def test_no_text_of_a_result_becomes_markup(without_plotly):
    harmless = Tags(render_report(result(), dynamics=dynamics())).found
    shown = 0
    for evil in poisoned(result({"L0.block_input@key": 1.0, "L1.block_input@value": 0.5}), EVIL):
        try:
            html = render_report(evil, dynamics=dynamics())
        except (UserError, KeyError, ValueError):
            continue
        tags = Tags(html).found
        assert [tag for tag in tags if tag not in harmless] == []
        assert html.count("<script") == sum(tag == "script" for tag, _ in harmless)
        shown += "window.evil" in html
        assert "<script>window.evil" not in html
        assert "<img" not in html
        evil._repr_html_()
    assert shown > 10


def test_no_name_becomes_markup_on_the_other_pages(without_plotly, tmp_path):
    (model, *_) = bundled_models()
    for name in ("one", "two"):
        shutil.copytree(model.folder / "result", tmp_path / "runs" / name)
    file = tmp_path / "runs" / "two" / "result.json"
    pages = {}
    for text in ("", EVIL):
        content = json.loads(file.read_text())
        for part in (content["summary"], content["provenance"]):
            part["model"]["name"] += text
            part["task"]["name"] += text
        content["provenance"]["notes"] = [text]
        file.write_text(json.dumps(content))
        results = {name: Result.load(tmp_path / "runs" / name) for name in ("one", "two")}
        write_comparison_page(compare(results), results, tmp_path / "compare.html")
        write_leaderboard_page(leaderboard([str(tmp_path / "runs")]), tmp_path / "board.html")
        pages[text] = [
            Tags((tmp_path / name).read_text()).found for name in ("compare.html", "board.html")
        ] + [Tags(results["two"]._repr_html_()).found]
    for harmless, evil in zip(pages[""], pages[EVIL], strict=True):
        assert set(evil) == set(harmless)


def test_no_name_commands_the_terminal(run, tmp_path):
    """Names of models, and of folders."""
    one, other = tmp_path / f"{COMMANDS}[red]m", tmp_path / "other"
    result(name=COMMANDS + "[red]m[/]").save(one)
    result().save(other)
    for command in (["show", one], ["compare", one, other], ["leaderboard", tmp_path]):
        code, stdout, stderr = run(*command)
        assert code == 0, stderr
        assert "[red]m" in stdout
        assert not {"\x1b", "\x07", "\x9b", "\x08"} & set(stdout + stderr)


def test_a_config_does_not_command_the_terminal(run, tmp_path):
    tiny("gpt2").save_pretrained(tmp_path / "m")
    config = tmp_path / "m" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_type": COMMANDS}))
    code, stdout, stderr = run("sites", "--model", tmp_path / "m")
    assert (code, stdout) == (2, "")
    assert "evil" in stderr
    assert not {"\x1b", "\x07", "\x9b", "\x08"} & set(stderr)
