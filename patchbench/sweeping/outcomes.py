"""What a sweep came to: one line per run, and the seeds of each group together.

Use:

    swept = sweep(config, out=out, executor=executor)
    lines(swept)                         # [{"run": "mamba-w64-s0", "accuracy": {...}, ...}]
    pooled(swept)                        # {"mamba-w64": Pooled}
"""

from typing import TYPE_CHECKING, Any

from patchbench.pooling import Pooled, pool
from patchbench.training import Trained

if TYPE_CHECKING:
    from patchbench.sweeping import Swept


def lines(swept: "Swept") -> list[dict[str, Any]]:
    """Return one line per run that is finished or failed, ready for JSON."""
    found = []
    for run in swept.runs:
        line: dict[str, Any] = {"run": run.name, "group": run.group}
        if run.name in swept.failed:
            found.append({**line, "error": swept.failed[run.name]})
            continue
        trained = Trained.load(swept.folder.run(run.name))
        summary = trained.result.summary
        found.append(
            {
                **line,
                "error": None,
                "rate": trained.rate,
                "steps": trained.steps,
                "accuracy": summary["accuracy"],
                "floor": summary["floor"],
                "verdict": summary["verdict"]["label"],
                "skipped": run.name in swept.skipped,
            }
        )
    return found


def pooled(swept: "Swept") -> dict[str, Pooled]:
    """Return the finished runs of each group together, where there are several."""
    by_group: dict[str, list[str]] = {}
    for run in swept.runs:
        if run.name not in swept.failed:
            by_group.setdefault(run.group, []).append(run.name)
    return {
        group: pool({name: swept.result(name) for name in names})
        for group, names in by_group.items()
        if len(names) > 1
    }
