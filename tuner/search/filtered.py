"""Optuna's own samplers over a valid space."""

from __future__ import annotations

import numpy as np
import optuna
from optuna import Study, Trial
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import TrialState, create_trial

from tunebench.tuner.search.sampler import Observation, PoolSampler
from tunebench.tuner.space import INACTIVE, ValidSpace


class FilteredSampler(PoolSampler):
    """Any Optuna sampler, its proposals mapped to the nearest valid configuration that was not tried yet.

    The inner sampler runs in a private in-memory study in which a numeric tunable is an integer, the position of its
    value, so that samplers of numbers (`CmaEsSampler`, `GPSampler`, `QMCSampler`) see an order; any other tunable is a
    categorical parameter. What the mapped configuration scored is told for the inner sampler's own proposal. Nearest
    is: in the fewest tunables, then by index; a tunable that is inactive in a configuration is not counted.

    Resuming replays the records into the inner study, but not the inner sampler's random state: a resumed study goes on
    soundly, not identically.

    Args:
        inner: a sampler made for this one study, such as `optuna.samplers.CmaEsSampler(seed=0)`.
        space: the valid configurations.
    """

    name = "filtered"

    def __init__(self, inner: BaseSampler, space: ValidSpace) -> None:
        self._inner = inner
        super().__init__(space, seed=0)

    def __str__(self) -> str:
        return f"FilteredSampler({self._inner})"

    def _forget(self) -> None:
        super()._forget()
        self._shadow = _quiet_study(self._inner)
        self._shadow_distributions: dict[str, BaseDistribution] = {
            t.name: IntDistribution(0, len(t.values) - 1)
            if isinstance(t.values[0], int | float) and not isinstance(t.values[0], bool)
            else CategoricalDistribution(tuple(range(len(t.values))))
            for t in self.space.space.tunables
        }
        self._proposals: dict[int, Trial] = {}

    def _propose(self) -> int:
        proposal = self._shadow.ask(self._shadow_distributions)
        wanted = np.array([proposal.params[name] for name in self.space.space.names])
        unseen = np.flatnonzero(~self._seen)
        indices = self.space.indices[unseen]
        away = np.where(indices == INACTIVE, 0, np.abs(indices - wanted))
        number = int(unseen[np.lexsort((away.sum(axis=1), (away > 0).sum(axis=1)))[0]])
        self._proposals[number] = proposal
        return number

    def _observe(self, observation: Observation) -> None:
        state = TrialState.PRUNED if observation.time_ms is None else TrialState.COMPLETE
        proposal = self._proposals.pop(observation.number, None)
        if proposal is not None:
            self._shadow.tell(proposal, observation.time_ms, state)
            return
        row = np.maximum(self.space.indices[observation.number], 0).tolist()
        params = dict(zip(self.space.space.names, row, strict=True))
        self._shadow.add_trial(
            create_trial(
                state=state, value=observation.time_ms, params=params, distributions=self._shadow_distributions
            )
        )


def _quiet_study(sampler: BaseSampler) -> Study:
    """An in-memory study whose creation is not announced."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return optuna.create_study(sampler=sampler)
    finally:
        optuna.logging.set_verbosity(verbosity)
