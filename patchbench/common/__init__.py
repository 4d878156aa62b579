"""Ground floor: the few words the three rooms share. It imports nothing heavy and nothing above."""

from patchbench.common.errors import ControlError, UserError, near_names, printable
from patchbench.common.files import atomic_write, fresh_directory
from patchbench.common.json_text import parse_json
from patchbench.common.registry import PluginWarning, Registry

__all__ = [
    "ControlError",
    "PluginWarning",
    "Registry",
    "UserError",
    "atomic_write",
    "fresh_directory",
    "near_names",
    "parse_json",
    "printable",
]
