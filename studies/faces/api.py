"""The functions of `import tunebench`: the commands. Each imports what it needs when it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from tunebench.studies.checking.request import CheckRequest
from tunebench.studies.request.building import BundleRequest, NewRequest, WarmRequest
from tunebench.studies.request.measure import CompareRequest, ExportRequest, FrontierRequest, OptimizeRequest
from tunebench.studies.request.options import given, make, taking
from tunebench.studies.request.results import BestRequest, ExplainRequest, MissesRequest, TrialsRequest, conditions_of
from tunebench.studies.request.serving import ServeRequest
from tunebench.studies.tuning.study_file import StudyRequest, SweepCommandRequest, request_of
from tunebench.tuner.empty import refusing_empty

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import Console

    from tunebench.db.connection.database import Database
    from tunebench.db.queries.rows import BestRow, MissRow, TrialRow
    from tunebench.kernels.runtime.tuned_module import TunedModule
    from tunebench.studies.checking.compare import Side
    from tunebench.studies.checking.compare_report import CompareReport
    from tunebench.studies.checking.explain import Explanation
    from tunebench.studies.checking.frontier import Frontier
    from tunebench.studies.checking.on_modules import Inputs, Model
    from tunebench.studies.checking.report import CheckReport
    from tunebench.studies.request.keywords import (
        BestOptions,
        BundleOptions,
        CheckOptions,
        CompareOptions,
        ExplainOptions,
        ExportOptions,
        FrontierOptions,
        MissesOptions,
        NewOptions,
        ServeJudgeOptions,
        SweepOptions,
        TrialsOptions,
        TuneOptions,
        WarmOptions,
    )
    from tunebench.studies.serving.server import JudgeServer
    from tunebench.studies.sweep.run import SweepReport
    from tunebench.studies.tuning.ahead import BuiltAhead
    from tunebench.studies.tuning.tune import StudyReport
    from tunebench.studies.writing.new.new_kernel import NewKernel
    from tunebench.tuner.compile.bundle import BundledBuild
    from tunebench.tuner.problem import Problem

Row = TypeVar("Row", bound="TrialRow")


class Rows(list[Row]):
    """Rows of results: a list, and a data frame when asked."""

    def to_frame(self) -> DataFrame:
        """The same as a pandas DataFrame: a column for every field, axis, option and tunable.

        Times are in milliseconds, moments in UTC, and a speed-up has three columns: `over_reference`,
        `over_reference_low`, `over_reference_high`. Axes, options and tunables are `axis_NAME`, `option_NAME` and
        `tunable_NAME`, missing where a row has none of that name.

        Raises:
            UserError: pandas is not installed.
        """
        from tunebench.db.queries.data_frames import to_dataframe

        return to_dataframe(self)


@refusing_empty
def connect(db: str | Path | None = None, *, read_only: bool = True) -> Database:
    """Open a results database, for several questions to it; use it in a `with` statement, or close it.

    Args:
        db: a path such as `results.db`, or a SQLAlchemy URL of SQLite or PostgreSQL; None for the environment variable
            TUNEBENCH_DB, or else `tunebench.db` in the user's data folder.
        read_only: the database must be there, at this tunebench's revision, and every write is refused. False also
            creates or upgrades it.

    Raises:
        DatabaseMissingError: there is nothing to read.
        DatabaseError: it cannot be used; the message is one line.
    """
    from tunebench.db.connection.database import open_database

    return open_database(db, read_only=read_only)


@contextmanager
def opened(db: Database | str | Path | None, *, read_only: bool) -> Iterator[Database]:
    """A database that is open already, or one that is open for this long."""
    from tunebench.db.connection.database import Database

    if isinstance(db, Database):
        yield db
    else:
        with connect(db, read_only=read_only) as database:
            yield database


@taking(BestRequest)
def best(
    kernel: str | None = None,
    *,
    problem: Problem | None = None,
    db: Database | str | Path | None = None,
    **options: Unpack[BestOptions],
) -> Rows[BestRow]:
    """The best configuration of each kernel, problem and kind of device, and how it was measured.

    Args:
        db: an open database, or where it is; see `connect`.

    Raises:
        DatabaseError: the database cannot be read.
        UserError: there is no such compiler.
    """
    from tunebench.db.queries.trials import best as best_of
    from tunebench.kernels.runtime.registry import of_current_kernels

    conditions = given(BestRequest, options)
    any_source = conditions.pop("any_source", False)
    with opened(db, read_only=True) as database:
        rows = best_of(database, kernel=kernel, problem=problem, **conditions)
    return Rows(rows if any_source else of_current_kernels(rows))


@taking(TrialsRequest)
def trials(
    kernel: str | None = None,
    *,
    problem: Problem | None = None,
    limit: int | None = 100,
    offset: int = 0,
    db: Database | str | Path | None = None,
    **options: Unpack[TrialsOptions],
) -> Rows[TrialRow]:
    """Trials that meet every condition given, the newest first.

    Args:
        limit: None for all of them.
        db: an open database, or where it is; see `connect`.

    Raises:
        DatabaseError: the database cannot be read.
        UserError: there is no such status or compiler.
    """
    from tunebench.db.queries.trials import trials as trials_of

    conditions = conditions_of(given(TrialsRequest, options))
    with opened(db, read_only=True) as database:
        return Rows(trials_of(database, kernel=kernel, problem=problem, limit=limit, offset=offset, **conditions))


@taking(ExplainRequest)
def explain(trial: int, *, db: Database | str | Path | None = None, **options: Unpack[ExplainOptions]) -> Explanation:
    """Say why a trial takes as long as it does: a GPU's counters, or else the compiler's figures and the roofline.

    Args:
        trial: its number in the database.
        db: an open database, or where it is; see `connect`. Counters that are read are kept with the trial.

    Raises:
        UserError: there is no such trial.
        DatabaseError: the database cannot be read or written.
    """
    from tunebench.studies.checking.explain import explain as explain_trial

    with opened(db, read_only=True) as database:
        return explain_trial(database, trial, **given(ExplainRequest, options))


@taking(MissesRequest)
def misses(
    kernel: str | None = None, *, db: Database | str | Path | None = None, **options: Unpack[MissesOptions]
) -> list[MissRow]:
    """The problems that were served without evidence, the most used first; see `record_misses`.

    Args:
        db: an open database, or where it is; see `connect`.

    Raises:
        DatabaseError: the database cannot be read.
    """
    from tunebench.db.queries.misses import misses as misses_of
    from tunebench.kernels.runtime.registry import of_current_kernels

    conditions = given(MissesRequest, options)
    with opened(db, read_only=True) as database:
        rows = misses_of(database, kernel=kernel, **conditions)
    return rows if conditions.get("tuned") else of_current_kernels(rows)


@refusing_empty
def load(kernel: str | Path) -> type[TunedModule]:
    """The `ModelNew` of a kernel: an `nn.Module` class that takes the place of its reference's `Model`.

    Args:
        kernel: a shipped kernel's name, or the path of a kernel's folder. The class of a folder is found again by its
            path when an object of it is unpickled, also in another process. Loading a folder again runs it again.

    Raises:
        UnknownNameError: neither a shipped kernel nor a folder.
        KernelFolderError: the folder is not a kernel's.
    """
    from tunebench.kernels.runtime.registry import import_model

    return import_model(str(kernel))


@taking(NewRequest)
def new(folder: str | Path, **options: Unpack[NewOptions]) -> NewKernel:
    """Write the folder of a new kernel, which agrees with its problem and which `tune` takes.

    Args:
        folder: must not be there yet; its name is the kernel's.

    Returns:
        The block that the kernel is made of; no block, and the reason, where there is no kernel of all of the problem.

    Raises:
        UserError: the folder is there, its name cannot be a kernel's, there is no such block, or the problem cannot be
            run.
    """
    from tunebench.studies.writing.new.write_new import write_new

    return write_new(Path(folder), **given(NewRequest, options))


@taking(ExportRequest)
def export(
    kernel: str | Path,
    output: str | Path | None = None,
    *,
    db: str | Path | None = None,
    **options: Unpack[ExportOptions],
) -> str:
    """Export a tuned model as the text of one file in KernelBench's form, which needs torch and nvcc alone.

    With `form="hf-kernels"` it is a project of Hugging Face's kernel-builder; the text is that of its module.

    Args:
        kernel: a shipped kernel's name, or the path of a kernel's folder.
        output: the file, or a project's folder, to write it to, replacing what is there.
        db: see `connect`.

    Raises:
        UserError: there is no such result, or it needs more than one file can have.
        DatabaseError: the database cannot be read.
    """
    from tunebench.studies.writing.export_command import export as export_model
    from tunebench.studies.writing.export_command import require_place

    request = make(ExportRequest, {**given(ExportRequest, options), "kernel": str(kernel), "db": db}, "export")
    if output is not None:
        require_place(request.form, Path(output), replace=True)
    made = export_model(request)
    if output is not None:
        made.write(Path(output), replace=True)
    return made.text


@taking(StudyRequest)
def tune(
    kernel: str | Path,
    *,
    progress: bool = False,
    db: Database | str | Path | None = None,
    **options: Unpack[TuneOptions],
) -> list[StudyReport]:
    """Run a kernel's studies, or go on with them: one for each mode, everything recorded. Ctrl-C ends them early.

    Args:
        kernel: a shipped kernel's name, the path of a kernel's folder, or a study file (.toml), whose keys the other
            arguments override.
        progress: show what is done on standard error.
        db: an open database, or where it is; see `connect`. It is created where there is none.

    Raises:
        UserError: something is unknown, not legal or not on this machine, or the database cannot be written.
        TunebenchError: the studies cannot go on; what was done is recorded, and the same call goes on.
    """
    from tunebench.studies.tuning.progress import StudyDisplay
    from tunebench.studies.tuning.resolved import resolve
    from tunebench.studies.tuning.tune import tune as run_studies

    resolved = resolve(request_of(str(kernel), given(StudyRequest, options)))
    with opened(db, read_only=False) as database, StudyDisplay(_console(progress)) as display:
        return run_studies(resolved, database, display)


def optimize(
    model: Callable[..., Any], *inputs: Any, seconds: float = 300, mode: str | None = None, progress: bool = False
) -> Callable[..., Any]:
    """Tune the regions of a model that take most of its time, print what came of it, and return the model compiled.

    A region is what torch.compile's Inductor fuses into one kernel. Equal regions are tuned once, and one of which
    results are known not again: the same call in another process tunes nothing. The compiled model is
    `torch.compile(model, backend="tunebench")`, which calls our kernel of a region where it was measured to be faster
    than Inductor's own code, or Inductor's alone where the whole model is faster so. Ctrl-C ends the studies; what was
    done is recorded.

    Args:
        model: a module, or a function of tensors; it is called with the inputs several times. With gradients enabled
            the regions of the backward are tuned too: use `torch.no_grad()` for inference.
        seconds: for all studies together; 0 prints what is known.
        mode: of `torch.compile`: what it fuses depends on that.
        progress: show what is done on standard error.

    Raises:
        UserError: the seconds are not legal.
        DatabaseError: the database cannot be written.
    """
    from tunebench.studies.inductor.optimize import optimize_regions, print_report
    from tunebench.studies.inductor.whole import faster_model
    from tunebench.studies.tuning.progress import StudyDisplay

    request = make(OptimizeRequest, {"seconds": float(seconds)}, "optimize")
    with opened(None, read_only=False) as database, StudyDisplay(_console(progress)) as display:
        report = optimize_regions(model, inputs, request.seconds, database, display, mode)
    compiled = faster_model(report, model, inputs, mode)
    print_report(report)
    return compiled


@taking(CheckRequest)
def check(
    target: str | Path | Sequence[str | Path] | Model,
    reference: str | Path | Model | None = None,
    *,
    inputs: Inputs | None = None,
    init_inputs: Sequence[Any] = (),
    db: str | Path | None = None,
    **options: Unpack[CheckOptions],
) -> list[CheckReport]:
    """Run the whole correctness gate, one report for each target and mode.

    A kernel is checked in a process of its own, a file and its reference in one each, so that a crash is a refusal.
    Two models of this process are checked in it: whoever passes them vouches for their code, and a crash ends it.

    Args:
        target: a shipped kernel's name, the path of a kernel's folder, of a study file, or of a `.py` file that
            defines `ModelNew`, or a trial's number; a list of these, or a folder of such files, as KernelBench's run
            directories are; or a model: a class of `torch.nn.Module`, a module, or a function of tensors.
        reference: the file with `Model`, `get_inputs` and `get_init_inputs`, where the target does not define them; of
            a model, the model to compare with.
        inputs: of models: one call's inputs, or what draws them with torch's generators, which are seeded before. Of
            given inputs the elements come in other orders as well; where that is wrong, give what draws them.
        init_inputs: what classes are called with.
        db: where the trials are.

    Returns:
        Reports with `passed`, `holds("problem")`, `holds("drop-in")`, `refusals`, and the verdict as text by `str`. Of
        a list or a folder, what cannot be asked is refused at the stage `question`.

    Raises:
        UserError: something is unknown or not on this machine, or the reference of a single target cannot be run.
    """
    from tunebench.studies.checking.check import check as run_check
    from tunebench.studies.checking.check import check_all
    from tunebench.studies.checking.submissions import is_run_folder, requests_for
    from tunebench.tuner.errors import UserError

    are_files = isinstance(target, str | Path | Sequence)
    if are_files != (reference is None or isinstance(reference, str | Path)):
        raise UserError("a model is compared with a model, and a file with a file: give two of a kind")
    name = "files" if are_files else getattr(target, "__name__", type(target).__name__)
    content = {
        **given(CheckRequest, options),
        "target": name,
        "reference": str(reference) if are_files and reference is not None else None,
        "database": db,
    }
    request = make(CheckRequest, content, "check")
    if not isinstance(target, str | Path | Sequence):
        from tunebench.studies.checking.on_modules import check_modules

        if inputs is None or reference is None or isinstance(reference, str | Path):
            raise UserError("of a model, give the model to compare with and inputs=…: a call's, or what draws them")
        return check_modules(target, reference, inputs, init_inputs, request)
    targets = [str(target)] if isinstance(target, str | Path) else [str(one) for one in target]
    requests = requests_for(targets, request)
    if isinstance(target, str | Path) and not is_run_folder(targets[0]):
        return run_check(requests[0])
    return list(check_all(requests, request.jobs))


@taking(WarmRequest)
def warm(*kernels: str | Path, **options: Unpack[WarmOptions]) -> list[BuiltAhead]:
    """Build into the build cache what tuned models would run, so that their first calls find it there.

    Args:
        kernels: names or folders; none for all shipped kernels, or those of the file of problems.

    Returns:
        One for each variant; a refused one says why.

    Raises:
        UserError: the question was wrong, nothing is known to build, or the compiler is not here.
    """
    from tunebench.studies.tuning.ahead import warm as build

    return build([str(one) for one in kernels], **given(WarmRequest, options))


@taking(BundleRequest)
def bundle(folder: str | Path, *kernels: str | Path, **options: Unpack[BundleOptions]) -> list[BundledBuild]:
    """Write binaries of what tuned models would run, which need no compiler where they run: see `use_bundle`.

    Args:
        folder: a bundle there is replaced.
        kernels: as of `warm`.

    Raises:
        UserError: the question was wrong, a build was refused, or the folder cannot be written.
    """
    from tunebench.studies.tuning.ahead import bundle as write

    return write(Path(folder), [str(one) for one in kernels], **given(BundleRequest, options))


@taking(CompareRequest)
def compare(
    first: Side,
    second: Side,
    *,
    kernel: str | Path | None = None,
    db: str | Path | None = None,
    **options: Unpack[CompareOptions],
) -> CompareReport:
    """Is the first really faster than the second? Both are checked, then timed in interleaved rounds.

    Args:
        first, second: a trial's number, tunables (a mapping; the rest as in the default), `default`, `reference`, or
            the path of a `.py` file.
        kernel: a name, a folder or a study file; a trial brings its own, and its sizes, dtype and settings.
        db: where the trials are.

    Raises:
        UserError: the two cannot be compared.
        TunebenchError: what was compared killed its process, or hung.
    """
    from tunebench.studies.checking.compare import compare as compare_sides
    from tunebench.studies.checking.compare import question_of

    asked = given(CompareRequest, options)
    target = None if kernel is None else str(kernel)
    return compare_sides(question_of(first, second, kernel=target, options=asked, database=db))


@taking(FrontierRequest)
def frontier(size: str, **options: Unpack[FrontierOptions]) -> Frontier:
    """Try every product of one size, x · weightᵀ, and tell what each takes and how wrong it is; nothing is recorded.

    Args:
        size: ROWSxINxOUT, such as 1024x8192x8192.

    Returns:
        The points, the fastest first; `best` has those of the Pareto frontier.

    Raises:
        UserError: there is no such size, dtype, mode or device.
        TunebenchError: a product killed the process that measures all of them.
    """
    from tunebench.studies.checking.frontier import frontier as run

    return run(size, make(FrontierRequest, given(FrontierRequest, options), "frontier"))


@taking(ServeRequest)
def serve_judge(**options: Unpack[ServeJudgeOptions]) -> AbstractContextManager[JudgeServer]:
    """Offer the gate as a judge over HTTP, in other threads while the block runs: `with serve_judge() as server: ...`.

    `server.address` is where it answers. Verdicts are signed; see `verify_verdict`.

    Raises:
        UserError: the address is taken or not allowed, or the key cannot be read; when the block begins.
    """
    from tunebench.studies.serving.server import serving

    return serving(make(ServeRequest, given(ServeRequest, options), "serve"))


def verify_verdict(verdict: Mapping[str, Any], key: str | Path | None = None) -> bool:
    """Whether a judge's verdict is as the holder of the key signed it.

    Args:
        verdict: what `POST /check` answered, as `json.loads` reads it.
        key: the file of the judge's key; None for this user's own.

    Raises:
        UserError: the key cannot be read.
    """
    from tunebench.studies.serving.signing import Key, key_file

    return Key.read(key_file(key)).verifies(verdict)


@taking(SweepCommandRequest)
def sweep(
    files: str | Path | Sequence[str | Path],
    *,
    progress: bool = False,
    db: Database | str | Path | None = None,
    **options: Unpack[SweepOptions],
) -> SweepReport:
    """Tune many problems as one queue over all devices, or go on with that; everything is recorded.

    A study that has its final comparison is not run again. One that fails is passed over: its result says why.

    Args:
        files: study files (.toml), of one study or many; the other arguments override their keys.
        progress: show what is done on standard error.
        db: an open database, or where it is; see `connect`. It is created where there is none.

    Raises:
        UserError: something is unknown, not legal or not on this machine; nothing has run then.
        DatabaseError: the database cannot be read or written.
    """
    from tunebench.studies.sweep.run import run_sweep
    from tunebench.studies.tuning.progress import SweepDisplay

    said = given(SweepCommandRequest, options)
    paths = [Path(one) for one in ([files] if isinstance(files, str | Path) else files)]
    with opened(db, read_only=False) as database, SweepDisplay(_console(progress)) as display:
        return run_sweep(paths, said, database, display)


def _console(shows: bool) -> Console:
    """Standard error, or nothing at all."""
    from rich.console import Console

    return Console(stderr=True) if shows else Console(quiet=True, force_terminal=False)
