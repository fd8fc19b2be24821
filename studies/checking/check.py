"""The gate alone: configurations of kernels, and anybody's files with a `ModelNew`, one after another or side by side.

Files of one problem have one judge after another, or as many as work side by side, and each judge has one reference for
all of its files. Each file has a process of its own, and what is asked of it is what is asked of a file alone.

Nothing here imports torch: what runs a model, or judges one, does so in processes of their own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue

from tunebench.kernels.runtime.registry import load_model
from tunebench.studies.checking import PRELOAD
from tunebench.studies.checking.gpu_mode import in_kernelbench_form, is_gpu_mode
from tunebench.studies.checking.report import CheckReport, Subject
from tunebench.studies.checking.request import CheckRequest
from tunebench.studies.checking.submissions import TextFile, is_submission
from tunebench.tuner.device import any_gpu, find_device
from tunebench.tuner.errors import InternalError, KernelFolderError, TunebenchError, UnknownNameError, UserError
from tunebench.tuner.files import path_named, read_text
from tunebench.tuner.fork_server import start_forkserver
from tunebench.tuner.gate.draw import Draw
from tunebench.tuner.gate.refusal import Claim, Question, Refusal
from tunebench.tuner.isolation import IsolatedProcess, IsolationError, RaisedError
from tunebench.tuner.kernel import Mode
from tunebench.tuner.result import Stage, Verdict
from tunebench.tuner.settings import require_settings, settings_here

_FILE_MODES = (Mode.EVAL, Mode.TRAIN)
_BOTH = 2

Show = Callable[[CheckRequest, Mode, Question | Stage], None]
"""Called with each question before it is asked, and with each stage as it ends."""


def show_nothing(_request: CheckRequest, _mode: Mode, _what: Question | Stage) -> None:
    """Ignore all events of a check."""


@dataclass(frozen=True)
class _Check:
    """One verdict that is asked for.

    Attributes:
        is_file: the target was a file with a model and no kernel when it was read: the file may say otherwise since.
        mode: of both models.
        files: path and text of the file with `Model`, and of that with `ModelNew` where it is another one, read once:
            later edits have no effect. None of a kernel.
        keeps_reference: others are asked for beside the same reference.
        is_alone: no others are asked for.
    """

    request: CheckRequest
    is_file: bool
    mode: Mode
    files: tuple[TextFile, ...] = ()
    keeps_reference: bool = False
    is_alone: bool = False

    def goes_with(self, other: _Check) -> bool:
        """Whether all but the file with `ModelNew` is the same."""
        return (
            len(self.files) == len(other.files) == _BOTH
            and self.files[0] == other.files[0]
            and self.mode is other.mode
            and replace(self.request, target="") == replace(other.request, target="")
        )


def check(request: CheckRequest, show: Show = show_nothing) -> list[CheckReport]:
    """Run the whole gate in a process of its own, one report for each mode; a crash is a refusal.

    Raises:
        UserError: the request names what is not there, or the reference cannot be run.
    """
    reports = []
    with closing(_Judge(show)) as judge:
        for one in _checks(request):
            outcome = judge.outcome(replace(one, is_alone=True))
            if isinstance(outcome, UserError):
                raise outcome
            reports.append(outcome)
    return reports


def check_all(requests: Sequence[CheckRequest], jobs: int = 1, show: Show = show_nothing) -> Iterator[CheckReport]:
    """Check many, so many at a time; their reports as they come, in the order in which they end.

    All are asked the questions of one seed. What cannot be asked, such as a file whose reference does not run, is
    refused at the stage `question`.

    Raises:
        InternalError: once all others have ended, an error of tunebench in one of them.
    """
    seed = Draw.fresh().seed
    checks: list[_Check] = []
    for request in requests:
        try:
            checks += _checks(request if request.seed is not None else replace(request, seed=seed))
        except UserError as error:
            yield _unasked(_Check(request, is_submission(request.target), Mode.TRAIN), error)
    rows = _Rows(checks)
    judges = [_Judge(show) for _ in range(max(1, min(jobs, len(checks))))]
    free: SimpleQueue[_Judge] = SimpleQueue()
    for judge in judges:
        free.put(judge)

    def judge_next() -> CheckReport:
        judge = free.get()
        try:
            one = rows.next_for(judge)
            outcome = judge.outcome(one)
            return _unasked(one, outcome) if isinstance(outcome, UserError) else outcome
        finally:
            free.put(judge)

    wrong: list[InternalError] = []
    with ThreadPoolExecutor(len(judges)) as pool:
        asked = [pool.submit(judge_next) for _ in checks]
        try:
            for ended in as_completed(asked):
                if isinstance(raised := ended.exception(), InternalError):
                    wrong.append(raised)
                else:
                    yield ended.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for judge in judges:
                judge.kill()
    if wrong:
        raise wrong[0]


def _checks(request: CheckRequest) -> list[_Check]:
    """The verdicts that a request asks for, found without running anybody's file.

    Raises:
        UserError: it names what is not there.
    """
    request, is_file = request.seeded(), is_submission(request.target)
    files: tuple[TextFile, ...] = ()
    if is_file:
        request = replace(request, settings=_settings(request))
        legal: Sequence[Mode] = _FILE_MODES
        usual: Sequence[Mode] = (Mode.TRAIN,)
        files = _read(request)
    else:
        start_forkserver(PRELOAD)
        request = _completed(request)
        legal = usual = load_model(request.target).kernel.modes
    if request.architecture is not None:
        any_gpu(request.architecture)
    for mode in request.modes or ():
        if mode not in legal:
            raise UnknownNameError(f"mode of {request.target}", mode, legal)
    modes = [Mode(mode) for mode in request.modes or ()]
    start_forkserver(PRELOAD)
    return [_Check(request, is_file, mode, files) for mode in modes or usual]


def _completed(request: CheckRequest) -> CheckRequest:
    """The request for a kernel, with what a study file or a trial says."""
    from tunebench.studies.tuning.targets import find_target  # opens databases

    if request.reference is not None:
        raise UserError("--reference is for files: a kernel has its own reference.py")
    if request.declared:
        raise UserError(f"--{request.declared[0]} is for files: a kernel declares it in Kernel.declare")
    found = find_target(request.target, request.database)
    said = found.request
    return replace(
        request,
        target=said.kernel,
        configuration={**found.configuration, **request.configuration},
        sizes={**said.sizes, **request.sizes},
        dtype=said.dtype if request.dtype is None else request.dtype,
        accuracy=request.accuracy or said.accuracy,
        settings=_settings(replace(request, settings=said.settings if request.settings is None else request.settings)),
        modes=request.modes or said.modes,
        device=said.device if request.device is None else request.device,
        compiler=request.compiler or said.compiler,
    )


def _read(request: CheckRequest) -> tuple[TextFile, ...]:
    """The files of a request, the reference first."""
    if request.configuration:
        raise UserError(f"{request.target} has no configuration: --config is for kernels")
    for name in filter(None, (request.target, request.reference)):
        if not ((path := path_named(name)) and path.is_file()):
            raise UserError(f"{name}: cannot read: there is no such file; name a Python file with a model")
    target, *others = (Path(name) for name in (request.target, request.reference) if name is not None)
    own = (target, read_text(target))
    texts = (*((path, read_text(path)) for path in others), own)
    if is_gpu_mode(own[1]):
        if not others:
            raise UserError(f"{target}: a submission to GPU MODE: name the task's reference.py with --reference")
        return in_kernelbench_form(texts[0], own, request.sizes)
    if "ModelNew" not in own[1]:
        raise KernelFolderError(f"{target}: no ModelNew; the model to check has that name")
    return texts


def _settings(request: CheckRequest) -> Mapping[str, str]:
    """Return the settings of PyTorch that both models run under.

    Raises:
        UserError: the device has no such setting.
    """

    def kind() -> str:
        return find_device(request.device).torch_device.type

    if request.settings is None:
        return settings_here(kind)
    if request.settings:
        require_settings(request.settings, kind())
    return request.settings


class _Judge:
    """A process that judges one check after another, and keeps the reference that it has in common with the next."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._process = IsolatedProcess(has_children=True)
        self._last: _Check | None = None

    def keeps_reference_of(self, check: _Check) -> bool:
        """Whether it has judged beside the same reference last."""
        return self._last is not None and self._last.goes_with(check)

    def outcome(self, check: _Check) -> CheckReport | UserError:
        """Return the report of a check, or its error.

        Raises:
            InternalError: an error of tunebench, which is nobody's verdict.
        """
        running = _Running(check, self._show)
        if not (self._process.alive and check.keeps_reference and self.keeps_reference_of(check)):
            self._process.start()
        self._last = check
        return running.outcome(self._process)

    def kill(self) -> None:
        """End its process for good, whatever it does."""
        self._process.kill()

    def close(self) -> None:
        """End its process."""
        self._process.close()


