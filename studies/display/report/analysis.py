"""Analysis of a study's trials: tunables' importance and marginals, pairs of tunables, and reasons of refusal."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

from tunebench.db.queries.rows import TrialRow
from tunebench.tuner.configuration import Configuration, Value
from tunebench.tuner.result import TrialStatus
from tunebench.tuner.space import SearchSpace

INACTIVE = "inactive"
"""The name of a conditional tunable's missing value; quotes keep a text value of that name apart from it."""

ENOUGH_FOR_IMPORTANCE = 10
"""Fewer timed trials than this rank nothing: the best tenth of them would be one trial."""

optuna.logging.set_verbosity(optuna.logging.WARNING)

_NUMBERS = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)
_LONGEST_REASON = 160


@dataclass(frozen=True)
class RefusalCount:
    """Trials that failed alike.

    Attributes:
        reason: the first line of what the first of them said.
        trial: the number of that one.
    """

    status: TrialStatus
    reason: str
    count: int
    trial: int


@dataclass(frozen=True)
class Marginal:
    """The times of all timed trials by one tunable's value.

    Attributes:
        values: as text, in the tunable's own order.
        times_ms: for each value, the medians of the trials that have it.
    """

    tunable: str
    values: tuple[str, ...]
    times_ms: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Grid:
    """The best time for each pair of values of two tunables.

    Attributes:
        best_ms: one row for each value of `down`, one column for each of `across`; None where nothing was timed.
    """

    across: str
    down: str
    across_values: tuple[str, ...]
    down_values: tuple[str, ...]
    best_ms: tuple[tuple[float | None, ...], ...]


def best_so_far(trials: Iterable[TrialRow]) -> list[tuple[int, float]]:
    """Return the trials that improved on all before them: their numbers and medians in milliseconds."""
    steps: list[tuple[int, float]] = []
    for trial in trials:
        median = trial.median_ms
        if trial.status is TrialStatus.CORRECT and median is not None and (not steps or median < steps[-1][1]):
            steps.append((trial.number, median))
    return steps


def values_of(trials: Iterable[TrialRow], space: SearchSpace | None = None) -> dict[str, list[str]]:
    """Return every tunable's values met in these trials, as text; `INACTIVE` last where some have none.

    Args:
        space: gives the order of tunables and of values; numbers ascend and texts are sorted without it.
    """
    configurations = [trial.configuration for trial in trials]
    met: dict[str, set[Value]] = {}
    for configuration in configurations:
        for name, value in configuration.items():
            met.setdefault(name, set()).add(value)
    declared = {tunable.name: tunable.values for tunable in space.tunables} if space else {}
    names = [name for name in declared if name in met] + sorted(set(met) - set(declared))
    values = {}
    for name in names:
        order = {value: place for place, value in enumerate(declared.get(name, ()))}
        ranked = sorted(met[name], key=lambda value: (order.get(value, len(order)), _sort_key(value)))
        values[name] = list(dict.fromkeys(map(str, ranked)))
        if any(name not in configuration for configuration in configurations):
            values[name].append(INACTIVE)
    return values


def value_text(configuration: Configuration, name: str) -> str:
    """Return a tunable's value in a configuration as text."""
    return str(configuration[name]) if name in configuration else INACTIVE


def marginals(trials: Sequence[TrialRow], space: SearchSpace | None = None) -> list[Marginal]:
    """Return the times by value of every tunable that has more than one."""
    found = []
    for name, values in values_of(trials, space).items():
        times: dict[str, list[float]] = {value: [] for value in values}
        for trial in trials:
            times[value_text(trial.configuration, name)].append(trial.median_ms or 0.0)
        if len(values) > 1:
            found.append(Marginal(name, tuple(values), tuple(tuple(times[value]) for value in values)))
    return found


def grid(trials: Sequence[TrialRow], across: str, down: str, space: SearchSpace | None = None) -> Grid:
    """Return the best time of each pair of values of two tunables."""
    values = values_of(trials, space)
    best: dict[tuple[str, str], float] = {}
    for trial in trials:
        cell = (value_text(trial.configuration, down), value_text(trial.configuration, across))
        best[cell] = min(best.get(cell, float("inf")), trial.median_ms or float("inf"))
    rows = tuple(tuple(best.get((down_value, value)) for value in values[across]) for down_value in values[down])
    return Grid(across, down, tuple(values[across]), tuple(values[down]), rows)


def importances(trials: Sequence[TrialRow]) -> dict[str, float]:
    """Return each tunable's share in reaching the fastest tenth of the timed trials, largest first; they sum to 1.

    Optuna's PED-ANOVA (Watanabe et al., IJCAI 2023, and its conditional form, KDD 2026), which needs no regression
    model and knows tunables that are not always active. Empty where there are too few trials, or nothing varies.
    """
    if len(trials) < ENOUGH_FOR_IMPORTANCE:
        return {}
    choices: dict[str, set[Value]] = {name: set() for trial in trials for name in trial.configuration}
    for trial in trials:
        for name, value in trial.configuration.items():
            choices[name].add(value)
    ordered: dict[str, list[Any]] = {name: sorted(met, key=_sort_key) for name, met in choices.items()}
    legal = {name: CategoricalDistribution(values) for name, values in ordered.items()}
    study = optuna.create_study(direction="minimize")
    study.add_trials(_finished(trial, legal) for trial in trials)
    with warnings.catch_warnings():
        # It says that a tunable is rarely inactive, which the reader can see.
        warnings.simplefilter("ignore")
        found = get_param_importances(study, evaluator=PedAnovaImportanceEvaluator(), normalize=False)
    varied = {name for name, values in values_of(trials).items() if len(values) > 1}
    found = {name: share for name, share in found.items() if name in varied}
    total = sum(found.values())
    ranked = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return {name: value / total for name, value in ranked} if total > 0 else {}


def pareto_front(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points than which no other is lower in one part and not higher in the other, by the first part."""
    front: list[tuple[float, float]] = []
    for point in sorted(points):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front


def refusals(trials: Iterable[TrialRow]) -> list[RefusalCount]:
    """Count the trials that were not timed, by status and reason, the most frequent first.

    Reasons that differ in their numbers only (an error figure, an index, a line of the source) are one.
    """
    groups: dict[tuple[TrialStatus, str], list[TrialRow]] = {}
    for trial in trials:
        if not trial.status.timed:
            groups.setdefault((trial.status, _NUMBERS.sub("0", _first_line(trial.message))), []).append(trial)
    found = [
        RefusalCount(status, _first_line(group[0].message), len(group), group[0].number)
        for (status, _), group in groups.items()
    ]
    return sorted(found, key=lambda refusal: (-refusal.count, refusal.trial))


def _first_line(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    first = lines[0] if lines else "no reason given"
    return first if len(first) <= _LONGEST_REASON else first[: _LONGEST_REASON - 1] + "…"


def _finished(trial: TrialRow, legal: Mapping[str, CategoricalDistribution]) -> optuna.trial.FrozenTrial:
    return optuna.create_trial(
        value=trial.median_ms,
        params=dict(trial.configuration),
        distributions={name: legal[name] for name in trial.configuration},
    )


def _sort_key(value: Value) -> tuple[int, float, str]:
    """Return a key that sorts numbers before texts, each in their own order."""
    return (1, 0.0, value) if isinstance(value, str) else (0, float(value), "")
