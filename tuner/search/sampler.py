"""Search strategies: Optuna samplers that choose among the enumerated valid configurations of a space.

A strategy here never proposes an invalid configuration and never the same one twice, also while trials are pending. It
works inside an ordinary Optuna study: each tunable that is active in the proposed configuration is a categorical
parameter of the trial, and an inactive one is absent, so that `study.trials_dataframe()`, parameter importances and the
dashboard show what was tried, and `ValidSpace.find(trial.params)` gives back the configuration's number. Optuna's own
samplers serve through `tunebench.tuner.search.filtered.FilteredSampler`.

    sampler = tunebench.tuner.search.strategies.make_sampler("gp", space, seed=0)
    study = optuna.create_study(sampler=sampler)
    trial, number = sampler.ask(study)         # or: trial = study.ask(); number = sampler.number(trial)
    study.tell(trial, time_ms)                 # or, for a variant that failed: study.tell(trial, state=PRUNED)

What a finished trial means to a strategy:

- COMPLETE: its value is the configuration's time in milliseconds, to be minimised;
- PRUNED with a reported intermediate value: hopelessly slow, and that value is about how slow;
- PRUNED without one, or with a violated constraint (`trial.set_constraint(name, 1.0)`): the variant failed (it did not
  compile, was wrong, crashed or hung), and its neighbourhood is to be avoided;
- FAIL: the trial was lost, which says nothing about its configuration; it is not proposed again either.
"""

from __future__ import annotations

import copy
import math
import threading
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from optuna import Study, Trial, create_study, logging
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from tunebench.tuner.configuration import Configuration
from tunebench.tuner.errors import TunebenchError, UnknownNameError, UserError
from tunebench.tuner.search.pool_model import PoolModel, PoolSettings
from tunebench.tuner.space import ValidSpace

ROUNDS_TOO_FAR = "rounds too far"
"""The user attribute of a failed trial, where all that round as its configuration does would fail as it did."""
_FIXED = "fixed_params"
"""The name under which Optuna keeps an enqueued trial's parameters, among its system attributes; see `past_trial`."""


class SpaceExhausted(TunebenchError):
    """The search is complete: every valid configuration has been proposed, and there is nothing left to propose."""


@dataclass(frozen=True)
class Observation:
    """The result of a finished trial of a configuration.

    Attributes:
        trial: the trial's number in its study.
        number: the configuration's number in the valid space.
        time_ms: its time in milliseconds; None where the variant failed.
    """

    trial: int
    number: int
    time_ms: float | None


