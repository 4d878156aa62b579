"""The nnsight engine: every intervention is a trace, every site an invoke of its own in it.

Use:

    engine = NnsightEngine()
    rows = engine.run(loaded, interventions, batch)

It also reaches values that no module takes or gives: a `HookPoint` whose `source` is set names an
operation inside the forward of its module, as nnsight's `.source` lists them.

nnsight 0.8 reads the source of a `with` body from disk, so each stands on lines of its own; a name
that exists before a trace keeps its old value, so values are handed over in a container; and it
leaves its own `forward` on every module, which is taken off again here.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from nnsight import NNsight
from torch import Tensor, nn

from patchbench.adapters.hook_map import HookPoint
from patchbench.adapters.hooking import input_hook, output_hook
from patchbench.common import UserError
from patchbench.engines.heads import head_part
from patchbench.engines.one_by_one import Budget, OneByOneEngine
from patchbench.sites import Site

try:
    from nnsight.intervention.interleaver import OutOfOrderError
except ImportError:  # installed against patchbench's bound, for the sake of another tool
    raise UserError(
        f"nnsight {version('nnsight')} is another engine than this one drives",
        "pip install 'nnsight>=0.8', or take --engine native",
    ) from None

if TYPE_CHECKING:
    from patchbench.adapters.loading import LoadedModel

# Logits before a patch may move by rounding alone, relative to their spread.
CAUSAL = 1e-2
# What nnsight puts into a module's own dictionary.
_LEFT = ("forward", "__nnsight__")


class NnsightEngine(OneByOneEngine):
    """See `OneByOneEngine`.

    Args:
        cache_bytes: see there.
        remote: as nnsight's `trace` takes it: True runs each trace at NDIF, by the hub id of the
            model; "local" sends it through the same serialisation and runs it here.
    """

    name = "nnsight"

    def __init__(self, *, cache_bytes: int = 2**30, remote: bool | str = False) -> None:
        super().__init__(cache_bytes=cache_bytes)
        self._remote = remote
        self._checked: set[HookPoint] = set()

    def _runner(self, loaded: "LoadedModel") -> "_Runner":
        return _Runner(loaded, self._checked, self._remote)

    def _using(self, loaded: "LoadedModel") -> AbstractContextManager[Any]:
        return _unwrapped_afterwards(loaded.model)


class _Runner:
    """See `patchbench.engines.one_by_one.Runner`."""

    def __init__(self, loaded: "LoadedModel", checked: set[HookPoint], remote: bool | str) -> None:
        self._hook_map, self._model = loaded.hook_map, loaded.model
        self._tokenizer, self._checked = loaded.tokenizer, checked
        # A bare NNsight would hand `remote` to the model.
        self._how = {"remote": remote} if remote else {}

    @cached_property
    def _wrapper(self) -> Any:
        if self._how:
            from nnsight.modeling.transformers import TransformersModel

            return TransformersModel(self._model, tokenizer=self._tokenizer)
        return NNsight(self._model)

    @cached_property
    def _envoys(self) -> dict[nn.Module, Any]:
        return {envoy._module: envoy for envoy in self._wrapper.modules()}

    def collect(
        self,
        inputs: dict[str, Any],
        points: Sequence[HookPoint],
        locations: Sequence[np.ndarray],
        budget: Budget,
    ) -> tuple[list[Tensor], Any]:
        values = [_Value(self._hook_map, self._model, self._envoys, point) for point in points]
        for value in values:
            if value.point.source is not None and value.point not in self._checked:
                self._check(inputs, value)
                self._checked.add(value.point)
        wrapper, how, box = self._wrapper, self._how, {}
        with _one_line_errors(), wrapper.trace(**how) as tracer:
            with tracer.invoke(**inputs):
                pass
            for number, value in enumerate(values):
                with tracer.invoke():
                    box[number] = value.read(locations[number], budget)
            with tracer.invoke():
                box["output"] = wrapper.output
        return [box[number] for number in range(len(values))], box["output"]

    def swap(
        self,
        inputs: dict[str, Any],
        sites: Sequence[Site],
        locations: Sequence[np.ndarray],
        values: Sequence[Tensor],
    ) -> Any:
        targets = [
            _Value(
                self._hook_map,
                self._model,
                self._envoys,
                self._hook_map.point(site.layer, site.component),
            )
            for site in sites
        ]
        wrapper, how, box = self._wrapper, self._how, {}
        with _one_line_errors(), wrapper.trace(**how) as tracer:
            with tracer.invoke(**inputs):
                pass
            for number, target in enumerate(targets):
                with tracer.invoke():
                    target.write(sites[number], locations[number], values[number])
            with tracer.invoke():
                box["output"] = wrapper.output
        return box["output"]

    def _check(self, inputs: dict[str, Any], value: "_Value") -> None:
        """Prove by running it that an operation is a place of its HookMap, as `probe` does.

        Raises:
            UserError: it runs more than once in a forward, nothing reads its value, or it is not
                (batch, time, features).
        """
        inputs = {name: given for name, given in inputs.items() if name != "logits_to_keep"}
        documents = tuple(inputs["input_ids"].shape)
        middle = documents[1] // 2
        wrapper, how, box = self._wrapper, self._how, {}

        def moved(hidden: Tensor) -> Tensor:
            box["shape"] = tuple(hidden.shape)
            change = torch.zeros_like(hidden)
            change[:, middle:] = 1 + hidden[:, middle:].abs()
            return hidden + change

        with warnings.catch_warnings():
            # That there is no second time is what is hoped for.
            warnings.simplefilter("ignore")
            with _one_line_errors(), wrapper.trace(**how) as tracer:
                with tracer.invoke(**inputs):
                    pass
                with tracer.invoke():
                    for _ in tracer.iter[1]:
                        value.apply(lambda hidden: box.update(again=hidden))
                with tracer.invoke():
                    box["plain"] = wrapper.output
        with _one_line_errors(), wrapper.trace(**how) as tracer:
            with tracer.invoke(**inputs):
                pass
            with tracer.invoke():
                value.apply(moved)
            with tracer.invoke():
                box["moved"] = wrapper.output
        change = (box["moved"].logits - box["plain"].logits).abs().float()
        problem = None
        if "again" in box:
            problem = "runs more than once in a forward"
        elif box["shape"][:2] != documents:
            problem = f"has shape {box['shape']} where (batch, time, …) is {documents}"
        elif not bool(change[:, middle:].any()):
            problem = "is not read by the model"
        elif float(change[:, :middle].max()) > CAUSAL * float(box["plain"].logits.float().std()):
            problem = "changes earlier positions: its second dimension is not time"
        if problem:
            raise UserError(
                f"{value.point.source} in {value.point.path} {problem}", "name another operation"
            )


class _Value:
    """The value of one place inside a trace."""

    def __init__(
        self, hook_map: Any, model: nn.Module, envoys: dict[nn.Module, Any], point: HookPoint
    ) -> None:
        self.point, self._hook_map = point, hook_map
        self._envoy = envoys[hook_map.module(model, point)]
        if point.source is None:
            return
        try:
            self._envoy = self._envoy.source
            for name in point.source.split("."):
                self._envoy = getattr(self._envoy, name)
        except AttributeError as error:
            raise UserError(
                f"{point.path} has no operation {point.source!r} ({str(error)[:200]}…)",
                "print(NNsight(model).get(path).source) lists them; they change with transformers",
            ) from None

    def apply(self, function: Callable[[Tensor], Tensor | None]) -> None:
        """Call a function with the (B, T, features) value; what it returns replaces the value."""

        def checked(hidden: Tensor) -> Tensor | None:
            if hidden.dim() != 3:
                raise UserError(
                    f"{self._name}: a tensor of shape {tuple(hidden.shape)}",
                    "(batch, time, features) is needed",
                )
            return function(hidden)

        module = self._envoy
        if self.point.io == "output":
            new = output_hook(checked)(module, module.output)
            if new is not None:
                module.output = new
        else:
            new = input_hook(checked)(module, *module.inputs)
            if new is not None:
                module.inputs = new

    def read(self, where: np.ndarray, budget: Budget) -> Tensor:
        """Return the activations at `where`, (B, positions); see `Runner.collect`."""
        found = []

        def take(hidden: Tensor) -> None:
            found.append(hidden[_index(hidden, where)])

        self.apply(take)
        return found[0] if budget.take(found[0].nbytes) else found[0].new_empty(0)

    def write(self, site: Site, where: np.ndarray, values: Tensor) -> None:
        """Replace the site's features at `where` by those in `values`."""

        def replaced(hidden: Tensor) -> Tensor:
            if values.shape[-1] != hidden.shape[-1]:
                raise UserError(
                    f"{self._name} has {hidden.shape[-1]} features, its source {values.shape[-1]}",
                    "take the source from a component of equal width",
                )
            part = head_part(self._hook_map, site, hidden.shape[-1])
            patched = hidden.clone()
            rows, columns = _index(hidden, where)
            patched[rows, columns, part] = values[..., part].to(hidden.dtype)
            return patched

        self.apply(replaced)

    @property
    def _name(self) -> str:
        inside = f" of {self.point.source}" if self.point.source else ""
        return f"{self.point.path}.{self.point.io}{inside}"


def _index(hidden: Tensor, where: np.ndarray) -> tuple[Tensor, Tensor]:
    columns = torch.as_tensor(where, device=hidden.device)
    return torch.arange(len(hidden), device=hidden.device)[:, None], columns


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Turn nnsight's word for a place that never came into ours."""
    try:
        yield
    except OutOfOrderError as error:
        raise UserError(
            f"a site did not fire ({error})",
            "this model computes it elsewhere: choose another component",
        ) from None


@contextmanager
def _unwrapped_afterwards(model: nn.Module) -> Iterator[None]:
    """Take nnsight's `forward` off every module that did not have one before."""
    before = {module: dict(vars(module)) for module in model.modules()}
    try:
        yield
    finally:
        for module, attributes in before.items():
            if _LEFT[1] in attributes:  # the user traces this model, too
                continue
            for name in _LEFT:
                if name in attributes:
                    module.__dict__[name] = attributes[name]
                else:
                    module.__dict__.pop(name, None)
