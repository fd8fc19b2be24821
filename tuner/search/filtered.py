"""Optuna's own samplers over a valid space."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optuna
from optuna import Trial
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, BruteForceSampler, CmaEsSampler
from optuna.trial import TrialState

from tunebench.tuner.extras import require_extra
from tunebench.tuner.search.sampler import Observation, PoolSampler, added_trial, quiet_study
from tunebench.tuner.space import ValidSpace

_ORDERED_ONLY: tuple[type[BaseSampler], ...] = (CmaEsSampler,)
"""Samplers of numbers only: they take an unordered tunable for the positions of its values, too."""

_EXTRAS: Mapping[str, str] = {"CmaEsSampler": "cmaes", "GPSampler": "scipy", "QMCSampler": "scipy"}
"""The package that a sampler needs in addition to tunebench's own, which is also the extra that brings it."""


class FilteredSampler(PoolSampler):
    """Any Optuna sampler, its proposals mapped to the nearest valid configuration that was not tried yet.

    The sampler works in a private in-memory study in which a numeric tunable is an integer, the position of its value,
    so that samplers of numbers see an order; any other tunable is a categorical parameter. A tunable that is inactive
    has its first value there. The study has what was evaluated, not what was proposed. Nearest is as
    `ValidSpace.nearest` has it.

    Every proposal is made by a new sampler, seeded by the seed and the number of configurations tried, so that a
    sampler that learns from the trials alone (`TPESampler`) goes on from the records as if never interrupted. One that
    keeps more beside them (a generation, a covariance) begins that anew when a study is resumed.

    Args:
        make: makes a sampler of a seed, such as `optuna_sampler("TPESampler")`.
        space: the valid configurations.
    """

    name = "filtered"

    def __init__(self, make: Callable[[int], BaseSampler], space: ValidSpace, seed: int | None = None) -> None:
        self._make = make
        ordered_only = isinstance(make(0), _ORDERED_ONLY)
        self._positions: dict[str, BaseDistribution] = {
            tunable.name: IntDistribution(0, len(tunable.values) - 1)
            if ordered_only or type(tunable.values[0]) in (int, float)
            else CategoricalDistribution(range(len(tunable.values)))
            for tunable in space.space.tunables
        }
        super().__init__(space, seed)

    def __str__(self) -> str:
        return f"FilteredSampler({self._make(0)})"

    def _forget(self) -> None:
        super()._forget()
        self._inner = quiet_study()
        self._proposals: dict[int, Trial] = {}

    def _propose(self) -> int:
        entropy = [self.seed, len(self.space) - self._unseen]
        seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        self._inner.sampler = self._make(seed)
        proposal = self._inner.ask(self._positions)
        values = {tunable.name: tunable.values[proposal.params[tunable.name]] for tunable in self.space.space.tunables}
        number = self.space.nearest(values, ~self._seen)
        self._proposals[number] = proposal
        return number

    def _observe(self, observation: Observation) -> None:
        proposal = self._proposals.pop(observation.number, None)
        # Optuna's samplers pass over it: what was evaluated is added instead, with what they noted.
        notes = self._inner.tell(proposal, state=TrialState.FAIL).system_attrs if proposal else {}
        positions = np.maximum(self.space.indices[observation.number], 0).tolist()
        failed = observation.time_ms is None
        self._inner.add_trial(
            added_trial(
                state=TrialState.PRUNED if failed else TrialState.COMPLETE,
                value=observation.time_ms,
                params=dict(zip(self.space.space.names, positions, strict=True)),
                distributions=self._positions,
                system_attrs=notes,
                constraints={"valid": 1.0} if failed else None,
            )
        )


def optuna_sampler_names() -> tuple[str, ...]:
    """Return Optuna's samplers that a seed is enough for; its `BruteForceSampler` is our `exhaustive`."""
    kinds = {name: getattr(optuna.samplers, name) for name in optuna.samplers.__all__}
    return tuple(
        name
        for name, kind in kinds.items()
        if inspect.isclass(kind)
        and not inspect.isabstract(kind)
        and kind is not BruteForceSampler
        and all(one.default is not one.empty for one in inspect.signature(kind).parameters.values())
    )


def optuna_sampler(name: str) -> Callable[[int], BaseSampler]:
    """Return the function that makes Optuna's sampler of that name, one of `optuna_sampler_names`, from a seed.

    Raises:
        UserError: it needs a package that is not installed; the message says how to get it.
    """
    if name in _EXTRAS:
        require_extra(_EXTRAS[name], f"Optuna's {name}", _EXTRAS[name])
    return functools.partial(_make_sampler, getattr(optuna.samplers, name))


def _make_sampler(kind: type[BaseSampler], seed: int) -> BaseSampler:
    parameters = inspect.signature(kind).parameters
    options: dict[str, Any] = {"seed": seed} if "seed" in parameters else {}
    # The first trials are sampled independently, and so is a space of one tunable: one message is enough.
    if "warn_independent_sampling" in parameters and parameters["warn_independent_sampling"].default is True:
        options["warn_independent_sampling"] = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return kind(**options)
