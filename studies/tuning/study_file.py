"""Study files: what to tune and for how long, in TOML; of one study, or of all combinations of what they name."""

from __future__ import annotations

import enum
import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from tunebench.kernels.runtime.registry import is_kernel_file
from tunebench.studies.request.completion import SAMPLERS, among, complete_kernel
from tunebench.studies.request.options import HOW_WRONG, LEGAL, Compiler, Device, Dtype, Settings, Sizes, Text, make
from tunebench.studies.request.text import (
    LARGEST,
    LONGEST,
    read_configurations,
    read_list,
    read_path,
    read_percent,
    read_tunables,
)
from tunebench.tuner.configuration import Value
from tunebench.tuner.errors import StudyFileError, UnknownNameError
from tunebench.tuner.files import path_named
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Accuracy, Objective

TABLES = "studies"
"""The key of a study file whose tables have keys of their own beside the file's."""

MOST_STUDIES = 10_000

_WHOLE = ("modes", "devices", "tunables", "start")
"""Keys with lists or tables of their own; a list of any other key's values is one study for each."""


class ExecutorName(enum.StrEnum):
    """Where configurations are evaluated."""

    LOCAL = "local"
    RAY = "ray"


Modes = Annotated[
    tuple[Annotated[Mode, Field(strict=False)], ...] | None,
    Field(
        strict=False, min_length=1, description="eval, train or frozen; repeatable. Default: every mode of the kernel."
    ),
    Text("--mode", "MODE"),
]


class PlaceRequest(BaseModel):
    """Where studies run."""

    model_config = LEGAL

    device: Device = None
    devices: Annotated[tuple[str, ...] | None, Text(metavar="DEVICE,...", read=read_list, once=True)] = Field(
        default=None, strict=False, min_length=1
    )
    """Several GPUs of one model, such as cuda:0,cuda:1, or all: each evaluates configurations."""
    workers: Annotated[int | None, Field(ge=1, le=LARGEST), Text(metavar="N")] = None
    """On the CPU: so many evaluate at once, each on its share of the cores. On Ray: so many at most."""
    executor: Annotated[ExecutorName, Text(metavar="NAME")] = Field(default=ExecutorName.LOCAL, strict=False)
    """Where to evaluate: local, or ray for a Ray cluster. Default: local."""
    address: Annotated[str | None, Text(metavar="HOST:PORT")] = None
    """With --executor ray: the cluster's. Default: one that runs here or $RAY_ADDRESS, else a new one."""


class SweepRequest(PlaceRequest):
    """The options that all studies of a sweep share."""

    trials: Annotated[int, Field(ge=1, le=LARGEST)] = 100
    """Trials of each study, those of earlier runs included. Default: 100."""
    seconds: Annotated[float | None, Field(ge=0.001, le=LONGEST)] = None
    """Seconds for a kernel's problem in all, its modes together: from the command's start to the winner's last check.
    What there is no time to ask is said, and 'confirm' asks it. Default: no limit."""
    settings: Settings = None


class SweepCommandRequest(SweepRequest):
    """The options of `sweep`."""

    ship: bool = False
    """At the end write the winners beside their kernels, as 'ship' does, with the range of sizes of each: it is timed
    against the reference at its neighbours' problems. Default: write nothing."""


class StudyRequest(SweepRequest):
    """A study to run: the keys of a study file, and the options of `tunebench tune`.

    Attributes:
        kernel: a shipped kernel's name, or the path of a kernel folder.
    """

    kernel: str
    sampler: Annotated[str, Text(metavar="NAME", complete=among(SAMPLERS))] = "gp"
    """gp, tpe, random, exhaustive, or Optuna's, such as optuna:GPSampler. Default: gp."""
    seed: Annotated[int, Field(ge=0, le=LARGEST)] = 0
    """Seed of the search. Default: 0."""
    compiler: Compiler = None
    modes: Modes = None
    compile: Annotated[bool | None, Text("--compile/--no-compile")] = None
    """Compare with torch.compile's max-autotune too, or not. Default: on a GPU, where a mode has over a minute."""
    fresh: bool = False
    """Begin without warm-start configurations. Default: with them."""
    stop_early: Annotated[bool, Text("--stop-early/--no-stop-early")] = False
    """End when another trial is not expected to gain what the timing can tell. Default: do not."""
    accuracy: Annotated[Accuracy | None, Text(metavar="NAME")] = Field(
        default=None, strict=False, description=HOW_WRONG
    )
    objective: Annotated[Objective, Text(metavar="NAME")] = Field(default=Objective.TIME, strict=False)
    """Minimise the time, the energy of a call by NVML, or both as their product. Default: time."""
    sizes: Sizes = {}
    dtype: Dtype = None
    tunables: Annotated[Mapping[str, Sequence[Value]], Text("--tunable", "NAME=V1,V2,...", read_tunables)] = {}
    """Restrict a tunable's values; repeatable."""
    start: Annotated[Sequence[Mapping[str, Value]], Text("--start", "NAME=VALUE,...", read_configurations)] = ()
    """Begin with this configuration, otherwise the default's; where it is valid; repeatable."""


