"""Studies on the CPU, with the real compiler, gate and clock, or from a table where these are not what is asked about.

Nothing here depends on how fast anything is.
"""

import math
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from memory_log import MemoryLog
from sample_kernel import WriteKernel
from short_studies import ALL
from table_evaluator import AtOnce, TableEvaluator

from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.build import Build
from tunebench.tuner.compile.building import BuildQueue
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import find_device
from tunebench.tuner.errors import OutOfTimeError
from tunebench.tuner.gate.battery import of_full_battery, proven
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Problem
from tunebench.tuner.result import (
    CONTROL,
    Baseline,
    Comparison,
    ErrorFigures,
    Ratio,
    Stage,
    TrialResult,
    TrialStatus,
    Verdict,
)
from tunebench.tuner.search.sampler import PoolSampler
from tunebench.tuner.search.strategies import make_sampler
from tunebench.tuner.search.warm_start import WarmStart
from tunebench.tuner.study.account import Activity
from tunebench.tuner.study.evaluate import NOBODY, Finalist, Leaders, LocalEvaluator
from tunebench.tuner.study.executor import LocalExecutor
from tunebench.tuner.study.outcome import Budget, Ending, Outcome, Phase, Progress
from tunebench.tuner.study.plan import MOST_COMPILE_SECONDS, SLACK_SECONDS, Plan
from tunebench.tuner.study.study import StudyRun
from tunebench.tuner.study.subject import Subject

CPU = find_device("cpu")
PROBLEM = Problem({"n": 2112})


pytestmark = pytest.mark.usefixtures("short_studies")


def run(
    factory: type[TunedModule],
    log: MemoryLog,
    trials: int,
    sampler: str = "random",
    report: Callable[[Progress], None] = lambda _: None,
    evaluators: int = 1,
) -> Outcome:
    kernel = factory.kernel
    subjects = [Subject.prepare(kernel, factory, kernel.reference(), Mode.EVAL, CPU) for _ in range(evaluators)]
    space = kernel.space.enumerate(subjects[0].problem, CPU)
    asked = [LocalEvaluator(subject, compiler_for(CPU)) for subject in subjects]
    study = StudyRun(
        LocalExecutor(kernel, asked, BuildQueue(compiler_for(CPU))), space, make_sampler(sampler, space, 3), log
    )
    return study.run(Budget(trials), report)


def tabled(
    factory: type[TunedModule],
    log: MemoryLog,
    trials: int,
    sampler: str = "random",
    report: Callable[[Progress], None] = lambda _: None,
    evaluators: int = 1,
    warm_starts: Sequence[WarmStart] = (),
) -> Outcome:
    """The same from a table of times: what is tried when, and what becomes of it."""
    kernel = factory.kernel
    space = kernel.space.enumerate(PROBLEM, CPU)
    steps = [step.name for step in ALL]

    def time_ms(configuration: Configuration) -> float:
        return 1 + space.require(configuration) * 7 % 33 / 33

    asked = [TableEvaluator(time_ms, PROBLEM, steps) for _ in range(evaluators)]
    executor = LocalExecutor(kernel, asked, BuildQueue(AtOnce()))
    study = StudyRun(executor, space, make_sampler(sampler, space, 3), log, tuple(warm_starts))
    return study.run(Budget(trials), report)


def keys(log: MemoryLog) -> list[str]:
    return [result.configuration.key for result in log.results]


class Rounding(TableEvaluator):
    """Refuses one variety for an error of rounding."""

    def evaluate(self, configuration: Configuration, build: Build, leaders: Leaders = NOBODY) -> TrialResult:
        """See `LocalEvaluator.evaluate`."""
        if configuration["variety"] != 1:
            return super().evaluate(configuration, build, leaders)
        errors = ErrorFigures(1.0, 1.5e-3, 3e-4, 1e-6, 1e-7, first_wrong_index=7)
        verdict = Verdict(False, (Stage("values", False, 0.0, "off"),), 1e-4, errors, "off")
        return TrialResult(configuration, TrialStatus.CORRECTNESS, build, verdict, message="off")


