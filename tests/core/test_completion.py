"""Completion in a real shell, and what it costs."""

import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Run lines in a bash that finds `patchbench`, with a home folder of its own."""
    program = tmp_path / "bin" / "patchbench"
    program.parent.mkdir()
    main = "from patchbench.cli import main; main()"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{main}" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    def run(*lines):
        # A last command of its own: bash would put a single one in its own place.
        done = subprocess.run(
            ["bash", "-c", "\n".join([*lines, "true"])], capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        return done.stdout

    return run


def completed(shell, source, line):
    """Return what bash would offer at the end of a line."""
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    return shell(
        source,
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}",
        "$(complete -p patchbench | sed 's/.*-F \\([^ ]*\\).*/\\1/') patchbench",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    ).split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("patchbench ev", ["evaluate"]),
        ("patchbench evaluate --compo", ["--components"]),
        ("patchbench evaluate --task induc", ["induction", "induction/tiny"]),
        ("patchbench train -t ar/t", ["ar/tiny"]),
        ("patchbench tasks export inverse_match/", ["inverse_match/forward", "inverse_match/tiny"]),
        ("patchbench evaluate --model ./", []),  # bash goes on with the names of files
    ],
    ids=["command", "option", "task", "task of train", "task to export", "file"],
)
def test_what_is_shown_completes(shell, line, offered):
    shown = "source <(patchbench --show-completion)"
    assert completed(shell, shown, line) == offered


def test_what_is_installed_is_loaded_by_the_next_shell(shell):
    assert "completion installed in" in shell("patchbench --install-completion")
    assert completed(shell, "source ~/.bashrc", "patchbench doc") == ["doctor"]
