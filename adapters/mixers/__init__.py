"""The mixers by name: what a layer may use to move information over time.

Use:

    from patchbench.adapters.mixers import MIXERS

    MIXERS["mamba"]                                    # the class, imported on first use

    @MIXERS.register("my_mixer")                       # or an entry point in "patchbench.mixers"
    class MyMixer(Mixer): ...
"""

from patchbench.adapters.mixers.base import Mixer, MixerOptions, MixerState
from patchbench.common import Registry


def _refuse(target: object) -> str | None:
    """Return what keeps an object from being a mixer."""
    if not (isinstance(target, type) and issubclass(target, Mixer)):
        return "it is no subclass of patchbench.adapters.mixers.Mixer"
    options = getattr(target, "Options", None)
    if not (isinstance(options, type) and issubclass(options, MixerOptions)):
        return "its Options are no subclass of MixerOptions"
    return None


MIXERS: Registry[type[Mixer]] = Registry("mixer", entry_points="patchbench.mixers", refuse=_refuse)

for _name, _target in {
    "attention": "attention:Attention",
    "linear_attention": "linear_attention:LinearAttention",
    "base_conv": "base_conv:BaseConv",
    "hyena": "hyena:Hyena",
    "h3": "h3:H3",
    "mamba": "mamba:Mamba",
    "mamba2": "mamba2:Mamba2",
    "delta_net": "delta_net:DeltaNet",
    "gated_delta_net": "gated_delta_net:GatedDeltaNet",
}.items():
    MIXERS.add(_name, f"patchbench.adapters.mixers.{_target}")

__all__ = ["MIXERS", "Mixer", "MixerOptions", "MixerState"]
