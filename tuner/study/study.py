"""A study: ask -> build ahead -> evaluate -> record -> tell, until the budget is spent; then the finalists' comparison.

The trial log is the only truth. The Optuna study that samplers see lives in memory and is rebuilt from the log, so
that a process killed at any moment leaves nothing that could disagree, and several processes can search one study: each
takes in what the others have recorded, and claims a configuration before it builds and evaluates it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from functools import partial

import optuna
from optuna.trial import TrialState

from tunebench.tuner.configuration import Configuration
from tunebench.tuner.errors import CompileError, OutOfTimeError, WorkerError
from tunebench.tuner.gate.battery import proven
from tunebench.tuner.gate.sanitizer import why_unwatched
from tunebench.tuner.problem import Objective
from tunebench.tuner.result import Baseline, Comparison, Stage, TrialResult, TrialStatus
from tunebench.tuner.search.sampler import ROUNDS_TOO_FAR, PoolSampler, SpaceExhausted, past_trial
from tunebench.tuner.search.warm_start import WarmStart
from tunebench.tuner.space import ValidSpace
from tunebench.tuner.study.account import Account, Activity
from tunebench.tuner.study.evaluate import Finalist, Leaders
from tunebench.tuner.study.executor import Building, Executor, in_background
from tunebench.tuner.study.history import PastTrial, TrialLog
from tunebench.tuner.study.outcome import Budget, Ending, Outcome, Phase, Progress, not_built, told
from tunebench.tuner.study.pending import Pending
from tunebench.tuner.study.plan import SANITIZER_SECONDS, Plan
from tunebench.tuner.timing.confirm import most_seconds
from tunebench.tuner.users_code import UsersCodeError

FINALISTS = 5
"""Number of the best screened configurations that are timed again, interleaved."""

_BASELINES = 3
"""The reference, a copy and the default's second copy take part in the final rounds too."""

_BOUNDARY = "the winner across the gate's boundary"
_WATCHED = "the winner under compute-sanitizer"
"""Questions that there may be no time for."""

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass
class _InFlight:
    """A configuration that is asked for and not recorded: it is being built, and evaluated once it has begun."""

    trial: optuna.Trial
    configuration: Configuration
    building: Building
    evaluation: Future[TrialResult] | None = None


