"""The gate alone: configurations of kernels, and anybody's files with a `ModelNew`, one after another or side by side.

Nothing here imports torch: what runs a model, or judges one, does so in processes of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from tunebench.kernels.runtime.registry import load_model
from tunebench.studies.checking import PRELOADED
from tunebench.studies.checking.gpu_mode import in_kernelbench_form, is_gpu_mode
from tunebench.studies.checking.report import CheckReport, Subject
from tunebench.studies.checking.request import CheckRequest
from tunebench.studies.checking.submissions import TextFile, is_submission
from tunebench.tuner.device import any_gpu, find_device
from tunebench.tuner.errors import InternalError, KernelFolderError, UnknownNameError, UserError
from tunebench.tuner.files import path_named, read_text
from tunebench.tuner.gate.refusal import Claim, Question, Refusal
from tunebench.tuner.isolation import IsolatedProcess, IsolationError, RaisedError, start_forkserver
from tunebench.tuner.kernel import Mode
from tunebench.tuner.result import Stage, Verdict
from tunebench.tuner.settings import require_settings, settings_here

_FILE_MODES = (Mode.EVAL, Mode.TRAIN)

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
    """

    request: CheckRequest
    is_file: bool
    mode: Mode
    files: tuple[TextFile, ...] = ()


def check(request: CheckRequest, show: Show = show_nothing) -> list[CheckReport]:
    """Run the whole gate in a process of its own, one report for each mode; a crash is a refusal.

    Raises:
        UserError: the request names what is not there, or the reference cannot be run.
    """
    reports = []
    for one in _checks(request):
        outcome = _Running(one, show).outcome()
        if isinstance(outcome, UserError):
            raise outcome
        reports.append(outcome)
    return reports


def check_all(requests: Sequence[CheckRequest], jobs: int = 1, show: Show = show_nothing) -> Iterator[CheckReport]:
    """Check many, so many at a time; their reports as they come, in the order in which they end.

    What cannot be asked, such as a file whose reference does not run, is refused at the stage `question`.

    Raises:
        InternalError: once all others have ended, an error of tunebench in one of them.
    """
    checks: list[_Check] = []
    for request in requests:
        try:
            checks += _checks(request)
        except UserError as error:
            yield _unasked(_Check(request, is_submission(request.target), Mode.TRAIN), error)
    running = [_Running(one, show) for one in checks]
    wrong: list[InternalError] = []
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        asked = {pool.submit(one.outcome): one.check for one in running}
        try:
            for ended in as_completed(asked):
                if isinstance(raised := ended.exception(), InternalError):
                    wrong.append(raised)
                    continue
                outcome = ended.result()
                yield _unasked(asked[ended], outcome) if isinstance(outcome, UserError) else outcome
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for one in running:
                one.process.kill()
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
        start_forkserver(PRELOADED)
        request = _completed(request)
        legal = usual = load_model(request.target).kernel.modes
    if request.architecture is not None:
        any_gpu(request.architecture)
    for mode in request.modes or ():
        if mode not in legal:
            raise UnknownNameError(f"mode of {request.target}", mode, legal)
    modes = [Mode(mode) for mode in request.modes or ()]
    start_forkserver(PRELOADED)
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


class _Running:
    """A check whose process is at work, or will be."""

    def __init__(self, check: _Check, show: Show) -> None:
        self.check = check
        self._show = show
        self._subject = Subject("", "cpu", None, ())
        self._stages: list[Stage] = []
        self._refusals: list[Refusal] = []
        self._asked = "before the first question"
        self.process = IsolatedProcess(has_children=check.is_file)

    def outcome(self) -> CheckReport | UserError:
        """Return the report of the check, or its error.

        Raises:
            InternalError: an error of tunebench, which is nobody's verdict.
        """
        check, started = self.check, time.perf_counter()
        with closing(self.process) as process:
            process.start()
            judge = _judge_file if check.is_file else _judge_kernel
            try:
                verdict = process.ask(check.request.seconds, judge, check, listen=self._hear)
            except RaisedError as error:
                if check.is_file:  # none of its code runs there
                    raise InternalError(str(error)) from error
                verdict = self._verdict_without_an_answer(error, time.perf_counter() - started)
            except IsolationError as error:
                verdict = self._verdict_without_an_answer(error, time.perf_counter() - started)
            except UserError as error:
                return error
        return _report(check, self._subject, verdict, self._refusals, time.perf_counter() - started)

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

    def _verdict_without_an_answer(self, error: IsolationError, seconds: float) -> Verdict:
        seconds -= sum(stage.seconds for stage in self._stages)
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

    return verdict_on_file(check.request, check.mode, *check.files)


def _judge_kernel(check: _Check) -> Verdict:
    from tunebench.studies.checking.on_kernel import verdict_on_kernel

    return verdict_on_kernel(check.request, check.mode)
