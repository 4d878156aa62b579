"""The file `result.json` of a saved Result, read with care: whoever reads it relies on its parts.

Use:

    content = read_json(Path("runs/x"))          # config, provenance, summary, rows
    beside(content, Path("runs/x"))              # ["untrained"]
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from patchbench.common import UserError, parse_json

SCHEMA = "patchbench/result"
VERSION = 1
JSON_FILE = "result.json"
# Folders in a Result's own, of what it is read against.
DEV, UNTRAINED = "dev", "untrained"


def read_json(directory: Path) -> dict[str, Any]:
    """Return what `result.json` in a folder says, with everything that readers rely on.

    Raises:
        UserError: the folder is no Result, or the file is damaged, or of another version.
    """
    path = directory / JSON_FILE
    try:
        if not directory.is_dir():
            raise UserError(f"{directory} is not a folder", "name the folder of a Result")
        if not path.is_file():
            raise UserError(f"{directory} is not a Result", f"it has no {JSON_FILE}")
        content = parse_json(path.read_text(encoding="utf-8"))
    except UserError:
        raise
    except (ValueError, OSError) as error:
        raise UserError(f"{path} is damaged ({error})", "run the evaluation again") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise UserError(f"{path} is not a Result", f'it lacks "schema": "{SCHEMA}"')
    version = content.get("version")
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        remedy = "update patchbench" if newer else "run the evaluation again"
        raise UserError(f"{path} has version {version}, this patchbench reads {VERSION}", remedy)
    from patchbench.result_schema import check  # pydantic is imported where a Result is read

    if problem := check(content):
        raise UserError(
            f"{path} is damaged, or of an earlier patchbench ({problem})",
            "run the evaluation again",
        )
    return content


def beside(content: Mapping[str, Any], directory: Path) -> list[str]:
    """Return the names of the Results in the folder of another.

    Raises:
        UserError: they are none that there can be.
    """
    names = content.get("beside", [])
    if not isinstance(names, list) or any(name not in (DEV, UNTRAINED) for name in names):
        raise UserError(
            f"{directory / JSON_FILE} is damaged (beside: {str(names)[:40]})",
            "run the evaluation again",
        )
    return names
