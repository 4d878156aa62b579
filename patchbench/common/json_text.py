"""JSON that somebody else wrote: whatever is wrong with it is a `ValueError`.

Use:

    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error: ...
"""

import json
from typing import Any


def parse_json(text: str) -> Any:
    """Return the content of a text.

    Raises:
        ValueError: it is not JSON, has too large a number, or brackets nested by the thousand.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None
