"""Finds the result that an exported file or project is made from, and writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tunebench.db.connection.database import Database, open_database
from tunebench.db.queries.one_trial import trial_details
from tunebench.db.queries.rows import TrialRow
from tunebench.db.queries.trials import best
from tunebench.kernels.runtime.registry import kernel_names, load_model, place_of
from tunebench.kernels.runtime.shipped import files_of, is_stale, read_file
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.request.measure import ExportForm, ExportRequest
from tunebench.studies.writing.export.hub import project_files
from tunebench.studies.writing.export.write import Evidence, file_text, layout_of
from tunebench.studies.writing.ship import result_of
from tunebench.tuner.device import DeviceKind, find_device, is_gpu
from tunebench.tuner.errors import DatabaseMissingError, UserError, member_of
from tunebench.tuner.files import require_writable, whole_file
from tunebench.tuner.fork_server import start_forkserver
from tunebench.tuner.kernel import Kernel, Mode
from tunebench.tuner.problem import CALL_OPTION, Problem, told_apart
from tunebench.tuner.result import CacheRegime, TrialStatus
from tunebench.tuner.watched import watched


@dataclass(frozen=True)
class ExportedModel:
    """A model as text.

    Attributes:
        text: the file, or the module `tuned.py` of a project.
        files: those of a project, by their paths in its folder; empty of one file.
        evidence: what it was made from.
    """

    text: str
    files: Mapping[str, str]
    evidence: Evidence

    def write(self, output: Path, *, replace: bool) -> None:
        """Write the file, or the project's files into a folder.

        Raises:
            UserError: see `require_place`.
        """
        for name, text in (self.files or {"": self.text}).items():
            file = output / name if name else output
            file.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(file, replace=replace) as stream:
                stream.write(text.encode())


def require_place(form: ExportForm, output: Path, *, replace: bool) -> None:
    """Refuse a place that cannot be written to, before anything is made that goes there.

    Raises:
        UserError: the file or folder is there and not to be replaced, or cannot be written.
    """
    if form is ExportForm.FILE:
        require_writable(output, replace=replace)
    elif output.exists() and not output.is_dir():
        raise UserError(f"{output} is a file: a project is written into a folder")
    elif output.is_dir() and any(output.iterdir()) and not replace:
        raise UserError(f"{output} exists: name another folder, or add --force to write into it")


def export(request: ExportRequest) -> ExportedModel:
    """The file or project for the best result that there is, or for a trial.

    The Python of a kernel that does not ship runs in a process that may crash or hang.

    Raises:
        UserError: there is no such kernel, mode, trial or result, or the result needs more than one file can have.
        DatabaseError: the database cannot be read.
    """
    if request.kernel in kernel_names():
        return _export(request)
    start_forkserver([__name__])
    return watched(place_of(request.kernel), "exporting it", _export, request)


def _export(request: ExportRequest) -> ExportedModel:
    model = load_model(request.kernel)
    kernel = model.kernel
    modes = kernel.modes
    mode = Mode.TRAIN if Mode.TRAIN in modes else Mode.EVAL
    if request.mode is not None:
        mode = member_of(Mode, "mode", request.mode)
        if mode is Mode.FROZEN:
            raise UserError("an exported file keeps nothing between calls: export the mode eval, or train")
        if mode not in modes:
            raise UserError(f"{kernel.name} has no mode {mode}: its modes are {', '.join(modes)}")
    layout = layout_of(model, kernel.reference(request.sizes, request.dtype), mode)
    if layout.problem is None:
        raise UserError(f"{kernel.name}: no kernel serves the reference's inputs at these sizes")
    evidence = _evidence(request, model, layout.problem, mode)
    if request.form is ExportForm.FILE:
        return ExportedModel(file_text(model, evidence, layout), {}, evidence)
    files = project_files(model, evidence, layout, request.sizes)
    return ExportedModel(files[f"torch-ext/{kernel.name}/tuned.py"], files, evidence)


def _evidence(request: ExportRequest, model: type[TunedModule], problem: Problem, mode: Mode) -> Evidence:
    kernel = model.kernel
    with ExitStack() as stack:
        try:
            database = stack.enter_context(open_database(request.db, read_only=True))
        except DatabaseMissingError:
            if request.db is not None or request.trial is not None:
                raise
            database = None
        if request.trial is not None:
            assert database is not None
            return _of_trial(database, request, kernel, problem, mode)
        found = [] if database is None else list(_recorded(database, request, kernel, problem, mode))
        if found:
            assert database is not None
            return _of_row(database, min(found, key=lambda row: _rank(row, problem)))
    shipped = list(_shipped(request, kernel))
    fitting = [one for one in shipped if _fits(one.result.problem, problem, mode)]
    if not fitting:
        raise UserError(_nothing(request, kernel, problem, shipped))
    return min(fitting, key=lambda one: (one.device != _this_device(), _differences(one.result.problem, problem)))


def _of_trial(database: Database, request: ExportRequest, kernel: Kernel, problem: Problem, mode: Mode) -> Evidence:
    assert request.trial is not None
    row = trial_details(database, request.trial).row
    told = f"trial {row.trial_id}"
    if row.kernel != kernel.name:
        raise UserError(f"{told} is of the kernel {row.kernel}, not of {kernel.name}")
    if row.source_digest != kernel.digest and not request.any_source:
        raise UserError(f"{told} is of another version of {kernel.name}: tune again, or add --any-source")
    if row.status not in (TrialStatus.CORRECT, TrialStatus.PRUNED):
        raise UserError(f"{told} is none of a kernel that was found correct: {row.status}")
    if not is_gpu(row.architecture):
        raise UserError(f"{told} is of {row.device_name}: a file is exported for a GPU")
    if not _fits(row.problem, problem, mode):
        measured, here = told_apart([("", row.problem), ("", problem)])
        raise UserError(f"{told} is of {measured}, these sizes and this mode are {here}: add --size, --mode or --dtype")
    return _of_row(database, row)


def _recorded(
    database: Database, request: ExportRequest, kernel: Kernel, problem: Problem, mode: Mode
) -> Iterator[TrialRow]:
    digest = None if request.any_source else kernel.digest
    for row in best(database, kernel=kernel.name, source_digest=digest, device=request.device):
        if is_gpu(row.architecture) and _fits(row.problem, problem, mode):
            yield row


def _rank(row: TrialRow, problem: Problem) -> tuple[object, ...]:
    """This machine's device first, confirmed results before others, cold caches, the newest."""
    moment = row.confirmed_at or row.recorded_at
    strange = row.device_name != _this_device()
    differences = _differences(row.problem, problem)
    return strange, differences, not row.confirmed, row.regime is not CacheRegime.COLD, -moment.timestamp()


