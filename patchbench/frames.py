"""A Result for other tools: a data frame, a labelled array, or plain arrays of its Attribs.

Use:

    to_pandas(result)                 # one line for each site, corruption and direction
    to_xarray(result)["attrib"].sel(component="block_input", position="value")
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from patchbench.common import UserError
from patchbench.sites import grid_site
from patchbench.tracking_content import site_table

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from patchbench.results import Result

_DIMS = ("corruption", "direction", "component", "layer", "position")
_VALUES = ("attrib", "attrib_low", "attrib_high")
# The layer of what stands outside the blocks.
OUTSIDE = -1


def to_pandas(result: "Result") -> "pd.DataFrame":
    """Return a line for each site, corruption and direction, with Attrib and interval.

    Below the gate there are no effects, hence no lines: `result.rows.to_pandas()` has every
    measurement.
    """
    import pandas as pd

    header, rows = site_table(result)
    frame = pd.DataFrame(rows, columns=header)
    return frame.astype({"layer": "Int64"})


def to_arrays(result: "Result") -> dict[str, np.ndarray]:
    """Return the grid as arrays: NaN where nothing was measured.

    Returns:
        "attrib", "attrib_low" and "attrib_high", (corruption, direction, component, layer,
        position); and for each of these five its labels, layer −1 being outside the blocks. Sites
        patched together, and heads, have no place in a grid.
    """
    header, rows = site_table(result)
    lines = [dict(zip(header, row, strict=True)) for row in rows]
    lines = [line for line in lines if grid_site(line["site"]) is not None]
    for line in lines:
        line["layer"] = OUTSIDE if line["layer"] is None else line["layer"]
    labels: dict[str, list[Any]] = {
        dim: list(dict.fromkeys(li[dim] for li in lines)) for dim in _DIMS
    }
    labels["layer"].sort()
    shape = tuple(len(labels[dim]) for dim in _DIMS)
    found = {name: np.full(shape, np.nan) for name in _VALUES}
    for line in lines:
        place = tuple(labels[dim].index(line[dim]) for dim in _DIMS)
        for name in _VALUES:
            found[name][place] = np.nan if line[name] is None else line[name]
    return {**found, **{dim: np.array(values) for dim, values in labels.items()}}


def to_xarray(result: "Result") -> "xr.Dataset":
    """Return the arrays of `to_arrays`, labelled.

    Raises:
        UserError: xarray is not installed.
    """
    try:
        import xarray as xr
    except ImportError:
        raise UserError("xarray is not installed", "pip install xarray") from None
    arrays = to_arrays(result)
    return xr.Dataset(
        {name: (_DIMS, arrays[name]) for name in _VALUES},
        coords={dim: arrays[dim] for dim in _DIMS},
        attrs={"verdict": str(result.verdict), "accuracy": result.accuracy.value},
    )