class _Rows:
    """Checks that wait, those beside one reference in a row."""

    def __init__(self, checks: Sequence[_Check]) -> None:
        self._rows: list[list[_Check]] = []
        for one in checks:
            row = next((row for row in self._rows if row[0].goes_with(one)), None)
            if row is None:
                self._rows.append([one])
            else:
                row.append(one)
        self._rows = [[replace(one, keeps_reference=len(row) > 1) for one in row] for row in self._rows]
        self._untouched = list(self._rows)
        self._taking = threading.Lock()

    def next_for(self, judge: _Judge) -> _Check:
        """Take a check out of the row that a judge has begun, else out of one that nobody has, or the longest."""
        with self._taking:
            rows = [row for row in self._rows if row]
            row = next((row for row in rows if judge.keeps_reference_of(row[0])), None)
            if row is None:
                row = self._untouched.pop(0) if self._untouched else max(rows, key=len)
            return row.pop(0)


class _Running:
    """A check at work."""

    def __init__(self, check: _Check, show: Show) -> None:
        self.check = check
        self._show = show
        self._subject = Subject("", "cpu", None, ())
        self._stages: list[Stage] = []
        self._refusals: list[Refusal] = []
        self._asked = "before the first question"
        self._started = time.perf_counter()

    def outcome(self, process: IsolatedProcess) -> CheckReport | UserError:
        """Have it judged in a process; see `_Judge.outcome`."""
        check = self.check
        judge = _judge_file if check.is_file else _judge_kernel
        try:
            verdict = process.ask(check.request.seconds, judge, check, listen=self._hear)
        except TunebenchError as error:
            process.close()  # the reference's process may be what has failed
            if isinstance(error, UserError):
                return error
            if isinstance(error, RaisedError) and check.is_file:  # none of its code runs there
                raise InternalError(str(error)) from error
            if not isinstance(error, IsolationError):
                raise
            verdict = self._verdict_without_an_answer(error)
        return _report(check, self._subject, verdict, self._refusals, time.perf_counter() - self._started)

    def _hear(self, message: object) -> None:
        if isinstance(message, Subject):
            self._subject = message
            return
        assert isinstance(message, Question | Stage)
        if isinstance(message, Question):
            self._asked = str(message)
        else:
            self._stages.append(message)
            if isinstance(message, Refusal):
                self._refusals.append(message)
        self._show(self.check.request, self.check.mode, message)

    def _verdict_without_an_answer(self, error: IsolationError) -> Verdict:
        seconds = max(0.0, time.perf_counter() - self._started - sum(stage.seconds for stage in self._stages))
        self._hear(Refusal("process", False, seconds, f"{error}, {self._asked}"))
        stages = tuple(Stage(one.name, one.passed, one.seconds, one.detail) for one in self._stages)
        return Verdict(False, stages, 0.0, None, self._refusals[0].detail)


def _report(
    check: _Check, subject: Subject, verdict: Verdict, refusals: Sequence[Refusal], seconds: float
) -> CheckReport:
    require = check.request.require or (Claim.PROBLEM if check.is_file else Claim.DROP_IN)
    return CheckReport(
        replace(check.request, require=require),
        check.mode,
        subject,
        not check.is_file,
        verdict,
        tuple(refusals),
        seconds,
    )


def _unasked(check: _Check, error: UserError) -> CheckReport:
    refusal = Refusal("question", False, 0.0, str(error))
    verdict = Verdict(False, (Stage(refusal.name, False, 0.0, refusal.detail),), 0.0, None, refusal.detail)
    return _report(check, Subject("", "cpu", None, ()), verdict, [refusal], 0.0)


# What follows runs in the process.


def _judge_file(check: _Check) -> Verdict:
    from tunebench.studies.checking.on_file import verdict_on_file

    return verdict_on_file(
        check.request,
        check.mode,
        *check.files,
        keeps_reference=check.keeps_reference,
        side_by_side=check.is_alone,
    )


def _judge_kernel(check: _Check) -> Verdict:
    from tunebench.studies.checking.on_kernel import verdict_on_kernel

    return verdict_on_kernel(check.request, check.mode)