def _of_row(database: Database, row: TrialRow) -> Evidence:
    source = f"trial {row.trial_id} of {database.name}"
    return Evidence(result_of(database, row), row.device_name, row.architecture, source, row.source_digest)


def _shipped(request: ExportRequest, kernel: Kernel) -> Iterator[Evidence]:
    for path in files_of(kernel):
        file = read_file(path)
        if (request.any_source or not is_stale(kernel, file)) and request.device in (None, file.device):
            for result in file.results:
                if result.configuration is None:
                    continue  # the reference is faster there
                source = f"shipped with tunebench {result.conditions.get('tunebench', '')}".strip()
                yield Evidence(result, file.device, file.architecture, source, file.digest)


def _fits(measured: Problem, problem: Problem, mode: Mode) -> bool:
    """Whether a result is of these sizes in this mode. Other options depend on the device, and are not asked for."""
    is_mode = measured.options.get("mode", mode.value) == mode.value
    # Results of before calls were identified say the named sizes alone.
    has_same_shapes = CALL_OPTION not in measured.options or measured.other_shapes == problem.other_shapes
    is_alike = measured.dtype == problem.dtype and has_same_shapes
    return dict(measured.axes) == dict(problem.axes) and is_alike and is_mode


def _differences(measured: Problem, problem: Problem) -> int:
    return sum(problem.options.get(name) != value for name, value in measured.options.items())


def _this_device() -> str:
    device = find_device()
    return device.name if device.kind is DeviceKind.CUDA else ""


def _nothing(request: ExportRequest, kernel: Kernel, problem: Problem, shipped: list[Evidence]) -> str:
    options = "".join(f" --size {name}={size}" for name, size in request.sizes.items())
    options += f" --dtype {request.dtype}" if request.dtype else ""
    of = f" on {request.device}" if request.device else ""
    advice = f"'tunebench tune {request.kernel}{options}' on a GPU finds one"
    if not shipped and not request.any_source and files_of(kernel):
        advice += "; --any-source takes what ships from another version of the source"
    return f"{kernel.name}: there is no result for {problem}{of}: {advice}"
