"""What stands in `result.json`, as types that are checked when a Result is read.

Whoever shows, compares, pools or logs a Result relies on it. More may stand there than is named.

Use:

    check({"config": …, "provenance": …, "summary": …, "rows": …})    # "summary.n: …", or None
"""

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from patchbench.common import UserError
from patchbench.sites import Position, single_site
from patchbench.statistics import MOST_RESAMPLES

# Numbers are numbers and words are words; nothing is turned into another.
_STRICT = with_config(ConfigDict(strict=True, extra="allow"))
Count = Annotated[int, Field(ge=0, le=2**53)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


def _read_by(parse: Callable[[str], object]) -> AfterValidator:
    """Return a check that a text is one that `parse` takes."""

    def check_text(text: str) -> str:
        try:
            parse(text)
        except UserError as error:
            raise ValueError(str(error)) from None
        return text

    return AfterValidator(check_text)


PositionText = Annotated[str, _read_by(Position.parse)]
# Single sites, and several at once.
SiteText = Annotated[str, _read_by(single_site)]


@_STRICT
class EstimateJson(TypedDict):
    """A value with its 95 % interval, of `n` examples; null is what is not a finite number."""

    value: Finite | None
    low: Finite | None
    high: Finite | None
    n: Count


@_STRICT
class ShareJson(TypedDict):
    """A proportion, whose interval is always there; its value is null where there are none."""

    value: Finite | None
    low: Finite
    high: Finite
    n: Count


@_STRICT
class VerdictJson(TypedDict):
    """A verdict: see `patchbench.mechanism.Verdict`."""

    label: str | None
    sentence: str
    corruption: str
    direction: str
    metric: str
    generalises: str
    appears: EstimateJson | None
    arrives: EstimateJson | None
    sites: dict[SiteText, EstimateJson]


@_STRICT
class EffectJson(TypedDict):
    """Attrib of a site by each metric, and whether it is told from 0."""

    site: SiteText
    attrib: EstimateJson
    attrib_logp: EstimateJson | None
    attrib_logit_diff: EstimateJson | None
    p_value: Finite
    q_value: Finite


@_STRICT
class SiteJson(TypedDict):
    """Attrib of a site in one stratum."""

    site: SiteText
    attrib: EstimateJson


@_STRICT
class ControlJson(TypedDict):
    """A control that must hold: what an intervention that changes nothing changed."""

    control: str
    site: SiteText
    error: Finite
    tolerance: Finite
    passed: bool


@_STRICT
class SoftControlJson(TypedDict):
    """A control that should show no effect."""

    control: str
    site: SiteText
    attrib: EstimateJson


@_STRICT
class StratumJson(TypedDict):
    """The effects in one stratum of a run."""

    stratum: str
    n: Count
    gap: EstimateJson
    reasons: list[str]
    effects: list[SiteJson]


@_STRICT
class AccuracyJson(TypedDict):
    """The accuracy in one stratum."""

    stratum: str
    accuracy: EstimateJson


@_STRICT
class DistanceJson(TypedDict):
    """The accuracy where key and query are so many tokens apart."""

    accuracy: EstimateJson


@_STRICT
class RunJson(TypedDict):
    """One corruption in one direction."""

    corruption: str
    direction: Literal["denoise", "noise"]
    n: Count
    p_clean: EstimateJson
    p_corrupted: EstimateJson
    gap: EstimateJson
    reasons: list[str]
    primary: Literal["p", "logit_diff"]
    family: Count
    false_discoveries: Finite
    controls: list[ControlJson]
    effects: list[EffectJson]
    strata: list[StratumJson]
    soft_controls: list[SoftControlJson]
    verdict: VerdictJson


@_STRICT
class ModelJson(TypedDict):
    """The model that was measured."""

    name: str
    num_parameters: Count
    dtype: str
    device: str
    num_layers: NotRequired[Count]
    components: NotRequired[list[str]]


@_STRICT
class TaskJson(TypedDict):
    """The task, as the summary names it."""

    name: str
    seed: int
    split: str | None
    template: str | None
    shots: Count
    floor: str


@_STRICT
class SummaryJson(TypedDict):
    """What the rows say: see `patchbench.summary`."""

    model: ModelJson
    task: TaskJson
    n: Count
    accuracy: ShareJson
    accuracy_in_context: ShareJson
    accuracy_beyond_heuristics: ShareJson
    accuracy_by_distance: list[DistanceJson]
    strata: list[AccuracyJson]
    floor: Finite
    runs: Annotated[list[RunJson], Field(min_length=1)]
    verdict: VerdictJson


@_STRICT
class ConfigJson(TypedDict):
    """The settings of the evaluation that readers ask for."""

    components: list[str]
    corruptions: NotRequired[list[str]]
    n: NotRequired[Count]
    split: NotRequired[str | None]
    directions: NotRequired[list[str]]
    positions: NotRequired[list[PositionText] | None]
    template: NotRequired[str | None]
    seed: NotRequired[Count]
    resamples: NotRequired[Annotated[int, Field(ge=1, le=MOST_RESAMPLES)]]


@_STRICT
class SelfcheckJson(TypedDict):
    """How far the engine is from the reference."""

    engine: str
    reference: str
    difference: Finite
    tolerance: Finite
    rows: Count


@_STRICT
class EngineJson(TypedDict):
    """What patched."""

    name: str
    selfcheck: NotRequired[SelfcheckJson | None]


@_STRICT
class ExampleJson(TypedDict):
    """One example, as it was asked."""

    tokens: list[str]
    roles: dict[str, int]
    corruptions: dict[str, list[str]]


@_STRICT
class DatasetJson(TypedDict):
    """The rows that were asked for."""

    rows: Count
    sha256: str


@_STRICT
class TaskOriginJson(TypedDict):
    """The task, whole."""

    name: str
    seed: int
    config: dict[str, Any]
    floors: dict[str, Finite]
    floor: str


@_STRICT
class ProvenanceJson(TypedDict):
    """Where the numbers are from."""

    model: ModelJson
    task: TaskOriginJson
    dataset: DatasetJson
    notes: list[str]
    packages: NotRequired[dict[str, str | None]]
    patchbench: NotRequired[str]
    created: NotRequired[str]
    command: NotRequired[str | None]
    template: NotRequired[str | None]
    example: NotRequired[ExampleJson | None]
    engine: NotRequired[EngineJson]


@_STRICT
class RowsJson(TypedDict):
    """The table beside it."""

    sha256: str


@_STRICT
class ResultJson(TypedDict):
    """The whole file."""

    config: ConfigJson
    provenance: ProvenanceJson
    summary: SummaryJson
    rows: RowsJson


@cache
def _checker() -> TypeAdapter[ResultJson]:
    return TypeAdapter(ResultJson)


def check(content: Any) -> str | None:
    """Return where a parsed file is not as it must be, and why; None if it is."""
    try:
        _checker().validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where}: {first['msg'][:1].lower()}{first['msg'][1:]}"
    return None
