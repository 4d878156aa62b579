"""Commands where something is wrong around them: no room, no right to write, no memory, no network.

Use:

    python -m tests.robustness.conditions                    # all, as root on Linux
    python -m tests.robustness.conditions full memory        # some of them

Each command has to end with a defined code (0, 1 for a sweep with failed runs, 2) and, where it
fails, with one line that says what, where and the remedy; never with a traceback. What a reader
would take for real afterwards can be read, and nothing half-written is left behind.
"""

import argparse
import ctypes
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.robustness.kills import COMMANDS
from tests.robustness.places import OUT, Findings, Place, mounted
from tests.robustness.warm import ended, import_all, modules, start

MIB = 2**20
NOBODY = 65534
# Room on the disk, in bytes: from none to just too little for a report.
ROOM = (4096, 16_384, 65_536, 262_144, MIB, 3 * MIB, 5 * MIB)


def full(place: Place, findings: Findings) -> None:
    """The disk has little room, and then none; again with room, the run is finished."""
    for room in ROOM:
        for name in (*OUT, "show", "compare", "leaderboard"):
            with mounted(place.folder / "disk", room) as disk:
                code, said = place.run(place.lines(disk / "out")[name])
                findings.judge(f"full {room} {name}", code, said, disk)
                if name not in OUT or code == 0:
                    continue
                subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
                again = [*place.lines(disk / "out")[name], *COMMANDS[name].again]
                code, said = place.run(again)
                findings.judge(f"room again {room} {name}", code, said, disk)
                if code:
                    findings.problems.append(f"room again {room} {name}: code {code}: {said}")


def limited(place: Place, findings: Findings) -> None:
    """No file may be larger than a limit, as on some file systems and by `ulimit -f`."""
    for size in (0, 1000, 30_000, 300_000, 3 * MIB):
        for name in (*OUT, "show", "compare", "leaderboard"):
            folder = place.folder / f"limited-{name}-{size}"
            folder.mkdir()

            def limit(size: int = size) -> None:
                # The log has room: it is what is read.
                sys.stdout.flush()
                resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10_000, resource.RLIM_INFINITY))

            code, said = place.run(place.lines(folder / "out")[name], limit)
            findings.judge(f"limited {size} {name}", code, said, folder)


def readonly(place: Place, findings: Findings) -> None:
    """Nothing may be written, by the file system or by rights; also with something there."""
    for name in (*OUT, "show", "compare", "leaderboard"):
        with mounted(place.folder / "disk", 64 * MIB) as disk:
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
            code, said = place.run(place.lines(disk / "out")[name])
            findings.judge(f"read-only {name}", code, said, disk)
            if code != 2:
                findings.problems.append(f"read-only {name}: code {code}")
        folder = place.folder / f"rights-{name}"
        folder.mkdir(mode=0o755)

        def nobody() -> None:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)

        code, said = place.run(place.lines(folder / "out")[name], nobody)
        findings.judge(f"no rights {name}", code, said, folder)
        if code != 2:
            findings.problems.append(f"no rights {name}: code {code}")
    # A finished one in a folder that is read-only: what reads it still does.
    with mounted(place.folder / "disk", 64 * MIB) as disk:
        for name in ("train", "evaluate", "sweep"):
            shutil.copytree(place.finished / name, disk / name)
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        for name in ("train", "evaluate", "sweep"):
            findings.judge(f"show {name}", *place.run(["compare", str(disk / name)]), disk)
        code, said = place.run(
            [*COMMANDS["train"].arguments, "--no-report", "--out", f"{disk}/train"]
        )
        findings.judge("finished, read-only", code, said, disk)
        if code:
            findings.problems.append(f"finished, read-only: code {code}: {said}")