class RegressRequest(BaseModel):
    """The options of `regress`; the first of them are a study's, for each kernel."""

    model_config = LEGAL

    device: Device = None
    compiler: Compiler = None
    modes: Modes = None
    sizes: Sizes = {}
    dtype: Dtype = None
    kernels: Annotated[Sequence[str | Path], Text("--kernel", "TARGET", complete=complete_kernel)] = ()
    """A kernel's folder, file or name, or a study file; repeatable. Default: all in the repository."""
    repository: Annotated[str | Path, Text(metavar="FOLDER", read=read_path)] = "."
    """The repository, or any folder of it. Default: the one around the current folder."""
    threshold: Annotated[float, Field(ge=0, le=0.99), Text(metavar="PERCENT", read=read_percent)] = 0.02
    """HEAD may be slower by so much: in percent on the command line, elsewhere as a share. Default: 2 percent."""


def request_of(target: str, options: Mapping[str, object] | None = None) -> StudyRequest:
    """The request for a target: a shipped kernel's name, a study file, or a kernel's folder or file.

    Args:
        options: keys of `StudyRequest` that override the target's own.

    Raises:
        UserError: the target or an option is not legal.
    """
    path = Path(target)
    own = read_study_file(path).model_dump(exclude_unset=True) if path.suffix == ".toml" else {"kernel": target}
    return make_request({**own, **(options or {})}, target)


def read_study_file(path: Path) -> StudyRequest:
    """The request of a file with one study; a relative kernel path is relative to the file.

    Raises:
        StudyFileError: not TOML, a value that is not legal, or several studies.
        UnknownNameError: a key that is none of a study file's.
    """
    requests = read_study_files(path)
    if len(requests) > 1:
        raise StudyFileError(f"{path}: it has {len(requests)} studies: 'tunebench sweep {path}' runs them")
    return requests[0]


def read_study_files(path: Path) -> list[StudyRequest]:
    """The requests of a file: one for each combination of the values that its keys have several of.

    A key of a study file may have a list of values, and so may each size. Each table of `[[studies]]` makes its own
    combinations, with what the file says beside it wherever it does not say otherwise.

    Raises:
        StudyFileError: not TOML, a value that is not legal, no study, or more than `MOST_STUDIES`.
        UnknownNameError: a key that is none of a study file's.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise StudyFileError(f"{path}: cannot read it as TOML: {error}") from error
    except RecursionError:
        raise StudyFileError(f"{path}: cannot read it as TOML: it is nested too deeply") from None
    return studies_in(content, path)


def studies_in(content: Mapping[str, object], path: Path) -> list[StudyRequest]:
    """The requests of a file's content; see `read_study_files`."""
    content = dict(content)
    tables = content.pop(TABLES, [{}])
    if not (isinstance(tables, list) and tables and all(isinstance(one, dict) for one in tables)):
        raise StudyFileError(f"{path}: '{TABLES}' is not legal: write tables, each below a line [[{TABLES}]]")
    for key in (key for table in (content, *tables) for key in table):
        if key not in StudyRequest.model_fields:
            raise UnknownNameError(f"key in {path}:", key, StudyRequest.model_fields)
    combined = [one for table in tables for one in _combinations({**content, **table}, path)]
    if len(combined) > MOST_STUDIES:
        raise StudyFileError(f"{path}: it has {len(combined)} studies: make several files of at most {MOST_STUDIES}")
    return [make_request({**one, **_beside(path, one.get("kernel"))}, str(path)) for one in combined]


def _combinations(table: Mapping[str, object], path: Path) -> Iterator[dict[str, object]]:
    choices = [[(key, value) for value in _values(key, given, path)] for key, given in table.items()]
    return (dict(one) for one in itertools.islice(itertools.product(*choices), MOST_STUDIES + 1))


def _values(key: str, given: object, path: Path) -> list[object]:
    """Return the values that a key stands for in turn; of a table of sizes, every combination of their values."""
    if key in _WHOLE:
        return [given]
    if given == []:
        raise StudyFileError(f"{path}: '{key}' is an empty list: give it a value, or leave it out")
    if isinstance(given, list):
        return [value for one in given for value in (_values(key, one, path) if isinstance(one, dict) else [one])]
    if isinstance(given, dict):
        return list(_combinations(given, path))
    return [given]


def _beside(path: Path, kernel: object) -> dict[str, str]:
    """The kernel's path where it is one relative to the file."""
    beside = path.parent / str(kernel or "")
    return {"kernel": str(beside)} if path_named(beside / "model.py") or is_kernel_file(str(beside)) else {}


def make_request(content: Mapping[str, object], source: str) -> StudyRequest:
    """A request from plain values.

    Raises:
        StudyFileError: one line on the first value that is not legal.
        UserError: a value is an empty text.
    """
    return make(StudyRequest, content, source, StudyFileError)
