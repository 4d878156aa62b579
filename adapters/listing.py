"""What there is: the architectures that can be built and the families that can be loaded.

Use:

    for info in list_models(): print(info.name, info.kind)
"""

from dataclasses import dataclass

from patchbench.adapters.bundled import bundled_models
from patchbench.adapters.families import FAMILIES
from patchbench.adapters.fla_models import FLA_TYPES
from patchbench.adapters.hook_map import HOOK_MAPS
from patchbench.adapters.mixers import MIXERS
from patchbench.adapters.presets import PRESETS


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """One line of the list.

    Attributes:
        kind: "bundled" (a trained model that comes with the package), "preset" (a named
            architecture of ours), "mixer" (a layer that architectures are built from) or "family"
            (models of other packages whose components are tabulated).
    """

    name: str
    kind: str
    description: str


def list_models() -> list[ModelInfo]:
    """Return bundled models, presets, mixers and families, plugins included."""
    found = [
        ModelInfo(name=model.name, kind="bundled", description=f"trained on {model.task['name']}")
        for model in bundled_models()
    ]
    for name, preset in PRESETS.items():
        layers = " + ".join(_layer(dict(layer)) for layer in preset.pattern)
        found.append(ModelInfo(name=name, kind="preset", description=layers))
    for name in MIXERS:
        if name not in PRESETS:
            found.append(ModelInfo(name=name, kind="mixer", description="a layer of a hybrid"))
    for name in sorted({*FAMILIES, *FLA_TYPES, *HOOK_MAPS} - {"mixer_lm"}):
        package = "transformers" if name in FAMILIES else "flash-linear-attention, on a GPU"
        origin = "registered" if name in HOOK_MAPS else package
        found.append(ModelInfo(name=name, kind="family", description=origin))
    return found


def _layer(layer: dict[str, object]) -> str:
    name = layer.pop("name")
    rest = ", ".join(f"{key} {value}" for key, value in layer.items())
    return f"{name} ({rest})" if rest else f"{name}"
