"""The requests for recorded results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field

from tunebench.studies.request.completion import SAMPLERS, among
from tunebench.studies.request.options import LEGAL, Text
from tunebench.studies.request.text import LARGEST, MOST, read_moment, read_tunables
from tunebench.tuner.build import CompilerName
from tunebench.tuner.configuration import Value
from tunebench.tuner.problem import Accuracy
from tunebench.tuner.result import TrialStatus

NAME = Text(metavar="NAME")
TIME = Text(metavar="TIME", read=read_moment)


class _OfDeviceRequest(BaseModel):
    model_config = LEGAL

    device: Annotated[str | None, NAME] = None
    """Only the device of this name, such as 'NVIDIA H200'. Default: every device."""


class ResultsRequest(_OfDeviceRequest):
    """Conditions that results meet, each of which holds."""

    dtype: Annotated[str | None, Text(metavar="DTYPE")] = None
    """Only problems of this dtype, such as float32. Default: every dtype."""
    accuracy: Annotated[Accuracy | None, NAME] = None
    """Only results for tolerance, or only for eager. Default: both."""
    architecture: Annotated[str | None, NAME] = None
    """Only devices of this architecture, such as sm_90. Default: every architecture."""
    compiler: Annotated[CompilerName | None, NAME] = None
    """Only results of this compiler: nvrtc, inline, cpu or triton. Default: every compiler."""


class BestRequest(ResultsRequest):
    """The options of `best`."""

    any_source: bool = False
    """Also results of earlier versions of a kernel's source. Default: not."""


class TrialsRequest(ResultsRequest):
    """The options of `trials`."""

    status: Annotated[Sequence[TrialStatus] | None, Text(metavar="STATUS")] = None
    """Only trials that ended so: correct, pruned, constraints, compile, runtime, correctness or timeout; repeatable.
    Default: all."""
    sampler: Annotated[str | None, Text(metavar="NAME", complete=among(SAMPLERS))] = None
    """Only studies of this sampler. Default: every sampler."""
    study: Annotated[int | None, Field(ge=1, le=LARGEST)] = None
    """Only this study's trials. Default: every study."""
    tunables: Annotated[Mapping[str, Value | Sequence[Value]], Text("--tunable", "NAME=V1,V2,...", read_tunables)] = {}
    """Only configurations with one of these values; repeatable for other tunables. Default: all."""
    since: Annotated[datetime | None, TIME] = None
    """Recorded then or later: ISO 8601, UTC where no zone is named. Default: all."""
    until: Annotated[datetime | None, TIME] = None
    """Recorded before then: as for --since. Default: all."""
    fastest: bool = False
    """List correct trials, the fastest first. Default: all, the newest first."""
    limit: Annotated[int | None, Field(ge=1, le=MOST)] = None
    """At most this many trials. Default: 50 in a table, all with --json or --csv."""


class ExplainRequest(BaseModel):
    """The options of `explain`."""

    model_config = LEGAL

    recorded: bool = False
    """Only what is recorded: run nothing. Default: read a GPU's counters where none are recorded."""
    again: bool = False
    """Read the counters again. Default: those that are recorded."""


class MissesRequest(_OfDeviceRequest):
    """The options of `misses`."""

    tuned: Annotated[bool, Text("--all")] = False
    """Also what was tuned since, or was met by earlier versions. Default: not."""


def conditions_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return given options of `TrialsRequest` as what `db.queries.trials` takes."""
    from tunebench.db.queries.trials import Order

    names = {name: value for name, value in given.items() if name not in ("study", "fastest")}
    return {**names, "study_id": given.get("study"), "order": Order.FASTEST if given.get("fastest") else Order.NEWEST}
