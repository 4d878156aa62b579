"""The command `patchbench doctor`: can this environment run patchbench, and what can be used here?

Use:

    patchbench doctor --json
"""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from patchbench.cli_options import Json, calm_libraries

if TYPE_CHECKING:
    from patchbench.doctor import Report


def doctor(as_json: Json = False) -> None:
    """Check versions, devices, kernels, plugins and folders, and say what to do about each fault.

    The exit code is 0 where patchbench can be used, and 1 where something is broken.
    """
    calm_libraries()
    from patchbench.doctor import examine
    from patchbench.report import terminal

    with terminal.spinner("looking", quiet=as_json):
        report = examine()
    if as_json:
        typer.echo(json.dumps(asdict(report) | {"usable": report.usable}, indent=2))
    else:
        _print(report)
    if not report.usable:
        raise typer.Exit(1)


def _print(report: "Report") -> None:
    from patchbench.report import terminal

    system = report.system
    terminal.print_line(
        f"patchbench {system['patchbench']}, Python {system['python']}, {system['platform']}"
    )
    if report.devices:
        terminal.print_line(_devices(report.devices))
    kernels = [{name: row[name] for name in ("op", "runs", "why")} for row in report.kernels]
    folders = [
        {
            "for": row["for"],
            "folder": row["folder"],
            "written": row["error"] or "yes",
            "GiB free": row["free_gib"],
        }
        for row in report.folders
    ]
    plugins = [row | {"skipped": row["skipped"] or "no"} for row in report.plugins]
    for rows in (report.packages, kernels, plugins, folders):
        if rows:
            terminal.print_rows([{k: "–" if v is None else v for k, v in r.items()} for r in rows])
    for finding in report.findings:
        terminal.print_line(f"{finding.level}: {finding.what}: {finding.remedy}")
    broken = sum(finding.level == "problem" for finding in report.findings)
    terminal.print_line(f"{broken} broken" if broken else "nothing is broken")


def _devices(devices: dict[str, Any]) -> str:
    gpus = []
    for gpu in devices["gpus"]:
        free = "" if gpu["free_gib"] is None else f", {gpu['free_gib']} GiB free"
        memory = "" if gpu["memory_gib"] is None else f", {gpu['memory_gib']} GiB"
        gpus.append(f"{gpu['device']} ({gpu['name']}{memory}{free})")
    return (
        f"{devices['cores']} of {devices['cores_of_the_machine']} CPU cores can be used, "
        f"{devices['threads']} by PyTorch; {devices['memory_gib']} GiB of memory; "
        f"{', '.join(gpus) or 'no GPU'}"
    )