class PoolSampler(BaseSampler):
    """The base of the strategies over a valid space: its proposals, their results, and the way through Optuna.

    A strategy's proposals are a function of the seed and of the finished and pending trials in the order of the study,
    so that a study rebuilt from its records goes on as it would have gone on. Calls are serialised by a lock.

    Args:
        space: the valid configurations.
        seed: any non-negative integer; None takes one from the operating system.

    Attributes:
        left_out: how many configurations are not proposed, since they round as one does that was too far off.
    """

    name: ClassVar[str]
    learns: ClassVar[bool] = True
    """Whether proposals depend on what came back, so that it is worth its while to begin with what is known."""

    def __init__(self, space: ValidSpace, seed: int | None = None) -> None:
        self.space = space
        self.seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
        self._distributions = {t.name: CategoricalDistribution(t.values) for t in space.space.tunables}
        self._lock = threading.RLock()
        self._study_name: str | None = None
        self._watching = False
        self._forget()

    def _forget(self) -> None:
        """Go back to the state before the first trial; strategies extend it with what they keep."""
        self._seen = np.zeros(len(self.space), dtype=np.bool_)
        self._unseen = len(self.space)
        self.left_out = 0
        self._open: dict[int, int | None] = {}
        self._read = 0

    @abstractmethod
    def _propose(self) -> int:
        """Return the number of an unseen configuration; there is at least one."""

    def _observe(self, observation: Observation) -> None:
        """Take in one finished trial; called once for each, in the study's order."""

    # What a study's owner calls.

    def ask(self, study: Study) -> tuple[Trial, int]:
        """Return a new trial of the study, or one enqueued in it, with the number of its configuration.

        Raises:
            SpaceExhausted: no configuration is left; the study is unchanged.
        """
        with self._lock:
            waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
            if not waiting and self.remaining(study) == 0:
                raise SpaceExhausted(f"all {len(self.space)} valid configurations have been tried")
            trial = study.ask()
            return trial, self.number(trial)

    def number(self, trial: Trial) -> int:
        """Return the number in `space` of the configuration that a trial is to evaluate; the same at every call.

        Raises:
            SpaceExhausted: no configuration is left; the trial is still running, to be told as FAIL.
            UserError: the trial was enqueued with parameters that are not a valid configuration.
        """
        values = trial.relative_params
        for name in values:
            trial.suggest_categorical(name, self._distributions[name].choices)
        return self.space.require(values)

    def configuration(self, trial: Trial) -> Configuration:
        """Return the configuration that a trial is to evaluate; see `number`."""
        chosen: Configuration = self.space[self.number(trial)]
        return chosen

    def first(self, study: Study, numbers: Iterable[int]) -> None:
        """Enqueue configurations, to be tried before any of the strategy's own proposals, in the order given.

        The usual first is `space.default`; others come from what is known of the kernel elsewhere. Configurations that
        the study has had already are skipped, so that a resumed study may call this again.
        """
        with self._lock:
            self._synchronise(study)
            for number in dict.fromkeys(int(number) for number in numbers):
                if not self._seen[number]:
                    study.enqueue_trial(dict(self.space[number]))
            self._synchronise(study)

    def remaining(self, study: Study) -> int:
        """Return how many valid configurations the study has neither tried nor enqueued nor pending."""
        with self._lock:
            self._synchronise(study)
            return self._unseen

    def settled(self, study: Study) -> bool:
        """Return whether another trial is expected to gain less than timing can tell; never, without a model of times.

        A function of the finished trials, so that a study that has settled is settled when it is resumed, too.
        """
        with self._lock:
            if not self._watching:
                # From the first trial on.
                self._watching, self._study_name = True, None
            self._synchronise(study)
            return self._has_settled()

    def _has_settled(self) -> bool:
        return False

    # What Optuna calls.

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:  # noqa: ARG002
        """Return every tunable as a categorical parameter; those inactive in a proposal are not in its values."""
        return dict(self._distributions)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the values of the proposed configuration's active tunables, or of the enqueued one's.

        Raises:
            SpaceExhausted: no configuration is left.
            UserError: the study does not minimise one value, or the trial was enqueued with an invalid configuration.
        """
        del search_space
        if study.directions != [StudyDirection.MINIMIZE]:
            raise UserError("this sampler minimises a time: create the study with one direction, 'minimize'")
        with self._lock:
            self._synchronise(study)
            fixed = trial.system_attrs.get(_FIXED)
            if fixed is not None:
                number = self.space.require(fixed)
            elif self._unseen == 0:
                raise SpaceExhausted(f"all {len(self.space)} valid configurations have been tried")
            else:
                number = self._propose()
            self._mark(number)
            self._open[trial.number] = number
            return dict(self.space[number])

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Refuse to sample: there is nothing but the space's tunables.

        Raises:
            UserError: always.
        """
        del study, param_distribution
        if param_name in self._distributions:
            raise UserError(f"tunable '{param_name}' is inactive in the configuration of trial {trial.number}")
        raise UnknownNameError("tunable", param_name, self.space.space.names)

    def reseed_rng(self) -> None:
        """Do nothing: a proposal depends on the trials before it, which concurrent trials do not share."""

    # Reading the study.

    def _mark(self, number: int) -> None:
        if not self._seen[number]:
            self._seen[number] = True
            self._unseen -= 1

    def _leave_out(self, number: int) -> None:
        """Propose nothing more that rounds as a configuration does."""
        alike = self.space.rounding_alike(number)
        left_out = alike[~self._seen[alike]]
        self._seen[left_out] = True
        self._unseen -= len(left_out)
        self.left_out += len(left_out)

    def _synchronise(self, study: Study) -> None:
        """Read what has happened in the study since the last call: only trials that were open then, and new ones."""
        if study.study_name != self._study_name:
            self._forget()
            self._study_name = study.study_name
        trials = study.get_trials(deepcopy=False)
        looked_at = sorted(self._open) + list(range(self._read, len(trials)))
        self._read = len(trials)
        for index in looked_at:
            self._read_trial(trials[index], self._open.get(index))

    def _read_trial(self, trial: FrozenTrial, number: int | None) -> None:
        if number is None:
            values = trial.params or trial.system_attrs.get(_FIXED)
            number = self.space.find(values) if values else None
        if number is not None:
            self._mark(number)
        if not trial.state.is_finished():
            self._open[trial.number] = number
            return
        self._open.pop(trial.number, None)
        # A lost trial, or one of a configuration that is not in this space, says nothing.
        if number is not None and trial.state is not TrialState.FAIL:
            self._observe(Observation(trial.number, number, _time_of(trial)))
            if self.learns and trial.user_attrs.get(ROUNDS_TOO_FAR):
                self._leave_out(number)

    def _pending(self) -> list[int]:
        """Return the configurations being evaluated, or enqueued, by trial number."""
        return [number for _, number in sorted(self._open.items()) if number is not None]

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_lock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()


