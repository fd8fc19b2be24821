"""The neutral record: one trial with everything that its result depends on, whatever form it is kept in.

Every way into and out of a database (a file format, a merge) goes through `Entry`, whose fields have the names of the
tables' columns; a test holds the two together. Entries are data from anywhere: `entry_of` and `entry_of_json` refuse
every value that the tables' constraints would refuse, and say which.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar, cast, get_type_hints

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    TypeAdapter,
)
from pydantic import ValidationError as PydanticError
from pydantic.types import Strict, StringConstraints
from pydantic_core import CoreSchema, core_schema

from tunebench.db.entries.strict_json import EntryError, parse_json
from tunebench.tuner.build import CompilerName, KernelFigures
from tunebench.tuner.device import DeviceKind
from tunebench.tuner.environment import Environment
from tunebench.tuner.result import CacheRegime, Stage, TrialStatus, late_message

_LARGEST = 2**63 - 1
# Room above it, so that the next trial of the same study has a number too.
_LARGEST_NUMBER = 10**9
_LONGEST_NAME = 10_000
_LONGEST_TEXT = 32_000_000
_MOST_PARTS = 100_000
_NO_NUL = r"\A[^\x00]*\z"


def _figure_in(value: object) -> object:
    """JSON has no infinity, so it is written as text."""
    return {"Infinity": math.inf, "-Infinity": -math.inf}.get(value, value) if isinstance(value, str) else value


def _figure_out(value: float) -> float | str:
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


def _not_nan(value: float) -> float:
    if math.isnan(value):
        raise ValueError("NaN: leave the value out, or null")
    return value


def _fraction(value: object) -> object:
    if isinstance(value, float):
        return value
    raise ValueError("a fraction is expected")


def _in_utc(value: datetime) -> datetime:
    """UTC, so that equal moments are equal text."""
    if value.tzinfo is None:
        raise ValueError(f"{value} has no time zone")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{value} is outside the calendar in UTC") from None


Name = Annotated[str, Strict(), StringConstraints(max_length=_LONGEST_NAME, pattern=_NO_NUL)]
LongText = Annotated[str, Strict(), StringConstraints(max_length=_LONGEST_TEXT, pattern=_NO_NUL)]
Whole = Annotated[int, Strict(), Field(ge=-_LARGEST, le=_LARGEST)]
Count = Annotated[int, Strict(), Field(ge=0, le=_LARGEST)]
Positive = Annotated[int, Strict(), Field(gt=0, le=_LARGEST)]
Truth = Annotated[bool, Strict()]
Time = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Figure = Annotated[
    float,
    Strict(),
    BeforeValidator(_figure_in),
    AfterValidator(_not_nan),
    PlainSerializer(_figure_out, when_used="json"),
]
Moment = Annotated[datetime, AfterValidator(_in_utc)]
# A whole number too large for `Whole` does not become a fraction.
TunableValue = Truth | Whole | Annotated[Finite, BeforeValidator(_fraction)] | Name
Samples = Annotated[tuple[Time, ...], Field(min_length=1)]


@dataclass(frozen=True)
class _Part:
    """The base of all parts: an unknown field is refused, since it would be lost."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class Origin(_Part):
    """The database that a study began in; part of the study's identity.

    Attributes:
        uid: 32 hexadecimal digits.
    """

    uid: Annotated[str, Strict(), StringConstraints(pattern=r"\A[0-9a-f]{32}\z")]
    created_at: Moment


@dataclass(frozen=True)
class DeviceFacts(_Part):
    """A device and its limits, in the words of `tunebench.tuner.device.Device`."""

    kind: DeviceKind
    name: Name
    architecture: Name
    uuid: Name
    multiprocessors: Positive
    memory_bytes: Positive
    l2_bytes: Whole
    max_threads_per_block: Whole
    max_shared_bytes: Whole
    max_threads_per_multiprocessor: Whole
    warp_size: Positive


@dataclass(frozen=True)
class _CheckedValue:
    """Has a dataclass of the engine checked like the parts here: known attributes only, each of a legal type."""

    text: Any = Name

    def __get_pydantic_core_schema__(self, kind: type[Any], handler: GetCoreSchemaHandler) -> CoreSchema:
        legal = {str: self.text, str | None: self.text | None, int | None: Count | None, bool: Truth, float: Finite}
        hints, checked = get_type_hints(kind), []
        for one in fields(kind):
            schema = handler.generate_schema(legal[hints[one.name]])
            if one.default is not MISSING:
                schema = core_schema.with_default_schema(schema, default=one.default)
            checked.append(core_schema.dataclass_field(one.name, schema))
        arguments = core_schema.dataclass_args_schema(kind.__name__, checked, extra_behavior="forbid")
        return core_schema.dataclass_schema(kind, arguments, list(hints))


EnvironmentFacts = Annotated[Environment, _CheckedValue()]
EntryPointFacts = Annotated[KernelFigures, _CheckedValue()]
StageFacts = Annotated[Stage, _CheckedValue(LongText)]