def test_an_exhaustive_search_tries_what_rounds_as_a_refused_one_does(write_kernel: WriteKernel) -> None:
    kernel, log = write_kernel().kernel, MemoryLog()
    space = replace(kernel.space, rounding=("variety",)).enumerate(PROBLEM, CPU)
    evaluator = Rounding(lambda one: 1.0 + space.require(one) / 100, PROBLEM, [step.name for step in ALL])
    executor = LocalExecutor(kernel, [evaluator], BuildQueue(AtOnce()))
    outcome = StudyRun(executor, space, make_sampler("exhaustive", space, 3), log).run(Budget(len(space)))
    assert len(log.results) == len(space) and outcome.left_out == 0 and outcome.proven


def test_what_rounds_as_a_refused_one_does_is_not_tried(write_kernel: WriteKernel) -> None:
    kernel, log = write_kernel().kernel, MemoryLog()
    space = replace(kernel.space, rounding=("variety",)).enumerate(PROBLEM, CPU)
    alike = sum(one["variety"] == 1 for one in space)
    for trials in (3, len(space)):  # the second goes on where the first has ended
        evaluator = Rounding(lambda one: 1.0 + space.require(one) / 100, PROBLEM, [step.name for step in ALL])
        executor = LocalExecutor(kernel, [evaluator], BuildQueue(AtOnce()))
        outcome = StudyRun(executor, space, make_sampler("gp", space, 3), log).run(Budget(trials))
    refused = [one for one in log.results if one.status is TrialStatus.CORRECTNESS]
    assert len(refused) == 1 and alike > 1 and outcome.left_out == alike - 1
    assert len(log.results) == len(space) - outcome.left_out and outcome.ending is Ending.EXHAUSTED
    assert not outcome.proven


@pytest.mark.parametrize("ends", [False, True])
def test_behind_a_beginning_that_rounds_too_far_the_default_is_third(write_kernel: WriteKernel, *, ends: bool) -> None:
    kernel, log = write_kernel().kernel, MemoryLog()
    space = replace(kernel.space, rounding=("variety",)).enumerate(PROBLEM, CPU)
    default = space[space.default]
    begun = [space[space.require({**default, "variety": variety})] for variety in (1, 0, 2)]
    warm_starts = [WarmStart(one, "known") for one in begun]
    for trials in (1, 3) if ends else (3,):  # the second goes on where the first has ended
        evaluator = Rounding(lambda one: 1.0 + space.require(one) / 100, PROBLEM, [step.name for step in ALL])
        executor = LocalExecutor(kernel, [evaluator], BuildQueue(AtOnce()))
        StudyRun(executor, space, make_sampler("gp", space, 3), log, tuple(warm_starts)).run(Budget(trials))
    assert begun[1] == default and keys(log) == [begun[number].key for number in (0, 2, 1)]


def test_the_default_comes_first_and_nothing_twice(write_kernel: WriteKernel) -> None:
    log = MemoryLog()
    outcome = tabled(write_kernel(), log, trials=12)
    assert dict(log.results[0].configuration) == {"block_size": 64, "blocks": 2, "variety": 0}
    assert len(set(keys(log))) == len(log.results) == outcome.trials == 12
    assert outcome.ending is Ending.BUDGET
    assert not outcome.proven


@pytest.mark.slow
def test_every_correct_trial_has_its_proof_and_its_samples(write_kernel: WriteKernel) -> None:
    log = MemoryLog()
    outcome = run(write_kernel(), log, trials=6)
    assert sum(outcome.counts.values()) == 6
    for result in log.results:
        assert result.status.timed
        assert result.verdict is not None and result.verdict.passed
        assert result.measurement is not None and len(result.measurement.samples_ms) >= 3
        assert result.build is not None and result.build.code


@pytest.mark.slow
def test_the_comparison_is_against_the_reference_and_the_default(write_kernel: WriteKernel) -> None:
    log = MemoryLog()
    outcome = run(write_kernel(), log, trials=5)
    assert log.comparison is outcome.comparison is not None
    assert set(log.comparison.samples_ms) == {"best", CONTROL, *set(Baseline) - {Baseline.COMPILED}}
    rounds = {len(samples) for samples in log.comparison.samples_ms.values()}
    assert rounds == {ratio.rounds for ratio in log.comparison.speedups.values()}
    assert log.comparison.best in [result.configuration for result in log.results]


def test_a_whole_space_is_exhausted_and_proven(write_kernel: WriteKernel) -> None:
    log = MemoryLog()
    outcome = tabled(write_kernel(), log, trials=500, sampler="exhaustive")
    assert outcome.ending is Ending.EXHAUSTED
    assert outcome.proven
    assert outcome.trials == outcome.space_size == len(set(keys(log)))