class StudyRun:
    """One run of a study: a kernel's valid space, tried by an executor, which is closed at the end of it.

    Args:
        warm_starts: what to try before the strategy's own proposals, after the default where that is not among them.
        confirm: judges the winner where its own code cannot reach, within so many seconds; where it refuses, another
            finalist wins.
        account: is charged with what the run does.
        clock: seconds since whenever.
    """

    def __init__(
        self,
        executor: Executor,
        space: ValidSpace,
        sampler: PoolSampler,
        log: TrialLog,
        warm_starts: Sequence[WarmStart] = (),
        confirm: Callable[[Finalist, float], Stage] | None = None,
        account: Account | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._account = account or Account()
        self._clock = clock
        self._executor = executor
        self._objective = executor.first.problem.objective
        self._confirm = confirm
        self._space = space
        self._sampler = self._account.charged(sampler, Activity.STRATEGY)
        self._log = self._account.charged(log, Activity.DATABASE)
        self._warm_starts = warm_starts
        self._flying: list[_InFlight] = []
        self._past: list[PastTrial] = []
        self._tried: set[Configuration] = set()
        self._study = optuna.create_study(sampler=sampler, direction="minimize")
        self._take_in(self._log.past())
        self._elsewhere: dict[Configuration, optuna.Trial] = {}
        self._repeats = 0
        self._pending = Pending()
        self._refusals: Counter[str] = Counter()
        self._sanitizer = ""
        self._confirmed = ""
        self._uncompiled: str | None = None  # why torch.compile has no part; None until it was asked
        self._plan = Plan()
        self._unasked: list[str] = []
        self._started = self._clock()

    def run(self, budget: Budget, report: Callable[[Progress], None] = lambda _: None) -> Outcome:
        """Go on until the budget is spent, the space is exhausted, or Ctrl-C; everything done is recorded.

        Raises:
            CompilerMissingError: the compiler went away.
            WorkerError: the evaluator cannot go on; everything done is recorded.
        """
        self._started = self._clock()
        self._plan = Plan(
            budget.seconds,
            sum(self._executor.first.prepared.values()),
            contenders=FINALISTS + _BASELINES,
            compiled=budget.compiled,
            sanitized=self._sanitizes,
            clock=self._clock,
        )
        already = len(self._past)
        comparison = None
        known = [self._space.find(one.configuration) for one in self._warm_starts]
        first = [number for number in known if number is not None]
        default = self._space.default
        self._sampler.first(self._study, first if default in first else [default, *first])

        def tell(phase: Phase) -> None:
            most = {
                Phase.COMPILING: self._plan.compile_seconds,
                Phase.COMPARING: min(most_seconds(), self._plan.left),
            }
            report(replace(self._progress(already, budget, None), phase=phase, phase_seconds=most.get(phase)))

        try:
            report(self._progress(already, budget, None))
            try:
                ending = self._search(budget, already, report, tell)
            finally:
                self._log.release()
            comparison = self._conclude(tell)
        except KeyboardInterrupt:
            ending = Ending.INTERRUPTED
        finally:
            self._executor.close()
        return Outcome(
            trials=len(self._past),
            space_size=len(self._space),
            counts=Counter(trial.status for trial in self._past),
            best=self._ranked()[0] if self._ranked() else None,
            comparison=comparison,
            ending=ending,
            proven=len({trial.configuration for trial in self._past}) == len(self._space),
            refusals=dict(self._refusals),
            sanitizer=self._sanitizer,
            confirmed=self._confirmed,
            unasked=tuple(self._unasked),
            seconds=self._clock() - self._started,
            default_ms=self._default_ms(),
            repeats=self._repeats,
            lost=tuple(self._executor.lost),
            left_out=self._sampler.left_out,
        )

    def _search(
        self, budget: Budget, already: int, report: Callable[[Progress], None], tell: Callable[[Phase], None]
    ) -> Ending:
        while True:
            self._catch_up()
            ending = self._ending(budget)
            if ending is None:
                if self._executor.slots > 1:
                    self._begin(budget)  # what has been asked for: of several devices none waits for the next proposal
                self._ask_ahead(budget)
                self._begin(budget)
            running = {one.evaluation: one for one in self._flying if one.evaluation is not None}
            if not running:
                return ending or Ending.EXHAUSTED
            with self._account.phase(Activity.HANDOVER):
                ended = wait(running, return_when=FIRST_COMPLETED).done
            if self._executor.slots > 1:
                # Of several devices none waits until what came of its last evaluation is recorded, either.
                self._catch_up()
                if self._ending(budget) is None:
                    self._begin(budget)
            # One at a time: meanwhile others may have ended, whose devices go on first.
            flight = next(one for evaluation, one in running.items() if evaluation in ended)
            report(self._progress(already, budget, self._finish(flight)))
            if self._uncompiled is None:
                self._compile(tell)  # while what was asked for ahead is built

    def _ending(self, budget: Budget) -> Ending | None:
        """Why nothing more is begun; None while there is no reason."""
        if self._past and not self._plan.searches:
            return Ending.BUDGET
        if budget.stop_early and self._sampler.settled(self._study):
            return Ending.SETTLED
        return Ending.BUDGET if len(self._past) >= budget.trials else None

    def _ask_ahead(self, budget: Budget) -> None:
        most = self._pending.most(self._executor.slots, self._executor.ahead)
        most = min(most, budget.trials - len(self._past))
        while len(self._flying) < most and (asked := self._ask()) is not None:
            self._flying.append(asked)

    def _begin(self, budget: Budget) -> None:
        """Evaluate what was asked for first, one in each slot, and no more than the budget has room for.

        The first of all is evaluated alone, until it is recorded: by what clock it is timed, the others are.
        """
        begun = [flight.evaluation for flight in self._flying if flight.evaluation is not None]
        running = sum(not evaluation.done() for evaluation in begun)
        free = self._executor.slots - running if self._past else 1 - len(begun)
        room = min(free, budget.trials - len(self._past) - len(begun))
        waiting = [flight for flight in self._flying if flight.evaluation is None]
        if len(self._past) == 1 and self._rounds_too_far(self._past[0]):
            # Often the default is the reference's own product: in a study of two trials nothing faster would be right.
            waiting.sort(key=lambda flight: flight.configuration == self._space[self._space.default])
        for flight in waiting[: max(0, room)]:
            with self._account.phase(Activity.HANDOVER):
                leaders = self._leaders(flight.configuration)
                flight.evaluation = self._executor.begin(flight.configuration, flight.building, leaders)

    def _leaders(self, configuration: Configuration) -> Leaders:
        """Whatever is faster than all before it is proven before it is recorded, so that nothing unproven ever leads.

        Where energy counts, no time says what leads, and everything is proven. The default is a baseline of the final
        rounds, and timed to the end however slow it is.
        """
        ranked = self._ranked()
        best = ranked[0] if ranked else None
        seconds = self._plan.evaluation if best is not None and self._plan.is_limited else None
        leading_ms = best.median_ms if best and self._objective is Objective.TIME else None
        if best and configuration == self._space[self._space.default]:
            best = replace(best, median_ms=math.inf)
        return Leaders(best, leading_ms, seconds)

    def _ask(self) -> _InFlight | None:
        """Claim and build what to evaluate next; None where nothing is left that no other process is at.

        What others are at stays pending for the sampler. What they let go of without a result comes first.
        """
        for configuration, trial in self._elsewhere.items():
            if self._log.claim(configuration):
                del self._elsewhere[configuration]
                return _InFlight(trial, configuration, self._executor.build(configuration))
        while True:
            try:
                trial, number = self._sampler.ask(self._study)
            except SpaceExhausted:
                return None
            configuration = self._space[number]
            if configuration in self._tried:
                # Enqueued here, and recorded by another process since.
                self._study.tell(trial, state=TrialState.FAIL)
            elif self._log.claim(configuration):
                return _InFlight(trial, configuration, self._executor.build(configuration))
            else:
                self._elsewhere[configuration] = trial

    def _catch_up(self) -> None:
        """Look what other processes have recorded since, and drop it from what has not begun here."""
        self._learn()
        for flight in [one for one in self._flying if one.evaluation is None and one.configuration in self._tried]:
            self._study.tell(flight.trial, state=TrialState.FAIL)
            self._flying.remove(flight)

    def _learn(self, before: float = math.inf) -> None:
        """Take in what other processes have recorded since the last look, below this number."""
        self._take_in([trial for trial in self._log.past(after=self._last) if trial.number < before])
        for configuration in self._tried & self._elsewhere.keys():
            self._study.tell(self._elsewhere.pop(configuration), state=TrialState.FAIL)

    @property
    def done(self) -> int:
        """How many trials there are, those of earlier runs and of other processes included."""
        return len(self._past)

    @property
    def _last(self) -> int:
        """The number of the latest trial that this run knows; not their count: results may have been pruned."""
        return self._past[-1].number if self._past else -1

    def _finish(self, flight: _InFlight) -> TrialResult | None:
        """Record what came of an evaluation; None where another process was first, or it was let go of or begins again.

        Raises:
            WorkerError: there is nothing left to evaluate with.
        """
        assert flight.evaluation is not None
        try:
            result = self._result_of(flight.configuration, flight.building, flight.evaluation)
        except OutOfTimeError:
            self._plan.lose_worker()
            self._flying.remove(flight)
            self._study.tell(flight.trial, state=TrialState.FAIL)
            return None
        except WorkerError:
            if not self._executor.slots:
                raise
            flight.evaluation = None
            return None
        self._flying.remove(flight)
        self._account.evaluated(result, self._executor.slots)
        number = self._log.record(result)
        if number is None:
            self._repeats += 1
            self._study.tell(flight.trial, state=TrialState.FAIL)
            return None
        if number > self._last + 1:
            self._learn(before=number)
        self._pending.learn(self._executor.slots, result.seconds)
        self._plan.learn(result)
        self._past.append(PastTrial.of(number, result))
        self._tried.add(result.configuration)
        if not result.status.timed:
            self._refusals[told(result)] += 1
        cost = self._cost(self._past[-1])
        if result.status is TrialStatus.CORRECT:
            self._study.tell(flight.trial, cost)
        else:
            # Optuna's samplers pass over FAIL trials: a failure is reported as PRUNED, a hopeless time as its value.
            if cost is not None:
                flight.trial.report(cost, step=0)
            if self._sampler.learns and result.verdict is not None and result.verdict.rounds_too_far:
                flight.trial.set_user_attr(ROUNDS_TOO_FAR, value=True)
                self._drop_alike(result.configuration)
            self._study.tell(flight.trial, state=TrialState.PRUNED)
        return result

    def _drop_alike(self, configuration: Configuration) -> None:
        """Drop what was asked for ahead and rounds as a configuration does that is too far off."""
        alike = self._space.rounding_alike(self._space.require(configuration))
        waiting = [one for one in self._flying if one.evaluation is None]
        for flight in [one for one in waiting if self._space.require(one.configuration) in alike]:
            self._study.tell(flight.trial, state=TrialState.FAIL)
            self._flying.remove(flight)

    def _result_of(self, configuration: Configuration, building: Building, asked: Future[TrialResult]) -> TrialResult:
        """One configuration's result; that it is not built, or what the kernel's own code raises, is one, too.

        Raises:
            OutOfTimeError: it was not over when the study's time was.
            UsersCodeError: it raises in the default configuration: every other one would be likely to say the same.
            WorkerError: what evaluated it cannot go on.
        """
        try:
            return asked.result()
        except CompileError as error:
            return not_built(configuration, error)
        except UsersCodeError as error:
            if configuration == self._space[self._space.default]:
                raise UsersCodeError(f"{error} (in the default configuration: {configuration})") from error
            return TrialResult(configuration, TrialStatus.RUNTIME, building.result(), message=str(error))

    def _conclude(self, report: Callable[[Phase], None]) -> Comparison | None:
        # Other processes' last trials, and what their final comparisons have refused.
        self._past = list(self._log.past())
        while (compared := self._compare(report)) is not None:
            comparison, winner = compared
            if self._stands(winner, report):
                comparison = replace(comparison, unasked=tuple(self._unasked))
                self._log.conclude(comparison)
                return comparison
        return None

    def _compare(self, report: Callable[[Phase], None]) -> tuple[Comparison, Finalist] | None:
        """Time the finalists again, and name the winner; None where there is none, or no time."""
        ranked = self._contenders()
        if not ranked:
            return None
        contenders = {trial.configuration: self._built(trial.configuration) for trial in ranked}
        baseline = contenders.get(self._space[self._space.default])
        leader = min(ranked, key=lambda trial: trial.cost(self._objective))
        baselines = [ranked[-1].median_ms or 0.0] * _BASELINES
        why_uncompiled = self._compile(report)
        seconds = self._plan.round_seconds([*(trial.median_ms or 0.0 for trial in ranked), *baselines])
        if seconds is None:
            self._leave_out("the final rounds")
            return None
        report(Phase.COMPARING)
        with self._account.phase(Activity.ROUNDS):
            others = [one for one in contenders.values() if one is not baseline]
            comparison = self._executor.first.compare(others, baseline, leader.configuration, seconds)
        if why_uncompiled and Baseline.COMPILED not in comparison.speedups:
            comparison = replace(comparison, missing={Baseline.COMPILED: why_uncompiled})
        return comparison, contenders[comparison.best]

    def _compile(self, report: Callable[[Phase], None]) -> str:
        """Have torch compile the reference where that is asked for; return why it is not among the baselines then.

        A worker that has compiled it already has it still, unless it has let go of it.
        """
        if not self._plan.compiles or self._uncompiled:
            return self._uncompiled or ""
        seconds = self._plan.compile_seconds
        if not seconds:
            return "there was no time to compile it"
        report(Phase.COMPILING)
        with self._account.phase(Activity.COMPILING):
            self._uncompiled = self._executor.first.compile(seconds)
        return self._uncompiled

    def _stands(self, winner: Finalist, report: Callable[[Phase], None]) -> bool:
        """Whether the winner passes what nobody times, side by side; where not it is refused, and another one wins."""
        report(Phase.CONFIRMING)
        check = self._begin_last_check(winner)
        refusals = [self._proof(winner) or self._watched(winner), self._found_by(check)]
        refused = next(filter(None, refusals), None)
        if refused is not None:
            self._refuse(winner.configuration, refused)
        return refused is None

    def _begin_last_check(self, winner: Finalist) -> Future[Stage] | None:
        """Begin to judge the winner where its own code cannot reach; None where there is no time for that."""
        if self._confirm is None:
            return None
        if not self._plan.can_check:
            self._leave_out(_BOUNDARY)
            return None
        return in_background(partial(self._executor.run, self._confirm, winner, self._plan.left), "last check")

    def _found_by(self, check: Future[Stage] | None) -> Stage | None:
        """Wait for the last check; return what refuses the winner."""
        if check is None:
            return None
        try:
            with self._account.phase(Activity.BOUNDARY):
                stage = check.result()
        except OutOfTimeError:
            self._leave_out(_BOUNDARY)
            return None
        self._confirmed = stage.detail
        return None if stage.passed else stage

    def _leave_out(self, question: str) -> None:
        """Note a question that there is no time for, once."""
        if question not in self._unasked:
            self._unasked.append(question)

    def _contenders(self) -> list[PastTrial]:
        """Return the trials to time again, the simplest first, and the default's last, where it is correct.

        Those that are not proven are left out where there is no time to prove a winner.
        """
        ranked = {trial.configuration: trial for trial in self._ranked()}
        default = self._space[self._space.default]
        finalists = self._space.simplest_first(list(ranked)[:FINALISTS])
        ordered = [one for one in finalists if one != default] + [default] * (default in ranked)
        contenders = [ranked[one] for one in ordered]
        if self._plan.can_prove:
            return contenders
        known = [trial for trial in contenders if self._is_proven(trial)]
        if len(known) < len(contenders):
            self._leave_out(
                f"the full battery of {len(contenders) - len(known)} finalists: they are in no final rounds"
            )
        return known

    def _is_proven(self, trial: PastTrial) -> bool:
        verdict = self._log.result(trial.number).verdict
        return verdict is not None and proven(verdict)

    def _proof(self, winner: Finalist) -> Stage | None:
        """Put a winner that was not proven when it was recorded through the full battery; return what refuses it."""
        trial = next(one for one in self._past if one.configuration == winner.configuration)
        if self._is_proven(trial):
            return None
        with self._account.phase(Activity.FULL):
            return self._executor.first.prove(winner)

    def _watched(self, winner: Finalist) -> Stage | None:
        """Run the winner under compute-sanitizer, where it is installed; return what refuses it."""
        if self._sanitizes and self._plan.left < SANITIZER_SECONDS:
            self._leave_out(_WATCHED)
            return None
        try:
            with self._account.phase(Activity.SANITIZER):
                stage = self._executor.first.sanitize(winner, self._plan.left)
        except OutOfTimeError:
            self._leave_out(_WATCHED)
            return None
        if not stage.passed:
            return stage
        self._sanitizer = stage.detail
        return None

    @property
    def _sanitizes(self) -> bool:
        return not why_unwatched(self._executor.device.torch_device.type)

    def _refuse(self, configuration: Configuration, stage: Stage) -> None:
        """Take a correct trial back."""
        place = next(place for place, one in enumerate(self._past) if one.configuration == configuration)
        self._log.refuse(self._past[place].number, stage)
        self._past[place] = self._past[place].refused()
        self._refusals[f"{stage.name}, {configuration}: {stage.detail}"] += 1

    def _built(self, configuration: Configuration) -> Finalist:
        with self._account.phase(Activity.COMPILER):
            return Finalist(configuration, self._executor.build(configuration).result())

    def _ranked(self) -> list[PastTrial]:
        """Correct trials, the best first, all of them timed by the clock of the first one."""
        correct = [trial for trial in self._past if trial.status is TrialStatus.CORRECT]
        correct = [trial for trial in correct if trial.clock == correct[0].clock]
        return sorted(correct, key=lambda trial: trial.cost(self._objective))

    def _progress(self, already: int, budget: Budget, last: TrialResult | None) -> Progress:
        ranked = self._ranked()
        return Progress(
            done=len(self._past),
            planned=min(budget.trials, len(self._space)),
            here=len(self._past) - already,
            seconds=self._clock() - self._started,
            best_ms=ranked[0].median_ms if ranked else None,
            default_ms=self._default_ms(),
            last=last,
            limit=max(0.0, self._plan.left),
            lost=tuple(self._executor.lost),
        )

    def _default_ms(self) -> float | None:
        default = self._space[self._space.default]
        return next((trial.median_ms for trial in self._past if trial.configuration == default), None)

    def _take_in(self, trials: Sequence[PastTrial]) -> None:
        """Trials of the log that this run has not made, for the search to know."""
        for past in trials:
            self._past.append(past)
            self._tried.add(past.configuration)
            state = TrialState.COMPLETE if past.status is TrialStatus.CORRECT else TrialState.PRUNED
            too_far = self._rounds_too_far(past)
            self._study.add_trial(past_trial(past.configuration, state, self._cost(past), rounds_too_far=too_far))

    def _rounds_too_far(self, past: PastTrial) -> bool:
        if past.status is not TrialStatus.CORRECTNESS or not self._space.space.rounding:
            return False
        verdict = self._log.result(past.number).verdict
        return verdict is not None and verdict.rounds_too_far

    def _cost(self, trial: PastTrial) -> float | None:
        """Return the figure that the search minimises, of one trial; None where it was not measured."""
        cost = trial.cost(self._objective)
        return cost if math.isfinite(cost) else None