@dataclass(frozen=True)
class ProblemFacts(_Part):
    """A problem, its axes in the kernel's order."""

    dtype: Name
    axes: Annotated[dict[Name, Count], Field(max_length=_MOST_PARTS)]
    options: Annotated[dict[Name, Name], Field(max_length=_MOST_PARTS)]


@dataclass(frozen=True)
class WarmStartFacts(_Part):
    """A configuration that a study began with because of an earlier result, and where that is from, in words."""

    configuration: Annotated[dict[Name, TunableValue], Field(max_length=_MOST_PARTS)]
    origin: Name


@dataclass(frozen=True)
class StudyFacts(_Part):
    """A study: all fields but `begun_at` and `warm_starts` are its identity."""

    origin: Origin
    kernel: Annotated[Name, Field(min_length=1)]
    source_digest: Name
    space_digest: Name
    problem: ProblemFacts
    device: DeviceFacts
    compiler: CompilerName
    sampler: Name
    seed: Whole
    begun_at: Moment
    warm_starts: Annotated[tuple[WarmStartFacts, ...], Field(max_length=_MOST_PARTS)] | None = field(default=None)


STUDY_WORDS = ("kernel", "source_digest", "space_digest", "compiler", "sampler", "seed")
"""Fields of a study's identity that are single values."""


@dataclass(frozen=True)
class BuildFacts(_Part):
    """A compiled variant without its binary.

    Attributes:
        figures: by entry point.
        seconds: what compiling took when it was made.
    """

    variant_digest: Name
    compiler: CompilerName
    compiler_version: Name
    code_sha256: Name
    code_bytes: Count
    log: LongText
    seconds: Seconds
    figures: Annotated[dict[Name, EntryPointFacts], Field(max_length=_MOST_PARTS)]


@dataclass(frozen=True)
class VerdictFacts(_Part):
    """The outcome of the correctness gate; every error figure is None where no output could be compared."""

    passed: Truth
    reason: LongText
    tolerance: Figure | None
    max_absolute: Figure | None
    max_relative: Figure | None
    relative_norm: Figure | None
    reference_max_relative: Figure | None
    reference_relative_norm: Figure | None
    first_wrong_index: Count | None
    untouched: Count | None
    stages: Annotated[tuple[StageFacts, ...], Field(max_length=_MOST_PARTS)]

    def __post_init__(self) -> None:
        if self.passed != (self.reason == ""):
            raise ValueError("a refusal has a reason and a pass has none")
        figures = (self.max_absolute, self.max_relative, self.relative_norm, self.first_wrong_index)
        references = (self.reference_max_relative, self.reference_relative_norm)
        if self.untouched is None and any(figure is not None for figure in figures + references):
            raise ValueError("error figures stand beside a number of untouched elements")


@dataclass(frozen=True, kw_only=True)
class _Conditions(_Part):
    """The state of the device while a time was taken; what was recorded before it was looked at has none."""

    control_ms: Time | None = None
    sm_clock_mhz: Count | None = None
    memory_clock_mhz: Count | None = None
    temperature_c: Whole | None = None
    throttle_reasons: Name | None = None
    foreign_processes: Count | None = None


@dataclass(frozen=True)
class MeasurementFacts(_Conditions):
    """A configuration's time: every sample in the order taken, their median and its interval, milliseconds."""

    median_ms: Time
    low_ms: Time
    high_ms: Time
    regime: CacheRegime
    clock: Name
    samples_ms: Samples

    def __post_init__(self) -> None:
        if not self.low_ms <= self.median_ms <= self.high_ms:
            raise ValueError("a median lies inside its interval")


@dataclass(frozen=True)
class ContenderFacts(_Part):
    """One contender's samples in a comparison, milliseconds."""

    median_ms: Time
    samples_ms: Samples


@dataclass(frozen=True)
class SpeedUpFacts(_Part):
    """How many times faster a comparison's best is than a baseline, with its interval."""

    ratio: Figure
    low: Figure
    high: Figure
    rounds: Positive
    confidence: Annotated[float, Strict(), Field(gt=0, lt=1)]

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.ratio <= self.high:
            raise ValueError("a speed-up lies inside its interval, above 0")


@dataclass(frozen=True)
class ComparisonFacts(_Conditions):
    """An interleaved comparison that the trial's configuration has won.

    Attributes:
        missing_baselines: those that were asked for and could not be timed, and why; None where there were none.
    """

    environment: EnvironmentFacts
    concluded_at: Moment
    contenders: Annotated[dict[Name, ContenderFacts], Field(max_length=_MOST_PARTS)]
    speed_ups: Annotated[dict[Name, SpeedUpFacts], Field(max_length=_MOST_PARTS)]
    missing_baselines: Annotated[dict[Name, LongText], Field(max_length=_MOST_PARTS)] | None = field(default=None)


@dataclass(frozen=True)
class LateRefusalFacts(_Part):
    """A stage of the gate that refused a trial after it was recorded as correct."""

    stage: Annotated[Name, Field(min_length=1)]
    seconds: Finite
    detail: Annotated[LongText, Field(min_length=1)]
    recorded_at: Moment