@pytest.mark.parametrize("sampler", ["random", "exhaustive"])
def test_a_resumed_study_tries_what_an_undisturbed_one_would(write_kernel: WriteKernel, sampler: str) -> None:
    factory = write_kernel()
    whole, parts = MemoryLog(), MemoryLog()
    tabled(factory, whole, trials=14, sampler=sampler)
    for trials in (1, 5, 6, 14):
        tabled(factory, parts, trials, sampler)
    assert keys(parts) == keys(whole)


def test_going_on_with_a_finished_study_adds_nothing(write_kernel: WriteKernel) -> None:
    factory, log = write_kernel(), MemoryLog()
    tabled(factory, log, trials=4)
    first = keys(log)
    outcome = tabled(factory, log, trials=4)
    assert keys(log) == first
    assert outcome.comparison is not None


def test_an_interrupt_keeps_everything_done(write_kernel: WriteKernel) -> None:
    factory, log = write_kernel(), MemoryLog()

    def interrupt(progress: Progress) -> None:
        if progress.done == 3:
            raise KeyboardInterrupt

    outcome = tabled(factory, log, trials=10, report=interrupt)
    assert outcome.ending is Ending.INTERRUPTED
    assert outcome.trials == len(log.results) == 3
    assert outcome.comparison is None
    whole = MemoryLog()
    tabled(factory, whole, trials=10)
    tabled(factory, log, trials=10)
    assert keys(log) == keys(whole)


@pytest.mark.parametrize("sampler", ["gp", "tpe", "random", "exhaustive"])
def test_what_another_run_records_meanwhile_is_taken_in_and_not_tried_again(
    write_kernel: WriteKernel, sampler: str
) -> None:
    factory, log = write_kernel(), MemoryLog()
    seen = []

    def another(progress: Progress) -> None:
        if progress.phase is not None:
            return
        seen.append(progress.done)
        if progress.done in (0, 4):
            tabled(factory, log, progress.done + 3, sampler)

    outcome = tabled(factory, log, 12, sampler, another)
    # Its default, and whatever else it had in flight, was there before it came to it.
    assert seen == [0, 4, 8, 9, 10, 11, 12]
    assert outcome.trials == len(log.results) == len(set(keys(log))) == 12
    assert (outcome.ending, outcome.repeats) == (Ending.BUDGET, 0)
    assert outcome.best is not None
    times = [result.measurement.median_ms for result in log.results if result.measurement]
    assert outcome.best.median_ms == min(times)


def test_a_configuration_that_two_evaluate_at_once_is_recorded_once(write_kernel: WriteKernel) -> None:
    class OthersAreFaster(MemoryLog):
        def record(self, result: TrialResult) -> int | None:
            if len(self.results) in (1, 4):
                super().record(result)
            return super().record(result)

    log = OthersAreFaster()
    outcome = tabled(write_kernel(), log, 8, "gp")
    assert outcome.trials == len(set(keys(log))) == 8
    assert outcome.repeats == 2
    assert log.comparison is not None