def memory(place: Place, findings: Findings) -> None:
    """A process gets no more than 1 GiB, and less than what it has to begin with and a little."""
    large = {
        "evaluate": "evaluate --model patchbench/ar-mamba --n 100000",
        "train": "train --arch attention --task ar --width 2048 --layers 16 --steps 20",
        "sweep": "sweep paper_ar --arch attention --widths 4096 --seeds 0 --workers 1",
        "export": "tasks export ar --set num_pairs=64 --set num_keys=4000 --set num_values=4000 "
        "--n 50000",
    }
    for most in (1024 * MIB, 64 * MIB):
        for name in (*OUT, "show", "compare", "leaderboard"):
            folder = place.folder / f"memory-{name}-{most}"
            folder.mkdir()

            def limit(most: int = most) -> None:
                # 64 MiB are on top of what is there; 1 GiB is from the start of a new process.
                has = int(Path("/proc/self/statm").read_text().split()[5])
                more = most if most == 1024 * MIB else has * resource.getpagesize() + most
                resource.setrlimit(resource.RLIMIT_DATA, (more, more))

            line = place.lines(folder / "out")[name]
            if most == 1024 * MIB and name in large:
                line = [*large[name].split(), "--out", str(folder / "out")]
            run = _cold if most == 1024 * MIB else place.run
            code, said = run(line, limit)
            findings.judge(f"memory {most // MIB} {name}", code, said, folder)
            print(f"  memory {most // MIB} {name}: code {code}: {said.strip()[-160:]!r}")
            shutil.rmtree(folder)


def two(place: Place, findings: Findings) -> None:
    """Two processes at once in one folder: one writes it, and the other says so or agrees."""
    for name in OUT:
        for delay in (0.0, 0.05, 0.4):
            folder = place.folder / f"two-{name}-{delay}"
            folder.mkdir()
            logs = [folder.parent / f"{folder.name}.{i}.log" for i in (1, 2)]
            pids = []
            for log in logs:
                line = place.lines(folder / "out")[name]
                pids.append(start(line, log=log, cache=place.folder / "cache"))
                time.sleep(delay)
            codes = [ended(pid) for pid in pids]
            for code, log in zip(codes, logs, strict=True):
                said = log.read_text(encoding="utf-8", errors="replace")
                findings.judge(f"two {name} {delay}", code, said, folder)
            if 0 not in codes or (name in ("evaluate", "export") and codes.count(0) != 1):
                findings.problems.append(f"two {name} {delay}: codes {codes}")
            COMMANDS[name].content(folder / "out")


def paths(place: Place, findings: Findings) -> None:
    """Names with all kinds of characters, and long ones, down to a path of 4096 bytes."""
    room = place.folder / "paths"
    room.mkdir()
    good = [
        "ünïcødé 名前 🎉",
        " leading and trailing ",
        "a'b\"c`d$(e)",
        "-dash",
        "%s{x}[red]",
        "é" * 110,
    ]
    bad = ["n" * 255, "é" * 127, "/".join(["p" * 200] * 25), "new\nline\x1b[31m"]
    for number, text in enumerate([*good, *bad]):
        for name in (*OUT, "show", "compare", "leaderboard"):
            folder = room / f"{number}-{name}"
            folder.mkdir()
            code, said = place.run(place.lines(folder / text)[name])
            findings.judge(f"path {text[:20]!r} {name}", code, said, folder)
            if code and text in good:
                findings.problems.append(f"path {text[:20]!r} {name}: code {code}: {said[-300:]}")
            shutil.rmtree(folder)


def device(place: Place, findings: Findings) -> None:
    """A GPU that is not there."""
    for name in ("train", "evaluate", "sweep"):
        folder = place.folder / f"device-{name}"
        folder.mkdir()
        line = [word for word in COMMANDS[name].arguments if word not in ("--device", "cpu")]
        line += ["--device", "cuda", "--out", str(folder / "out")]
        code, said = place.run(line)
        findings.judge(f"device {name}", code, said, folder)
        if code != 2:
            findings.problems.append(f"device {name}: code {code}: {said}")


def _cold(
    arguments: list[str], before: Callable[[], None] | None = None, **changed: str | None
) -> tuple[int, str]:
    environment = {**os.environ, **{k: v for k, v in changed.items() if v is not None}}
    for name in (name for name, value in changed.items() if value is None):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-c", "from patchbench.cli import main; main()", *arguments],
        capture_output=True,
        env=environment,
        preexec_fn=before,
        timeout=300,
    )
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


def _without_network() -> None:
    clone_newnet = 0x40000000
    if ctypes.CDLL(None, use_errno=True).unshare(clone_newnet):
        raise OSError(ctypes.get_errno(), "unshare")


