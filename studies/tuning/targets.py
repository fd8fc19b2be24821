"""Targets of commands: a kernel's name, folder or file, a study file, or a trial's number; all make one request."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tunebench.db.connection.database import open_database
from tunebench.db.queries.one_trial import TrialDetails, trial_details
from tunebench.db.queries.studies import studies
from tunebench.db.queries.trials import trials
from tunebench.kernels.runtime.registry import kernel_names, load_model
from tunebench.studies.tuning.for_problem import UnfitProblemError, resolve_problem, sizes_for
from tunebench.studies.tuning.resolved import Resolved
from tunebench.studies.tuning.study_file import StudyRequest, make_request, request_of
from tunebench.studies.tuning.tune import describe_study
from tunebench.tuner.configuration import Value
from tunebench.tuner.errors import UserError
from tunebench.tuner.files import is_written_by
from tunebench.tuner.problem import Problem
from tunebench.tuner.settings import settings_of
from tunebench.tuner.users_code import MODEL_FILE


@dataclass(frozen=True)
class Target:
    """A target whose words have been understood.

    Attributes:
        request: the kernel, and what a study file or a trial says beside it.
        configuration: a trial's, or what a study file leaves of tunables; of a kernel alone none.
    """

    request: StudyRequest
    configuration: Mapping[str, Value]


def find_target(text: str, database: str | Path | None = None) -> Target:
    """Return the target that a text names.

    Args:
        database: where trials are; None for the default.

    Raises:
        UserError: there is no such file or trial, or a trial's kernel is not here.
    """
    if text.isascii() and text.isdigit():
        with open_database(database, read_only=True) as opened:
            details = trial_details(opened, int(text))
        row, target = details.row, kernel_of(details)
        mode = load_model(target).kernel.mode_of(row.problem)
        sizes, accuracy = sizes_of(target, row.problem), row.problem.accuracy
        given = {"kernel": target, "dtype": row.problem.dtype, "modes": [mode], "sizes": sizes, "accuracy": accuracy}
        given["objective"] = row.problem.objective
        given["settings"] = settings_of(row.problem.options)
        return Target(make_request(given, f"trial {text}"), dict(row.configuration))
    request = request_of(text)
    return Target(request, {name: values[0] for name, values in request.tunables.items() if len(values) == 1})


def resolve_trial(number: int, options: Mapping[str, object], database: str | Path | None = None) -> Resolved:
    """The study of a trial, to go on with; where the options name no more trials, to take its final rounds again.

    Args:
        options: keys of a study file.
        database: where trials are; None for the default.

    Raises:
        UserError: there is no such trial, its kernel is not here or has changed, or its study was of other tunables or
            on another device.
    """
    with open_database(database, read_only=True) as opened:
        details = trial_details(opened, number)
        (study,) = studies(opened, study_ids=[details.row.study_id])
    row, kind = details.row, details.study.device.kind
    given = {"sampler": row.sampler, "seed": row.seed, "compiler": row.compiler, "trials": study.trials}
    given |= {} if "devices" in options else {"device": kind.value}
    resolved = resolve_problem(kernel_of(details), row.problem, {**given, **options})
    found = describe_study(resolved, row.problem, resolved.device)
    for what, was, now in (
        ("version of its kernel", row.source_digest, found.source_digest),
        ("device", row.device_name, resolved.device.name),
        ("choice of tunables", details.study.space_digest, found.space_digest),
    ):
        if was != now:
            raise UserError(f"trial {number} is of another {what} than this would tune: use the command that tuned it")
    return resolved


def resolve_study(number: int, options: Mapping[str, object], database: str | Path | None = None) -> Resolved:
    """A study to take the final rounds of, with everything that it asks of a winner.

    Args:
        options: keys of a study file.
        database: where it is; None for the default.

    Raises:
        UserError: there is no such study with trials; or see `resolve_trial`.
    """
    with open_database(database, read_only=True) as opened:
        (newest, *_) = [*trials(opened, study_id=number, limit=1), None]
    if newest is None:
        raise UserError(f"there is no study {number} with trials here: 'tunebench studies' lists them")
    return resolve_trial(newest.trial_id, options, database)


def kernel_of(details: TrialDetails) -> str:
    """Return a trial's kernel, a shipped one by name, else by where its folder or file was when it was recorded.

    Raises:
        UserError: it is not here, or is not the user's own.
    """
    row, path = details.row, details.trial.environment.kernel_path
    if path is None:
        if row.kernel in kernel_names():
            return row.kernel
        raise UserError(f"trial {row.trial_id} does not say where its kernel '{row.kernel}' is: name its folder")
    # A database is anyone's, and what it names is run.
    file = Path(path) / MODEL_FILE if Path(path).is_dir() else Path(path)
    if details.trial.environment.host != socket.gethostname() or not file.is_file():
        raise UserError(f"trial {row.trial_id} is of a kernel at {path}, which is not here: name its folder")
    if not is_written_by(file.stat(), [0, os.getuid()]):
        raise UserError(f"trial {row.trial_id} is of a kernel at {path}, which others can write: name its folder")
    return path


def sizes_of(target: str, problem: Problem) -> dict[str, int]:
    """The sizes of a kernel's reference that make a problem; none where no sizes do."""
    model = load_model(target)
    with suppress(UnfitProblemError):
        return dict(sizes_for(model, problem, model.kernel.mode_of(problem)))
    return {}
