"""One problem of the exam: tuned, timed beside eager and torch.compile, evaluated by KernelBench."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from tests.benchmarks.exam.problems import ExamProblem

from tunebench.kernels.runtime.registry import load_model
from tunebench.studies.checking.bench import TUNED, BenchCase, Ceilings, measure_case, measure_ceilings
from tunebench.studies.faces.api import tune
from tunebench.tuner.configuration import Value
from tunebench.tuner.device import find_device
from tunebench.tuner.errors import KernelFolderError, TunebenchError
from tunebench.tuner.fork_server import start_forkserver
from tunebench.tuner.isolation import IsolatedProcess, run_isolated
from tunebench.tuner.kernel import Mode, prepare_model
from tunebench.tuner.result import Baseline, TrialStatus
from tunebench.tuner.timing.torch_compile import compile_reference, end_compilers

if TYPE_CHECKING:
    from tests.benchmarks.kernelbench import Verdict

_SHARE_OF_CHOICES = 0.05
"""Building what torch.compile chooses from may take this share of the device's memory, while another has its turn."""

STAGE_SECONDS = 150.0
"""The longest that tuning, timing or evaluating one problem may take."""

_Made = TypeVar("_Made")
_Answer = TypeVar("_Answer")

_DRAWN_ON_THE_GPU = """

from tests.benchmarks.exam.measure import on_the_gpu

get_inputs = on_the_gpu(get_inputs)
Model.__init__ = on_the_gpu(Model.__init__)
"""
"""What stands behind a reference's text: drawing 2^31 numbers on a CPU takes ten seconds, and KernelBench does it seven
times a problem."""

_SUBMISSION = """import tunebench
from tests.benchmarks.exam.measure import on_the_gpu

tunebench.set_policy(wait=True)  # for the build, in the first call
ModelNew = on_the_gpu(tunebench.load({path!r}))
"""


@dataclass(frozen=True)
class Budget:
    """What one problem may take.

    Attributes:
        tune_seconds, trials: of a study in all, whichever ends first. The first trial goes through the whole gate: on
            an H200 that alone takes two to five seconds.
        bench_seconds: of timing beside eager and torch.compile.
        compiled: whether torch.compile is among those timed, which takes ten seconds and more.
        tunables: the values that studies may choose from, where these are not all.
    """

    tune_seconds: float = 20.0
    trials: int = 40
    bench_seconds: float = 2.0
    compiled: bool = True
    tunables: Mapping[str, Sequence[Value]] = field(default_factory=dict)


@dataclass
class Row:
    """What the exam says of one problem; None where a stage failed, and `notes` say why.

    Attributes:
        group: that the problem is of.
        block: what the kernel is made of; empty where it is to be written by hand.
        mode: the one that KernelBench calls: `train` where that makes a difference.
        sizes: those changed for tuning and timing.
        tunables: those whose values were restricted.
        trials, correct_trials: of the search.
        refusals: of its variants, the first line of each kind and how often it came.
        over_eager, over_compile: median of per-round ratios, with its 99 % interval.
        compile_is_right: the error of torch.compile's own answer is within the gate's bound.
        tuned_ms: the tuned model's median.
        share, bound: of the roofline, and by which rate.
        error: the largest error against float64, as a multiple of eager's own.
        right: seeds that KernelBench finds right, of five.
        kernelbench_eager_ms, kernelbench_tuned_ms: KernelBench's own times, at its own sizes.
        difference: the largest, of the seeds that were wrong.
        seconds, held: by stage, and how many of them with the device.
        spent, bench_spent: seconds of the study, and of the timing beside eager, by phase.
    """

    name: str
    group: str
    block: str = ""
    mode: str = ""
    sizes: dict[str, int | float] = field(default_factory=dict)
    tunables: dict[str, list[Value]] = field(default_factory=dict)
    trials: int = 0
    correct_trials: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    configuration: dict[str, Any] | None = None
    tier: str = ""
    over_eager: list[float] | None = None
    over_compile: list[float] | None = None
    compile_is_right: bool | None = None
    tuned_ms: float | None = None
    share: float | None = None
    bound: str = ""
    error: float | None = None
    right: int | None = None
    kernelbench_eager_ms: float | None = None
    kernelbench_tuned_ms: float | None = None
    difference: float | None = None
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    held: dict[str, float] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)
    bench_spent: dict[str, float] = field(default_factory=dict)