def network(place: Place, findings: Findings) -> None:
    """No network at all: what is bundled runs, what is not is refused at once."""
    empty = str(place.folder / "hf")
    online = {"HF_HUB_OFFLINE": None, "HF_HOME": empty, "WANDB_MODE": None}
    for name in OUT:
        folder = place.folder / f"network-{name}"
        folder.mkdir()
        code, said = _cold(place.lines(folder / "out")[name], _without_network, **online)
        findings.judge(f"network {name}", code, said, folder)
        if code:
            findings.problems.append(f"network {name}: code {code}: {said}")
    hub = ["--task", "ar/tiny", "--out", str(place.folder / "hub")]
    for line in (
        ["evaluate", "--model", "EleutherAI/pythia-70m", *hub],
        ["train", "--init-from", "EleutherAI/pythia-70m", "--steps", "2", *hub],
        ["tasks", "export", "ar/tiny", "--n", "4", "--push-to-hub", "nobody/nothing"],
    ):
        began = time.perf_counter()
        code, said = _cold(line, _without_network, **online)
        took = time.perf_counter() - began
        findings.judge(f"network {line[:3]}", code, said, folder)
        print(f"  {line[0]} without a network: code {code} in {took:.0f} s")
        if code != 2:
            findings.problems.append(f"network {line}: code {code}: {said}")


def locale(place: Place, findings: Findings) -> None:
    """The plain C locale, in which Python takes everything for ASCII."""
    plain = {"LC_ALL": "C", "LANG": None, "PYTHONIOENCODING": "ascii"}
    ascii_only = {**plain, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    for kind, changed in (("C", plain), ("ascii", ascii_only)):
        for text in ("out", "ünïcødé 🎉"):
            folder = place.folder / f"locale-{kind}-{len(text)}"
            folder.mkdir()
            for name, line in place.lines(folder / text).items():
                lone = [
                    word.replace(str(folder / text), str(folder / name / text)) for word in line
                ]
                (folder / name).mkdir()
                code, said = _cold(lone, **changed)
                findings.judge(f"locale {kind} {text} {name}", code, said, folder)
                # Bytes that are no text in this locale are refused as names.
                refused = kind == "ascii" and not text.isascii()
                if code != (2 if refused else 0):
                    findings.problems.append(f"locale {kind} {text} {name}: {code}: {said[-300:]}")


CONDITIONS = {
    condition.__name__: condition
    for condition in (full, limited, readonly, memory, two, paths, device, network, locale)
}


def main() -> int:
    """Try the conditions, and print what was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "conditions", nargs="*", default=list(CONDITIONS), help=", ".join(CONDITIONS)
    )
    parser.add_argument("--lines", action="store_true", help="print what was said")
    asked = parser.parse_args()
    problems = []
    folder = Path(tempfile.mkdtemp(prefix="conditions-"))
    folder.chmod(0o777)
    finished = folder / "finished"
    finished.mkdir()
    place = Place(folder, finished)
    for name in ("train", "evaluate", "sweep", "export", "show", "compare"):
        told = folder / "modules"
        line = (
            [*COMMANDS[name].arguments, "--out", str(finished / name)]
            if name in OUT
            else place.lines(folder / name)[name]
        )
        code, said = place.run(line, modules(told))
        assert code == 0, said
        import_all(told)
    for name in asked.conditions:
        began, findings = time.perf_counter(), Findings()
        CONDITIONS[name](place, findings)
        codes = ", ".join(f"code {code}: {n}" for code, n in sorted(findings.codes.items()))
        print(
            f"{name}: {findings.tried} commands ({codes}), {len(findings.problems)} problems "
            f"({time.perf_counter() - began:.0f} s)",
            flush=True,
        )
        for line in sorted(findings.lines) if asked.lines else ():
            print(f"    {line}")
        for problem in findings.problems:
            print("  !", problem.replace(str(folder), "…"))
        problems += findings.problems
    print(f"{len(problems)} problems")
    shutil.rmtree(folder, ignore_errors=True)
    return bool(problems)


if __name__ == "__main__":
    raise SystemExit(main())
