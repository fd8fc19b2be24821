"""Study files: what to tune and for how long, in TOML."""

from __future__ import annotations

import enum
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tunebench.kernels.runtime.registry import is_kernel_file
from tunebench.tuner.build import CompilerName
from tunebench.tuner.errors import StudyFileError, UnknownNameError
from tunebench.tuner.files import path_named
from tunebench.tuner.kernel import Mode


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
        stop_early: end when another trial is not expected to gain what the timing can tell.
        dtype: what models and inputs are converted to; None leaves them as `reference.py` makes them.
        modes: the module's modes to tune; None for every mode that the kernel names.
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
    dtype: str | None = None
    modes: tuple[Annotated[Mode, Field(strict=False)], ...] | None = Field(default=None, strict=False)
    sizes: Mapping[str, int | Annotated[float, Field(allow_inf_nan=False)]] = Field(default_factory=dict)
    tunables: Mapping[str, Sequence[bool | int | float | str]] = Field(default_factory=dict)


def read_study_file(path: Path) -> StudyRequest:
    """The request that a study file makes; a relative kernel path is relative to the file.

    Raises:
        StudyFileError: not TOML, or a value that is not legal.
        UnknownNameError: a key that is none of a study file's.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise StudyFileError(f"{path}: cannot read it as TOML: {error}") from error
    except RecursionError:
        raise StudyFileError(f"{path}: cannot read it as TOML: it is nested too deeply") from None
    for key in content:
        if key not in StudyRequest.model_fields:
            raise UnknownNameError(f"key in {path}:", key, StudyRequest.model_fields)
    beside = path.parent / str(content.get("kernel", ""))
    if path_named(beside / "model.py") or is_kernel_file(str(beside)):
        content["kernel"] = str(beside)
    return make_request(content, str(path))


def make_request(content: Mapping[str, object], source: str) -> StudyRequest:
    """A request from plain values.

    Raises:
        StudyFileError: one line on the first value that is not legal.
    """
    try:
        return StudyRequest.model_validate(dict(content))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("function", "constrained")))
        raise StudyFileError(f"{source}: '{key}' is not legal: {first['msg']} (got {first['input']!r:.80})") from error