def test_of_several_devices_none_waits_for_what_the_driver_does(
    write_kernel: WriteKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    def noted(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def note(*arguments: object, **named: object) -> object:
            happened.append(name)
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, note)

    for owner, name in ((MemoryLog, "record"), (PoolSampler, "ask"), (LocalExecutor, "begin")):
        noted(owner, name)
    trials = 10
    for evaluators in (1, 2):
        happened.clear()
        tabled(write_kernel(), MemoryLog(), trials, evaluators=evaluators)
        del happened[[place for place, name in enumerate(happened) if name == "record"][trials - 1] + 1 :]
        begun = [happened[:place].count("begin") for place, name in enumerate(happened) if name == "record"]
        if evaluators == 1:
            assert begun == list(range(1, trials + 1))  # the next proposal is made of all results
            continue
        assert begun[0] == 1  # by what clock the first is timed, the others are
        # Beside what is recorded, and is being recorded, each of the two is at one.
        assert all(so_far >= min(recorded + 1 + 2, trials) for recorded, so_far in enumerate(begun[1:], 1))


def test_runs_that_share_a_space_exhaust_it(write_kernel: WriteKernel) -> None:
    factory, log = write_kernel(), MemoryLog()

    def another(progress: Progress) -> None:
        if progress.done == 5:
            tabled(factory, log, 15, "exhaustive")

    outcome = tabled(factory, log, 500, "exhaustive", another)
    assert outcome.ending is Ending.EXHAUSTED and outcome.proven
    assert len(log.results) == len(set(keys(log))) == outcome.space_size


@pytest.mark.slow
def test_variants_that_fail_are_rows_and_the_study_goes_on(write_kernel: WriteKernel) -> None:
    factory = write_kernel(
        source={
            'extern "C"': 'static_assert(variety != 1, "variety 1 is not built");\nextern "C"',
            "x[i] * weight[0]": "x[i] * weight[0] * (variety == 2 ? 2 : 1)",
        }
    )
    log = MemoryLog()
    outcome = run(factory, log, trials=500, sampler="exhaustive")
    by_variety: dict[object, set[TrialStatus]] = {}
    for result in log.results:
        by_variety.setdefault(result.configuration["variety"], set()).add(result.status)
    assert by_variety[1] == {TrialStatus.COMPILE}
    assert by_variety[2] == {TrialStatus.CORRECTNESS}
    assert all(status.timed for status in by_variety[0])
    failed = next(result for result in log.results if result.status is TrialStatus.COMPILE)
    assert "variety 1 is not built" in failed.message
    assert outcome.comparison is not None
    assert outcome.comparison.best["variety"] == 0
    assert any(reason.startswith("compile: ") for reason in outcome.refusals)


@pytest.mark.slow
def test_a_launch_that_is_refused_is_a_row(write_kernel: WriteKernel) -> None:
    threads = "block_size * (64 if plan.configuration['variety'] else 1)"
    factory = write_kernel(model={"threads=block_size": f"threads={threads}"})
    log = MemoryLog()
    run(factory, log, trials=500, sampler="exhaustive")
    refused = [result for result in log.results if result.configuration["variety"] != 0]
    assert {result.status for result in refused} == {TrialStatus.RUNTIME}
    assert all(re.search("block", result.message) for result in refused)


def test_a_study_in_which_nothing_is_correct_ends_without_a_best(write_kernel: WriteKernel) -> None:
    log = MemoryLog()
    outcome = run(write_kernel(source={"* weight[0]": "+ weight[0]"}), log, trials=4)
    assert outcome.counts == {TrialStatus.CORRECTNESS: 4}
    assert outcome.best is None
    assert outcome.comparison is None


def test_progress_counts_up_to_the_plan(write_kernel: WriteKernel) -> None:
    seen: list[Progress] = []
    tabled(write_kernel(), MemoryLog(), trials=5, report=seen.append)
    assert [(progress.done, progress.phase) for progress in seen] == [
        *((done, None) for done in range(6)),
        (5, Phase.COMPARING),
        (5, Phase.CONFIRMING),
    ]
    assert {progress.planned for progress in seen} == {5}
    assert seen[0].last is None and isinstance(seen[5].last, TrialResult)
    assert seen[0].best_ms is None and seen[-1].best_ms is not None
    assert seen[-1].default_ms is not None and seen[-1].default_ms >= seen[-1].best_ms
    assert seen[-1].seconds_left == 0.0


def test_warm_start_configurations_come_after_the_default(write_kernel: WriteKernel) -> None:
    factory, log = write_kernel(), MemoryLog()
    warm_starts = [
        WarmStart(Configuration({"block_size": 32, "blocks": 4, "variety": 2}), "trial 3, elsewhere"),
        WarmStart(Configuration({"block_size": 128, "blocks": 1, "variety": 1}), "trial 9, elsewhere"),
        WarmStart(Configuration({"block_size": 999}), "not valid here"),
    ]
    for trials in (2, 5):
        tabled(factory, log, trials, warm_starts=warm_starts)
    assert [result.configuration for result in log.results[1:3]] == [one.configuration for one in warm_starts[:2]]
    assert len(log.results) == 5
    default, log = log.results[0].configuration, MemoryLog()
    tabled(factory, log, 3, warm_starts=[*warm_starts, WarmStart(default, "the default")])
    assert [result.configuration for result in log.results] == [
        *(one.configuration for one in warm_starts[:2]),
        default,
    ]


@pytest.mark.slow
def test_a_slow_default_is_timed_to_the_end_and_compared(write_kernel: WriteKernel) -> None:
    slow = "        y = torch.empty_like(x)\n        plan.configuration['variety'] or __import__('time').sleep(0.01)\n"
    factory, log = write_kernel(model={"        y = torch.empty_like(x)\n": slow}), MemoryLog()
    kernel = factory.kernel
    subject = Subject.prepare(kernel, factory, kernel.reference(), Mode.EVAL, CPU)
    space = kernel.space.enumerate(subject.problem, CPU)
    default = space[space.default]
    starts = [WarmStart(one, "") for one in (Configuration({**default, "variety": 1}), default)]
    executor = LocalExecutor(kernel, [LocalEvaluator(subject, compiler_for(CPU))], BuildQueue(compiler_for(CPU)))
    outcome = StudyRun(executor, space, make_sampler("random", space, 3), log, starts).run(Budget(2))
    fast, slow_one = log.results
    assert [one.status for one in log.results] == [TrialStatus.CORRECT] * 2 and slow_one.configuration == default
    assert [one.verdict is not None and proven(one.verdict) for one in (fast, slow_one)] == [True, False]
    assert outcome.comparison is not None and outcome.comparison.best == fast.configuration
    assert outcome.comparison.speedups[Baseline.DEFAULT].value > 2


@pytest.mark.slow
def test_whoever_wins_is_proven_and_another_takes_its_place(write_kernel: WriteKernel) -> None:
    """Here every trial but the first was no leader when it was recorded, and two varieties fail the full battery."""
    won: list[Configuration] = []

    class Screening(LocalEvaluator):
        def evaluate(self, configuration: Configuration, build: Build, leaders: Leaders = NOBODY) -> TrialResult:
            finalist_ms = leaders.finalist_ms if leaders.incumbent is None else 0.0
            return super().evaluate(configuration, build, replace(leaders, finalist_ms=finalist_ms))

        def compare(
            self,
            finalists: Sequence[Finalist],
            default: Finalist | None,
            leader: Configuration,
            seconds: float | None = None,
        ) -> Comparison:
            comparison = super().compare(finalists, default, leader, seconds)
            wrong = (configuration for configuration, _ in finalists if configuration["variety"])
            won.append(next(wrong, comparison.best))
            return replace(comparison, best=won[-1])

    factory = write_kernel(source={"x[i] * weight[0]": "(variety && x[i] > 99 ? 99 : x[i]) * weight[0]"})
    log, kernel = MemoryLog(), factory.kernel
    subject = Subject.prepare(kernel, factory, kernel.reference(), Mode.EVAL, CPU)
    space = kernel.space.enumerate(subject.problem, CPU)
    evaluator = Screening(subject, compiler_for(CPU))
    sampler = make_sampler("exhaustive", space, 3)
    executor = LocalExecutor(kernel, [evaluator], BuildQueue(compiler_for(CPU)))
    outcome = StudyRun(executor, space, sampler, log).run(Budget(9))
    assert outcome.comparison is not None and outcome.comparison.best == won[-1] and won[-1]["variety"] == 0
    refused = [result for result in log.results if result.status is TrialStatus.CORRECTNESS]
    assert refused and {result.configuration for result in refused} == set(won[:-1])
    assert all(result.message.startswith("refused late by distributions: ") for result in refused)
    assert outcome.counts[TrialStatus.CORRECTNESS] == len(refused)


class Costly(TableEvaluator):
    """A table whose answers take time by a clock of its own, as real ones do."""

    prepared: ClassVar[Mapping[Activity, float]] = {Activity.WORKER: 0.75}

    def __init__(self, *table: Any, hangs: bool = False) -> None:
        super().__init__(*table)
        self.hangs = hangs
        self.has_proven = False
        self.now = 100.0
        self.compiling: list[float] = []

    def evaluate(self, configuration: Configuration, build: Build, leaders: Leaders = NOBODY) -> TrialResult:
        result = super().evaluate(configuration, build, leaders)
        if leaders.seconds is not None and self.hangs:
            self.now += leaders.seconds
            raise OutOfTimeError("killed")
        assert result.verdict is not None and result.measurement is not None
        leads = leaders.finalist_ms is None or result.measurement.median_ms < leaders.finalist_ms
        step = 0.0125 if self.has_proven else 0.05  # the first full battery asks the reference as well
        self.has_proven |= leads
        stages = [replace(stage, seconds=step) for stage in result.verdict.stages if leads or stage.name == "values"]
        seconds = {"check": sum(stage.seconds for stage in stages), "measure": 0.3}
        self.now += sum(seconds.values())
        return replace(result, verdict=replace(result.verdict, stages=tuple(stages)), seconds=seconds)

    def compare(
        self,
        finalists: Sequence[Finalist],
        default: Finalist | None,
        leader: Configuration,
        seconds: float | None = None,
    ) -> Comparison:
        self.now += (seconds or 0.0) + 0.2
        return super().compare(finalists, default, leader, seconds)

    def compile(self, seconds: float = math.inf) -> str:
        self.compiling.append(seconds)
        return super().compile(seconds)


def limited(
    factory: type[TunedModule], log: MemoryLog, budget: Budget, *, hangs: bool = False
) -> tuple[Outcome, Costly, float]:
    """A study of so many seconds; what it ran on, and when its search was over."""
    space = factory.kernel.space.enumerate(PROBLEM, CPU)
    steps = [step.name for step in ALL if of_full_battery(step.name)]
    evaluator = Costly(lambda one: 1 + space.require(one) * 7 % 33 / 33, PROBLEM, steps, hangs=hangs)
    searched: list[float] = []

    def report(progress: Progress) -> None:
        if progress.phase is Phase.COMPARING:
            searched.append(evaluator.now - 100.0)

    def confirm(_: Finalist, seconds: float) -> Stage:
        if seconds < 2.0:
            evaluator.now += seconds
            raise OutOfTimeError("it was not over in time")
        evaluator.now += 2.0
        return Stage("boundary", True, 2.0, "right across the boundary")

    executor = LocalExecutor(factory.kernel, [evaluator], BuildQueue(AtOnce()))
    sampler = make_sampler("random", space, 3)
    study = StudyRun(executor, space, sampler, log, confirm=confirm, clock=lambda: evaluator.now)
    outcome = study.run(budget, report)
    return outcome, evaluator, next(iter(searched), outcome.seconds)


@pytest.mark.parametrize("seconds", [6.0, 10.0, 30.0])
def test_a_study_ends_in_its_time_and_searches_for_more_than_half_of_it(
    write_kernel: WriteKernel, seconds: float
) -> None:
    factory, log = write_kernel(), MemoryLog()
    outcome, _, searched = limited(factory, log, Budget(1000, seconds))
    assert outcome.comparison is not None and outcome.seconds <= seconds + SLACK_SECONDS
    assert outcome.ending is Ending.EXHAUSTED or searched > seconds / 2
    assert outcome.confirmed == "right across the boundary"
    # Whoever wins is proven, whatever there was time for.
    won = next(one for one in log.results if one.configuration == outcome.comparison.best)
    assert won.verdict is not None and proven(won.verdict)
    assert outcome.unasked == outcome.comparison.unasked


def test_what_there_is_no_time_for_is_said_and_asked_by_a_run_without_a_limit(write_kernel: WriteKernel) -> None:
    factory, log = write_kernel(), MemoryLog()
    outcome, evaluator, _ = limited(factory, log, Budget(1000, 0.5, compiled=True))
    assert outcome.comparison is not None and outcome.seconds <= 0.5 + SLACK_SECONDS
    assert outcome.confirmed == "" and "the winner across the gate's boundary" in outcome.unasked
    assert evaluator.compiling == [] and "no time" in outcome.comparison.missing[Baseline.COMPILED]
    assert log.comparison is not None and log.comparison.unasked == outcome.unasked
    outcome, evaluator, _ = limited(factory, log, Budget(outcome.trials, compiled=True))
    assert outcome.unasked == () and outcome.confirmed == "right across the boundary"
    assert evaluator.compiling == [MOST_COMPILE_SECONDS] and outcome.comparison is not None
    assert outcome.comparison.missing == {Baseline.COMPILED: "torch.compile: there is no module to compile in 90 s"}
    # No time at all is enough for the first configuration, which is not confirmed then.
    outcome, _, _ = limited(factory, MemoryLog(), Budget(1000, -1.0))
    assert (outcome.trials, outcome.comparison, outcome.unasked) == (1, None, ("the final rounds",))


def test_torch_compile_compiles_behind_the_first_configuration(write_kernel: WriteKernel) -> None:
    factory, log = write_kernel(), MemoryLog()
    recorded: list[int] = []

    class Compiling(TableEvaluator):
        now = 0.0

        def compile(self, seconds: float = math.inf) -> str:
            assert 20.0 < seconds < 42.0
            recorded.append(len(log.results))
            self.now += 35.0
            return ""

        def compare(self, *asked: Any) -> Comparison:
            compared = super().compare(*asked)
            return replace(compared, speedups={**compared.speedups, Baseline.COMPILED: Ratio(1.0, 1.0, 1.0, 12, 0.99)})

    space = factory.kernel.space.enumerate(PROBLEM, CPU)
    evaluator = Compiling(lambda one: 1 + space.require(one) / 33, PROBLEM, [step.name for step in ALL])
    executor = LocalExecutor(factory.kernel, [evaluator], BuildQueue(AtOnce()))
    study = StudyRun(executor, space, make_sampler("random", space, 3), log, clock=lambda: evaluator.now)
    outcome = study.run(Budget(4, 40.0, compiled=True))
    # It has no time to compile again in the end, and need not.
    assert recorded == [1] and outcome.comparison is not None and not outcome.comparison.missing


def test_torch_compile_has_no_time_that_the_end_needs() -> None:
    now = 0.0
    plan = Plan(100.0, 4.0, compiled=True, clock=lambda: now)
    assert 70.0 < plan.compile_seconds < plan.left_before_the_end - plan.rounds
    now = 80.0
    assert plan.compile_seconds == 0.0
    assert Plan(compiled=True).compile_seconds == MOST_COMPILE_SECONDS


def test_what_hangs_takes_no_more_than_its_share_of_a_study(write_kernel: WriteKernel) -> None:
    """Whatever comes after the first configuration: another worker is begun, and there is time for the rounds."""
    outcome, evaluator, _ = limited(write_kernel(), MemoryLog(), Budget(1000, 10.0), hangs=True)
    restart = sum(evaluator.prepared.values())
    assert outcome.trials == 1 and outcome.comparison is not None
    assert outcome.seconds + restart <= 10.0 + SLACK_SECONDS


class Watched(TableEvaluator):
    """A table of which everything is asked beside the last check: each waits for the other."""

    def __init__(self, *table: Any, checking: threading.Event, asked: threading.Event, is_late: bool) -> None:
        super().__init__(*table)
        self.checking, self.asked, self.is_late = checking, asked, is_late

    def sanitize(self, finalist: Finalist, seconds: float = math.inf) -> Stage:
        assert self.checking.wait(60), "the last check waits for the sanitizer"
        self.asked.set()
        if self.is_late:
            raise OutOfTimeError("memcheck was not over in time")
        return super().sanitize(finalist, seconds)


@pytest.mark.parametrize(("is_late", "is_refused"), [(False, False), (True, False), (False, True)])
def test_a_winner_is_checked_beside_the_sanitizer(
    write_kernel: WriteKernel, monkeypatch: pytest.MonkeyPatch, is_late: bool, is_refused: bool
) -> None:
    monkeypatch.setattr(StudyRun, "_sanitizes", True)
    factory, log, checked = write_kernel(), MemoryLog(), list[Configuration]()
    checking, asked = threading.Event(), threading.Event()
    space = factory.kernel.space.enumerate(PROBLEM, CPU)
    times = {one: 1 + number * 7 % 33 / 33 for number, one in enumerate(space)}
    best, second, *_ = sorted(times, key=lambda one: times[one])

    def confirm(finalist: Finalist, seconds: float) -> Stage:
        assert seconds == math.inf
        checked.append(finalist.configuration)
        checking.set()
        assert asked.wait(60), "the sanitizer waits for the last check"
        if is_refused and finalist.configuration == best:
            return Stage("boundary", False, 0.0, "values: wrong across the boundary")
        return Stage("boundary", True, 0.0, "right across the boundary")

    steps = [step.name for step in ALL]
    evaluator = Watched(times.__getitem__, PROBLEM, steps, checking=checking, asked=asked, is_late=is_late)
    executor = LocalExecutor(factory.kernel, [evaluator], BuildQueue(AtOnce()))
    outcome = StudyRun(executor, space, make_sampler("exhaustive", space, 3), log, confirm=confirm).run(Budget(1000))
    assert outcome.comparison is not None and outcome.comparison.best == (second if is_refused else best)
    assert checked == [best, second][: 1 + is_refused]
    assert outcome.confirmed == "right across the boundary"
    assert outcome.unasked == (("the winner under compute-sanitizer",) if is_late else ())
