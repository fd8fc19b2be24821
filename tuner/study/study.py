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
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

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
from tunebench.tuner.study.executor import Building, Executor
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
        warm_starts: what to try after the default, before the strategy's own proposals.
        confirm: judges the winner once more; where it refuses, another finalist wins.
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
        confirm: Callable[[Finalist], Stage] | None = None,
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
        self._checked: dict[Configuration, Stage] = {}
        self._plan = Plan()
        self._aside: set[Configuration] = set()
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
            finalists=FINALISTS,
            compiled=budget.compiled,
            sanitized=self._sanitizes,
            clock=self._clock,
        )
        already = len(self._past)
        comparison = None
        known = [self._space.find(one.configuration) for one in self._warm_starts]
        self._sampler.first(self._study, [self._space.default, *(number for number in known if number is not None)])

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
        for flight in waiting[: max(0, room)]:
            with self._account.phase(Activity.HANDOVER):
                flight.evaluation = self._executor.begin(flight.configuration, flight.building, self._leaders())

    def _leaders(self) -> Leaders:
        """Whatever is faster than all before it is proven before it is recorded, so that nothing unproven ever leads.

        Other finalists are proven in the end. Where energy counts, no time says what leads, and everything is proven.
        """
        ranked = self._ranked()
        best = ranked[0] if ranked else None
        seconds = self._plan.evaluation if best is not None and self._plan.is_limited else None
        return Leaders(best, best.median_ms if best and self._objective is Objective.TIME else None, seconds)

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
        sane: dict[Configuration, Finalist] = {}
        while True:
            comparison = self._compare(sane, report)
            if comparison is None:
                return None
            if self._confirms(sane[comparison.best], report):
                comparison = replace(comparison, unasked=tuple(self._unasked))
                self._log.conclude(comparison)
                return comparison

    def _compare(self, sane: dict[Configuration, Finalist], report: Callable[[Phase], None]) -> Comparison | None:
        """Time the finalists again; None where there is none, or no time.

        Args:
            sane: finalists that stand, to which those that are asked now are added.
        """
        report(Phase.PROVING)
        # A refusal makes room among the finalists for others, until all of them stand.
        while unasked := [trial for trial in self._contenders() if trial.configuration not in sane]:
            finalists = [self._built(one.configuration) for one in unasked if self._proves(one)]
            sane |= {finalist.configuration: finalist for finalist in self._sane(finalists)}
        ranked = self._contenders()
        if self._aside:
            self._leave_out(f"the full battery of {len(self._aside)} finalists, which are not in the final rounds")
        contenders = [sane[trial.configuration] for trial in ranked]
        if not contenders:
            return None
        default = self._space[self._space.default]
        baseline = next((finalist for finalist in contenders if finalist.configuration == default), None)
        leader = min(ranked, key=lambda trial: trial.cost(self._objective))
        baselines = [ranked[-1].median_ms or 0.0] * _BASELINES
        why_uncompiled = self._compile(report)
        seconds = self._plan.round_seconds([*(trial.median_ms or 0.0 for trial in ranked), *baselines])
        if seconds is None:
            self._leave_out("the final rounds")
            return None
        report(Phase.COMPARING)
        with self._account.phase(Activity.ROUNDS):
            others = [one for one in contenders if one is not baseline]
            comparison = self._executor.first.compare(others, baseline, leader.configuration, seconds)
        if not why_uncompiled or Baseline.COMPILED in comparison.speedups:
            return comparison
        return replace(comparison, missing={Baseline.COMPILED: why_uncompiled})

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

    def _confirms(self, winner: Finalist, report: Callable[[Phase], None]) -> bool:
        """Whether the winner stands where its own code cannot reach; where not it is refused, and another one wins."""
        if self._confirm is None:
            return True
        if winner.configuration not in self._checked:
            if self._plan.left < self._plan.last_check:
                self._leave_out("the winner across the gate's boundary")
                return True
            report(Phase.CONFIRMING)
            with self._account.phase(Activity.BOUNDARY):
                self._checked[winner.configuration] = self._executor.run(self._confirm, winner)
        stage = self._checked[winner.configuration]
        if not stage.passed:
            self._refuse(winner.configuration, stage)
        self._confirmed = stage.detail
        return stage.passed

    def _leave_out(self, question: str) -> None:
        """Note a question that there is no time for, once."""
        if question not in self._unasked:
            self._unasked.append(question)

    def _contenders(self) -> list[PastTrial]:
        """Return the trials to time again, the simplest first, and the default's last, where it is correct."""
        ranked = {trial.configuration: trial for trial in self._ranked()}
        default = self._space[self._space.default]
        finalists = self._space.simplest_first(list(ranked)[:FINALISTS])
        ordered = [one for one in finalists if one != default] + [default] * (default in ranked)
        return [ranked[one] for one in ordered if one not in self._aside]

    def _proves(self, trial: PastTrial) -> bool:
        """Whether a trial is proven; one that was not when it was recorded is put through the battery now.

        Where there is no time for that, it is set aside.
        """
        verdict = self._log.result(trial.number).verdict
        if verdict is not None and proven(verdict):
            return True
        if not self._plan.has_room(self._plan.proof):
            self._aside.add(trial.configuration)
            return False
        configuration, building = trial.configuration, self._executor.build(trial.configuration)
        with self._account.phase(Activity.HANDOVER):
            again = self._result_of(configuration, building, self._executor.begin(configuration, building))
        self._account.evaluated(again, 1)
        if again.status.timed:
            return True
        stages = again.verdict.stages if again.verdict else ()
        died = Stage(again.status.value, False, 0.0, again.message)
        self._refuse(trial.configuration, next((stage for stage in stages if not stage.passed), died))
        return False

    def _sane(self, finalists: Sequence[Finalist]) -> list[Finalist]:
        """Return the finalists in which compute-sanitizer, where it is installed, finds nothing; refuse the others."""
        if not finalists:
            return []
        if not self._sanitizes:
            return self._told_of(finalists, self._executor.first.sanitize(finalists))
        if not self._plan.has_room(SANITIZER_SECONDS):
            self._leave_out("compute-sanitizer on the finalists")
            return list(finalists)
        with ThreadPoolExecutor(1) as beside:
            check = beside.submit(self._check_leader, finalists)
            try:
                with self._account.phase(Activity.SANITIZER):
                    seconds = self._plan.left_before_the_end - self._plan.rounds
                    stages = self._executor.first.sanitize(finalists, seconds)
            except OutOfTimeError:
                self._leave_out("compute-sanitizer on the finalists")
                return list(finalists)
            finally:
                with self._account.phase(Activity.BOUNDARY):
                    check.result()
        return self._told_of(finalists, stages)

    def _check_leader(self, finalists: Sequence[Finalist]) -> None:
        """Put who leads through the winner's last check, beside what else nobody times."""
        leader = next((one for one in finalists if one.configuration == self._ranked()[0].configuration), None)
        if leader is not None and self._confirm is not None and self._plan.has_room(0.0):
            self._checked[leader.configuration] = self._executor.run(self._confirm, leader)
            self._plan.is_checked = True

    def _told_of(self, finalists: Sequence[Finalist], stages: Sequence[Stage]) -> list[Finalist]:
        """Return the finalists whose stage has passed; refuse the others."""
        for (configuration, _), stage in zip(finalists, stages, strict=True):
            if not stage.passed:
                self._refuse(configuration, stage)
        asked = (stage.detail for stage in stages if stage.passed)
        self._sanitizer = next(asked, self._sanitizer or "nothing passed")
        return [finalist for finalist, stage in zip(finalists, stages, strict=True) if stage.passed]

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
