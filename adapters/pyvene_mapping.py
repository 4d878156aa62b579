"""Makes a model class known to pyvene, whose two tables reject any other, even for path strings.

Use:

    register_with_pyvene(model)
"""

from torch import nn


def register_with_pyvene(model: nn.Module) -> None:
    """Add the class of `model` to pyvene's tables; components are given as paths, so empty."""
    import pyvene as pv

    for table in (pv.type_to_module_mapping, pv.type_to_dimension_mapping):
        table.setdefault(type(model), {})
