"""Every strategy by its name: tunebench's own, and any of Optuna's samplers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TypeAlias

from tunebench.tuner.errors import UnknownNameError
from tunebench.tuner.search.filtered import FilteredSampler, optuna_sampler, optuna_sampler_names
from tunebench.tuner.search.sampler import ExhaustiveSampler, PoolGpSampler, PoolSampler, RandomSampler
from tunebench.tuner.space import ValidSpace

SamplerMaker: TypeAlias = Callable[[ValidSpace, int | None], PoolSampler]

_OPTUNA = "optuna:"


def _through_optuna(name: str) -> SamplerMaker:
    return functools.partial(FilteredSampler, optuna_sampler(name))


SAMPLERS: Mapping[str, SamplerMaker] = {
    "gp": PoolGpSampler,
    "tpe": _through_optuna("TPESampler"),
    "random": RandomSampler,
    "exhaustive": ExhaustiveSampler,
}
"""The strategies that have a name of their own; the first is the default."""


def find_sampler(name: str) -> SamplerMaker:
    """Return the maker of a strategy: one of `SAMPLERS`, or `optuna:` and the name of Optuna's sampler.

    Raises:
        UnknownNameError: there is no such strategy; the message has the nearest names.
        UserError: it needs a package that is not installed; the message says how to get it.
    """
    if name in SAMPLERS:
        return SAMPLERS[name]
    of_optuna = {_OPTUNA + one: one for one in optuna_sampler_names()}
    if name not in of_optuna:
        raise UnknownNameError("sampler", name, (*SAMPLERS, *of_optuna))
    return _through_optuna(of_optuna[name])


def make_sampler(name: str, space: ValidSpace, seed: int | None = None) -> PoolSampler:
    """Return the strategy of that name over a space; raises as `find_sampler` does."""
    return find_sampler(name)(space, seed)