def quiet_study(sampler: BaseSampler | None = None) -> Study:
    """Return an in-memory study whose creation is not announced."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        return create_study(sampler=sampler)
    finally:
        logging.set_verbosity(verbosity)


def past_trial(
    configuration: Configuration, state: TrialState, time_ms: float | None, *, rounds_too_far: bool = False
) -> FrozenTrial:
    """Return a trial to add to a study that goes on: one that was enqueued with a configuration and is finished.

    Unlike one with parameters it needs no distributions, which Optuna copies and compares for every trial.
    """
    attributes = {ROUNDS_TOO_FAR: True} if rounds_too_far else {}
    return added_trial(state=state, value=time_ms, system_attrs={_FIXED: configuration}, user_attrs=attributes)


class _AddedTrial(FrozenTrial):
    def __deepcopy__(self, memo: object) -> Self:
        return copy.copy(self)


def added_trial(**facts: Any) -> FrozenTrial:
    """Return a finished trial to add to a study, as `create_trial` does; it is nobody's else, and copied flatly."""
    trial = create_trial(**facts)
    trial.__class__ = _AddedTrial
    return trial


def _time_of(trial: FrozenTrial) -> float | None:
    """Return the time in milliseconds that a trial was finished with; None where it is a failure."""
    value = trial.value
    if value is None or not math.isfinite(value) or any(x > 0 for x in trial.constraints.values()):
        return None
    return value


class ExhaustiveSampler(PoolSampler):
    """Every configuration, in enumeration order. Independent of the times."""

    name = "exhaustive"
    learns = False

    def _forget(self) -> None:
        super()._forget()
        self._order = self._make_order()

    def _make_order(self) -> npt.NDArray[np.intp]:
        return np.arange(len(self.space))

    def _propose(self) -> int:
        return int(self._order[np.argmin(self._seen[self._order])])


class RandomSampler(ExhaustiveSampler):
    """Uniformly random without replacement: the seed's permutation of the space. Independent of the times."""

    name = "random"

    def _make_order(self) -> npt.NDArray[np.intp]:
        return np.random.default_rng(self.seed).permutation(len(self.space))


class PoolGpSampler(PoolSampler):
    """A Gaussian process over the pool of valid configurations, proposing what it expects to gain most from.

    The model is `tunebench.tuner.search.pool_model.PoolModel`; `docs/search.md` says how it works and how well.
    """

    name = "gp"

    def __init__(self, space: ValidSpace, seed: int | None = None, settings: PoolSettings | None = None) -> None:
        self._settings = settings or PoolSettings()
        super().__init__(space, seed)

    def _forget(self) -> None:
        super()._forget()
        values = [tunable.values for tunable in self.space.space.tunables]
        self._model = PoolModel(self.space.indices, values, self.seed, self._settings, watching=self._watching)

    def _has_settled(self) -> bool:
        return self._model.settled

    def _observe(self, observation: Observation) -> None:
        self._model.observe(observation.number, observation.time_ms)

    def _propose(self) -> int:
        return self._model.propose(self._seen, self._pending())