class _Counted:
    """A turn, and the seconds that it was taken for."""

    def __init__(self, turn: AbstractContextManager[Any]) -> None:
        self._turn = turn
        self._began = self.seconds = 0.0

    def __enter__(self) -> None:
        self._turn.__enter__()
        self._began = time.monotonic()

    def __exit__(self, *raised: Any) -> None:
        self._turn.__exit__(*raised)
        self.seconds += time.monotonic() - self._began


def on_the_gpu(make: Callable[..., _Made]) -> Callable[..., _Made]:
    """The function, whose tensors are drawn on the GPU."""

    def run(*arguments: Any, **named: Any) -> _Made:
        with torch.device("cuda"):
            return make(*arguments, **named)

    return run


def ceilings_of(device: str | None) -> Ceilings:
    """The device's rates, measured once for all problems."""
    start_forkserver([__name__])
    return run_isolated(STAGE_SECONDS, measure_ceilings, device)


def examine(
    problem: ExamProblem,
    budget: Budget,
    device: str | None,
    checkout: Path | None,
    ceilings: Ceilings,
    turn: AbstractContextManager[Any],
) -> Row:
    """Tune, time and evaluate one problem; whatever fails is a note.

    Args:
        checkout: of KernelBench; None leaves its evaluation out.
        turn: to use the device.
    """
    start_forkserver([__name__])
    row = Row(problem.name, problem.case.group)
    counted = _Counted(turn)
    stages: list[tuple[str, Callable[[], None]]] = [
        ("new", partial(_write, row, problem, device)),
        ("tune", partial(_tune, row, problem, budget, device, counted)),
        ("bench", partial(_bench, row, problem, budget, device, ceilings, counted)),
    ]
    if checkout is not None and problem.is_kernelbenchs:
        stages.append(("kernelbench", partial(_evaluate, row, problem, checkout, counted)))
    for name, stage in stages:
        began = time.monotonic()
        try:
            stage()
        except TunebenchError as error:
            row.notes.append(f"{name}: {error}")
            if not row.mode:
                break
        finally:
            row.seconds[name] = round(time.monotonic() - began, 1)
            row.held[name], counted.seconds = round(counted.seconds, 1), 0.0
    return row


def _write(row: Row, problem: ExamProblem, device: str | None) -> None:
    problem.write()
    row.block, row.sizes = problem.block, problem.sizes(find_device(device).memory_bytes)
    if not row.block:
        raise KernelFolderError("the kernel is to be written by hand")


def _tune(
    row: Row, problem: ExamProblem, budget: Budget, device: str | None, turn: AbstractContextManager[Any]
) -> None:
    modes = load_model(str(problem.path)).kernel.modes
    row.mode = (Mode.TRAIN if Mode.TRAIN in modes else modes[0]).value
    with turn:
        (report,) = tune(
            problem.path,
            trials=budget.trials,
            seconds=budget.tune_seconds,
            sizes=row.sizes,
            modes=[row.mode],
            device=device,
            tunables=budget.tunables,
        )
    row.tunables = {name: list(values) for name, values in budget.tunables.items()}
    row.trials, counts = report.outcome.trials, report.outcome.counts
    row.correct_trials = counts.get(TrialStatus.CORRECT, 0) + counts.get(TrialStatus.PRUNED, 0)
    row.refusals = dict(report.outcome.refusals)
    row.spent = {phase.value: round(seconds, 2) for phase, seconds in report.spent.seconds.items()}
    if report.outcome.best is None:
        why = "; ".join(report.outcome.refusals)
        row.notes.append(f"tune: no configuration is right: {why}")


