"""What is to be said where numbers differ from the paper's, by scale; `page.py` prints it.

Use:

    for remark in REMARKS["mini"]: ...
"""

from collections.abc import Mapping

REMARKS: Mapping[str, tuple[str, ...]] = {}
