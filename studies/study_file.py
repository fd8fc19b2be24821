"""Study files: what to tune and for how long, in TOML; of one study, or of all combinations of what they name."""

from __future__ import annotations

import enum
import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from tunebench.kernels.runtime.registry import is_kernel_file
from tunebench.tuner.build import CompilerName
from tunebench.tuner.empty import require_said
from tunebench.tuner.errors import StudyFileError, UnknownNameError
from tunebench.tuner.files import path_named
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Accuracy
from tunebench.tuner.settings import parse_settings

TABLES = "studies"
"""The key of a study file whose tables have keys of their own beside the file's."""

MOST_STUDIES = 10_000

_WHOLE = ("modes", "devices", "tunables", "start")
"""Keys with lists or tables of their own; a list of any other key's values is one study for each."""


class ExecutorName(enum.StrEnum):
    """Where configurations are evaluated."""

    LOCAL = "local"
    RAY = "ray"


class StudyRequest(BaseModel):
    """What to tune, on what, and for how long: the keys of a study file, and the options of `tunebench tune`.

    Attributes:
        kernel: a shipped kernel's name, or the path of a kernel folder.
        trials: in all; running the same study again goes on where it ended.
        seconds: limit of one run, for each problem; None for none.
        devices: several GPUs of one model, each evaluating configurations, such as `cuda:0` and `cuda:1`, or `all`.
        workers: on the CPU, so many processes that evaluate configurations, each on its share of the cores; on a Ray
            cluster, so many devices at most.
        executor: where configurations are evaluated: on this machine, or on a Ray cluster.
        address: of the cluster; None for one that runs here or is named by RAY_ADDRESS, else one that is started.
        compile: compare the winner with the reference under torch.compile too; it takes tens of seconds to compile.
        fresh: begin without anything from earlier studies of the kernel.
        start: tunables to set beside the default's, of each configuration that the study begins with; one that is not
            valid for a problem is passed over there.
        stop_early: end when another trial is not expected to gain what the timing can tell.
        accuracy: how wrong a configuration may be.
        dtype: what models and inputs are converted to; None leaves them as `reference.py` makes them.
        modes: the module's modes to tune; None for every mode that the kernel names.
        settings: of PyTorch's, such as the precision of products: what eager is permitted while it is tuned; None for
            those in force in this process.
        sizes: numeric constants of `reference.py` to change, by their names there.
        tunables: values to restrict tunables to.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    kernel: str
    trials: int = Field(default=100, ge=1)
    seconds: float | None = Field(default=None, gt=0)
    sampler: str = "gp"
    seed: int = Field(default=0, ge=0, lt=2**63)
    device: str | None = None
    devices: tuple[str, ...] | None = Field(default=None, strict=False, min_length=1)
    workers: int | None = Field(default=None, ge=1)
    executor: ExecutorName = Field(default=ExecutorName.LOCAL, strict=False)
    address: str | None = None
    compiler: CompilerName | None = Field(default=None, strict=False)
    compile: bool = False
    fresh: bool = False
    stop_early: bool = False
    accuracy: Accuracy = Field(default=Accuracy.TOLERANCE, strict=False)
    dtype: str | None = None
    modes: tuple[Annotated[Mode, Field(strict=False)], ...] | None = Field(default=None, strict=False, min_length=1)
    settings: Mapping[str, str] | None = None
    sizes: Mapping[str, int | Annotated[float, Field(allow_inf_nan=False)]] = Field(default_factory=dict)
    tunables: Mapping[str, Sequence[bool | int | float | str]] = Field(default_factory=dict)
    start: Sequence[Mapping[str, bool | int | float | str]] = ()

    @field_validator("settings")
    @classmethod
    def _legal(cls, given: Mapping[str, str] | None) -> Mapping[str, str] | None:
        return None if given is None else parse_settings(given)


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
    """What a key stands for in turn; a table of sizes for every combination of their values."""
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
    for key, value in content.items():
        require_said(f"{source}: '{key}'", value)
    try:
        return StudyRequest.model_validate(dict(content))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("function", "constrained")))
        raise StudyFileError(f"{source}: '{key}' is not legal: {first['msg']} (got {first['input']!r:.80})") from error
