"""A task as files: parquet per split and a card, readable with `datasets.load_dataset(folder)`.

Use:

    export_task(load_task("ar"), "ar-data", n={"train": 10_000})
    push_to_hub(load_task("ar"), "me/associative-recall")
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from patchbench.common import UserError, fresh_directory, near_names
from patchbench.tasks.base import SPLITS, Task
from patchbench.tasks.builder import quietly
from patchbench.tasks.card import card

Rows = int | Mapping[str, int] | None


def export_task(
    task: Task,
    out: str | Path,
    *,
    overwrite: bool = False,
    splits: Sequence[str] = tuple(SPLITS),
    n: Rows = None,
) -> Path:
    """Write `task` to a folder, which appears only when it is complete.

    Args:
        task: what to write.
        out: the folder.
        overwrite: replace an existing folder.
        splits: which to write.
        n: rows of every split, or of the splits it names; by default the splits' own numbers.

    Returns:
        The folder.

    Raises:
        UserError: `out` exists or cannot be written, or a split or number of rows is impossible.
    """
    rows = n if isinstance(n, Mapping) else dict.fromkeys(splits, n)
    if not splits:
        raise UserError("no split to export", "name one or more of " + ", ".join(SPLITS))
    for split in rows:
        if split not in splits:
            raise UserError(f"unknown split {split!r}", near_names(split, splits))
    with fresh_directory(out, overwrite=overwrite) as folder, quietly():
        datasets = {split: task.dataset(split, rows.get(split)) for split in splits}
        for split, dataset in datasets.items():
            dataset.to_parquet(str(folder / f"{split}.parquet"))
        (folder / "README.md").write_text(card(task, datasets), encoding="utf-8")
    return Path(out)


def push_to_hub(
    task: Task,
    repo: str,
    *,
    private: bool = False,
    splits: Sequence[str] = tuple(SPLITS),
    n: Rows = None,
) -> str:
    """Export `task` and upload it to a dataset repository of the Hugging Face hub.

    Returns:
        The address of the repository.

    Raises:
        UserError: the hub cannot be reached or refuses.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    with tempfile.TemporaryDirectory() as parent:
        folder = export_task(task, Path(parent) / "export", splits=splits, n=n)
        try:
            url = api.create_repo(repo, repo_type="dataset", private=private, exist_ok=True)
            api.upload_folder(repo_id=repo, repo_type="dataset", folder_path=folder)
        except Exception as error:  # the hub client's, or those of whichever HTTP library it uses
            cause = (str(error).splitlines() or [""])[0]
            raise UserError(
                f"{repo} cannot be uploaded ({type(error).__name__}: {cause})",
                "log in with `hf auth login`, check the name and the network",
            ) from error
    return str(url)