@dataclass(frozen=True)
class TrialFacts(_Part):
    """One configuration tried, as it was recorded.

    Attributes:
        number: in its study; None lets the database give the next one.
        seconds: what each phase took.
        late_refusal: takes a correct trial back, see `standing`.
    """

    number: Annotated[int, Strict(), Field(ge=0, le=_LARGEST_NUMBER)] | None
    configuration: Annotated[dict[Name, TunableValue], Field(max_length=_MOST_PARTS)]
    environment: EnvironmentFacts
    status: TrialStatus
    build: BuildFacts | None
    build_cached: Truth | None
    verdict: VerdictFacts | None
    measurement: MeasurementFacts | None
    recorded_at: Moment
    seconds: Annotated[dict[Name, Finite], Field(max_length=_MOST_PARTS)]
    message: LongText
    comparisons: tuple[ComparisonFacts, ...] = field(default=())
    late_refusal: LateRefusalFacts | None = field(default=None)

    def __post_init__(self) -> None:
        timed, refused = self.status.timed, self.status is TrialStatus.CORRECTNESS
        if timed != (self.measurement is not None):
            raise ValueError(f"a trial that ended as {self.status} {'needs a' if timed else 'has no'} measurement")
        if timed and self.verdict is None:
            raise ValueError(f"a trial that ended as {self.status} needs a verdict")
        if refused != (self.verdict is not None and not self.verdict.passed):
            raise ValueError("a trial is refused for correctness exactly when its verdict did not pass")
        if not timed and not self.message:
            raise ValueError(f"a trial that ended as {self.status} says why in its message")
        if (self.build is None) != (self.build_cached is None):
            raise ValueError("build_cached stands beside a build")
        if self.comparisons and not timed:
            raise ValueError(f"a trial that ended as {self.status} has won no comparison")
        if self.late_refusal is not None and self.status is not TrialStatus.CORRECT:
            raise ValueError(f"a trial that ended as {self.status} cannot be refused late")

    @property
    def standing(self) -> TrialFacts:
        """The trial as a format without late refusals has it: one that was refused late is a failure without a time."""
        late = self.late_refusal
        if late is None or self.verdict is None:
            return self
        stage = Stage(late.stage, False, late.seconds, late.detail)
        verdict = replace(self.verdict, passed=False, reason=late.detail, stages=(*self.verdict.stages, stage))
        return replace(
            self,
            status=TrialStatus.CORRECTNESS,
            verdict=verdict,
            measurement=None,
            message=late_message(late.stage, late.detail),
            comparisons=(),
            late_refusal=None,
        )


@dataclass(frozen=True)
class Entry(_Part):
    """One trial of a study; a study without trials is one entry without a trial."""

    study: StudyFacts
    trial: TrialFacts | None


_Checked = TypeVar("_Checked")


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def part_of(kind: type[_Checked], values: Mapping[str, Any]) -> _Checked:
    """A part of an entry from nested mappings by field name.

    Raises:
        EntryError: a value is missing, unknown, or of the wrong type or size.
    """
    try:
        part: _Checked = _adapter(cast(Hashable, kind)).validate_python(values)
    except PydanticError as error:
        raise EntryError(_first(error)) from None
    return part


def entry_of(values: Mapping[str, Any]) -> Entry:
    """The entry of nested mappings by field name.

    Raises:
        EntryError: a value is missing, unknown, or of the wrong type or size.
    """
    return part_of(Entry, values)


def entry_of_json(text: str | bytes) -> Entry:
    """The entry of one JSON object.

    Raises:
        EntryError: not JSON, a name stands twice in an object, or not an entry.
    """
    values = parse_json(text)
    if not isinstance(values, dict):
        raise EntryError("not a JSON object")
    return entry_of(values)


def json_of(entry: Entry) -> bytes:
    """The entry as one line of JSON without its end."""
    text: bytes = _adapter(Entry).dump_json(entry)
    return text


def values_of(entry: Entry) -> dict[str, Any]:
    """The entry as nested mappings and lists that JSON can say."""
    values: dict[str, Any] = _adapter(Entry).dump_python(entry, mode="json")
    return values


_SHARED: dict[type, set[str]] = {
    TrialFacts: {"number", "configuration", "environment", "build", "recorded_at", "comparisons"},
    ComparisonFacts: {"environment", "concluded_at"},
}


def document_of(part: BuildFacts | TrialFacts | ComparisonFacts | LateRefusalFacts) -> dict[str, Any]:
    """The part as its row's document: values that JSON can say, but for what the row refers to or has in columns."""
    kind: Any = type(part)
    document: dict[str, Any] = _adapter(kind).dump_python(part, mode="json", exclude=_SHARED.get(kind))
    return document


def _first(error: PydanticError) -> str:
    """The first error: its place, and what it is."""
    detail = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(f"{part!s:.40}" for part in detail["loc"])[:200]
    what = " ".join(detail["msg"].removeprefix("Value error, ").split())[:200]
    return f"{where}: {what}" if where else what
