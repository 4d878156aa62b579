"""Ground floor: the few words the three rooms share. It imports nothing heavy and nothing above."""

from patchbench.common.errors import ControlError, UserError, near_names, printable
from patchbench.common.files import atomic_write, fresh_directory
from patchbench.common.json_text import parse_json
from patchbench.common.registry import Registry

__all__ = [
    "ControlError",
    "Registry",
    "UserError",
    "atomic_write",
    "fresh_directory",
    "near_names",
    "parse_json",
    "printable",
]
