"""What the terminal shows: whole numbers in 80 columns, and progress only where it can be seen."""

import io

import pytest
from rich.console import Console

from patchbench.report import terminal
from patchbench.statistics import Estimate


@pytest.mark.parametrize("positions", [4, 5, 9])
def test_the_grid_fits_and_is_whole(positions, capsys):
    """Every number, however many signs and digits, is printed without being cut."""
    names = ["key", "value", "value+1", "query", "answer-1", *(f"value+{i}" for i in range(2, 6))]
    names = names[:positions]
    worst = Estimate(value=-0.123, low=-0.456, high=-0.001, n=8)

    grid = {(layer, name): worst for layer in (0, 29) for name in names}
    terminal.print_grid(terminal.make_console(), "Attrib of block_input", grid)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    rows = " ".join(line for line in lines if line.strip().startswith("29"))
    assert rows.count("-0.12 ±0.33") == positions


@pytest.fixture
def screen(monkeypatch):
    """A terminal that keeps what is written on it."""
    kept = io.StringIO()
    console = Console(file=kept, force_terminal=True, width=80, highlight=False)
    monkeypatch.setattr(terminal, "make_console", lambda *, stderr=False: console)
    return kept


def test_the_bar_has_a_count_and_a_rate(screen):
    with terminal.progress_bar("patching", quiet=False) as progress:
        for done in (10, 20, 30):
            progress(done, 40)
    assert "30/40" in screen.getvalue()
    assert "/s" in screen.getvalue()


def test_the_spinner_says_what_is_under_way(screen):
    with terminal.spinner("loading [a]", quiet=False):
        pass
    assert "loading [a]" in screen.getvalue()


@pytest.mark.parametrize("quiet", [False, True])
def test_nothing_is_drawn_into_a_file_or_when_quiet(quiet, capsys):
    with (
        terminal.progress_bar("patching", quiet=quiet) as progress,
        terminal.spinner("loading", quiet=quiet),
    ):
        assert progress is None
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("number", "shown"),
    [(134_515_008, "134.5 M"), (52_345, "52.3 k"), (999, "999"), (7_000_000_000, "7.0 B")],
)
def test_parameters_are_counted_in_a_readable_unit(number, shown):
    assert terminal._count(number) == shown


def test_pairs_and_heads_are_listed_whole(capsys):
    names = ["L0.mlp_output@key & L10.block_output@value -> L11.block_input@query", "L0.q[3]@key"]
    assert terminal._split([*names, "L1.dt@key", "embed@key"]) == (["dt", "embed"], names)
    worst = Estimate(value=-0.123, low=-0.456, high=-0.001, n=8)
    effects = dict.fromkeys([*names, "x" * 90], worst)
    terminal._print_list(terminal.make_console(), "Attrib", effects)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert out.count("-0.12 ±0.33") == 3
    assert out.count("x") == 90
    for word in " ".join(names).split():
        assert word in out


def test_a_whole_sweep_stands_on_end(capsys):
    names = [f"value+{number}" for number in range(1, 30)]
    effect = Estimate(value=0.5, low=0.4, high=0.6, n=8)

    grid = {(layer, name): effect for layer in (0, 1) for name in names}
    terminal.print_grid(terminal.make_console(), "Attrib of block_input", grid)
    out = capsys.readouterr().out
    assert out.count("0.50 ±0.10") == 58
    assert sum(line.strip().startswith("value+") for line in out.splitlines()) == 29