def _bench(
    row: Row,
    problem: ExamProblem,
    budget: Budget,
    device: str | None,
    ceilings: Ceilings,
    turn: AbstractContextManager[Any],
) -> None:
    case = BenchCase(
        str(problem.path),
        Mode(row.mode),
        row.sizes,
        device=device,
        compiled=(Baseline.COMPILED,) if budget.compiled and device != "cpu" else (),
        seconds=budget.bench_seconds,
    )
    if case.compiled:
        with contextlib.suppress(TunebenchError):  # it is told by the turn that fails
            run_isolated(STAGE_SECONDS, _build_choices, case)
    result = _in_turn(turn, partial(_prepare, case), partial(measure_case, case, ceilings))
    row.tier = result.tier
    row.configuration = None if result.configuration is None else dict(result.configuration)
    for baseline, ratio in result.speedups.items():
        interval = [round(value, 4) for value in (ratio.value, ratio.low, ratio.high)]
        if baseline is Baseline.REFERENCE:
            row.over_eager = interval
        elif baseline is Baseline.COMPILED:
            row.over_compile, row.compile_is_right = interval, baseline not in result.wrong
    row.tuned_ms = result.timings[TUNED].median_ms
    row.share, row.bound = result.share, result.bound
    row.error = result.errors[TUNED].multiple_of_reference
    row.bench_spent = {phase.value: round(seconds, 2) for phase, seconds in result.spent.items()}
    row.notes += [f"bench: {note}" for note in result.notes]
    if not result.right:
        row.notes.append("bench: the error is beyond the gate's bound")


def _evaluate(row: Row, problem: ExamProblem, checkout: Path, turn: AbstractContextManager[Any]) -> None:
    verdict = _in_turn(turn, partial(_import_evaluation, checkout), partial(_verdict, problem, checkout))
    row.right = verdict.correct
    row.kernelbench_eager_ms, row.kernelbench_tuned_ms = verdict.reference_ms, verdict.new_ms
    row.difference = verdict.largest_difference
    if verdict.error:
        row.notes.append(f"kernelbench: {verdict.error.splitlines()[0]}")


def _in_turn(turn: AbstractContextManager[Any], before: Callable[[], None], ask: Callable[[], _Answer]) -> _Answer:
    """Ask in a process of its own, which has its turn when it has imported what it needs, and a context there."""
    with closing(IsolatedProcess()) as process:
        process.start()
        process.ask(STAGE_SECONDS, before)
        process.ask(STAGE_SECONDS, _make_context)
        with turn:
            return process.ask(STAGE_SECONDS, ask)


def _make_context() -> None:
    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")


def _prepare(case: BenchCase) -> None:
    load_model(case.kernel)
    if case.compiled:
        # It asks the driver for a GPU, as the server that processes are forked from must not.
        importlib.import_module("torch._inductor.compile_fx")
        importlib.import_module("torch._inductor.async_compile").AsyncCompile.wait_pool_ready()


def _build_choices(case: BenchCase) -> None:
    """Have Triton build what max-autotune chooses from, so that a turn is for measuring; its cache is shared.

    Here nothing is measured, all choices are equal, and what is chosen stays in a cache of Inductor's own.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        _prepare(case)
        clock = type(importlib.import_module("torch._inductor.runtime.benchmarking").benchmarker)
        clock.benchmark_gpu = lambda *_arguments, **_named: 1.0
        torch.cuda.set_per_process_memory_fraction(_SHARE_OF_CHOICES)
        reference, device = load_model(case.kernel).kernel.reference(case.sizes), find_device(case.device).torch_device
        compile_reference(prepare_model(reference, case.mode, device), reference.make_inputs(0, device))
        end_compilers()


def _import_evaluation(checkout: Path) -> None:
    sys.path.insert(0, str(checkout / "src"))
    importlib.import_module("kernelbench.eval")


def _verdict(problem: ExamProblem, checkout: Path) -> Verdict:
    # What it imports asks the driver for a GPU, after which a process can have no children that use one.
    from tests.benchmarks.kernelbench import Submission, evaluated

    text = _SUBMISSION.format(path=str(problem.path))
    submission = Submission(problem.name, "ModelNew", text, problem.case.text + _DRAWN_ON_THE_GPU)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        return evaluated(checkout, submission, folder, contextlib.nullcontext())


def values_of(row: Row) -> dict[str, Any]:
    """A row as plain values."""
    return asdict(row)


def environment(folder: Path, lane: int, cores: int) -> dict[str, str]:
    """Return the variables of a lane's processes: its own results, caches that all share, short final comparisons.

    torch.compile's caches are shared, so that what max-autotune measured of a product's shape is not measured again for
    the next problem with the same product.
    """
    return {
        "TUNEBENCH_DB": str(folder / f"exam{lane}.db"),
        "TUNEBENCH_CONFIRM_SECONDS": os.environ.get("TUNEBENCH_CONFIRM_SECONDS", "1.5"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": str(cores),
    }
