"""Two models and their comparison as runs in Weights & Biases: scalars, tables, figures, artifacts.

Recorded offline unless another mode is named, so that no login is needed:

    python examples/wandb_dashboard.py
    python examples/wandb_dashboard.py online      # after `wandb login`
"""

import sys

import patchbench as pb
from patchbench.comparing import compare
from patchbench.report.compare import print_compared
from patchbench.tracking import Tracking, log_results

# Only one of them has a short convolution to look into.
MODELS = {"ar-based": ["block_input"], "ar-mamba": ["block_input", "conv_output"]}
POSITIONS = ["key", "value", "value+1", "value+2", "query"]


def main(mode: str = "offline", n: int = 64, project: str = "patchbench-example") -> list[str]:
    """Evaluate the models, print how they compare, log all; print and return where each run is."""
    where = Tracking(project=project, mode=mode, tags=["example"])
    results = {
        name: pb.evaluate(
            f"patchbench/{name}", "ar/mini", n=n, components=components, positions=POSITIONS
        )
        for name, components in MODELS.items()
    }
    comparison = compare(results)
    print_compared(comparison)
    lines = log_results(results, where, comparison=comparison)
    print("\n".join(lines))
    return lines


if __name__ == "__main__":
    main(*sys.argv[1:2])
