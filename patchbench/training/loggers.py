"""The loggers that a training reports to, checked before its first step.

Use:

    names = ready_loggers(["wandb"])      # refuses what is unknown, not installed or not logged in

What transformers would raise in the middle of building its Trainer is told here in one line.
"""

from collections.abc import Sequence

from patchbench.common import UserError, near_names
from patchbench.common.processes import is_main_process

_LOGIN_SECONDS = 30


def ready_loggers(names: Sequence[str]) -> list[str]:
    """Return the loggers to use: those named, all that are installed for "all", none for "none".

    Raises:
        UserError: one does not exist, is not installed, or is not logged in.
    """
    from transformers.integrations.integration_utils import (
        INTEGRATION_TO_CALLBACK,
        get_available_reporting_integrations,
    )

    wanted = list(dict.fromkeys(names))
    if wanted == ["none"]:
        return []
    if wanted == ["all"]:
        wanted = get_available_reporting_integrations()
    for name in wanted:
        if name not in INTEGRATION_TO_CALLBACK:
            raise UserError(
                f"unknown logger {name!r} (--report-to)",
                near_names(name, [*INTEGRATION_TO_CALLBACK, "all", "none"], limit=20),
            )
        try:
            INTEGRATION_TO_CALLBACK[name]()
        except Exception as error:  # RuntimeError for a missing package; its own for a broken one
            reason = " ".join(str(error).split())
            raise UserError(
                f"logger {name!r} cannot be used ({reason})",
                "install its package, or leave it out of --report-to",
            ) from error
    if "wandb" in wanted and is_main_process():
        _log_in_to_wandb()
    return wanted


def _log_in_to_wandb() -> None:
    import wandb

    try:
        wandb.login(verify=True, timeout=_LOGIN_SECONDS)  # does nothing where wandb is offline
    except wandb.Error as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise UserError(
            f"wandb cannot be used ({reason})",
            "run `wandb login`, or set WANDB_MODE=offline, or leave it out of --report-to",
        ) from error
