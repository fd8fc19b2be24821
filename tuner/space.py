"""The search space: typed tunables, named constraints, and the enumeration of the valid configurations.

Constraints and conditions are predicates whose *parameter names* say what they look at: names of tunables, `problem`
(a `tunebench.tuner.problem.Problem`) and `device` (a `tunebench.tuner.device.Device`). Knowing the names lets the
enumeration test a constraint as soon as its last tunable has a value, so that an invalid subtree is never walked.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from tunebench.tuner.configuration import Configuration, Value
from tunebench.tuner.errors import EmptySpaceError, UnknownNameError, UserError
from tunebench.tuner.users_code import UsersCodeError, told

if TYPE_CHECKING:
    from tunebench.tuner.device import Device
    from tunebench.tuner.problem import Problem

Predicate: TypeAlias = Callable[..., bool]

INACTIVE = -1
"""The value index of a conditional tunable whose condition does not hold."""

_CONTEXT = ("problem", "device")

_ROWS_AT_ONCE = 1 << 18

_CPP_TEXT = (
    "alignas alignof and asm auto bool break case catch char class const constexpr continue decltype default delete do "
    "double else enum explicit export extern false float for friend goto if inline int long mutable namespace new not "
    "operator or private protected public register return short signed sizeof static struct switch template this throw "
    "true try typedef typename union unsigned using virtual void volatile while xor"
)
CPP_WORDS = frozenset(_CPP_TEXT.split())
"""The words that cannot be names in a source."""


@lru_cache(maxsize=1024)
def parameters_of(predicate: Callable[..., object]) -> tuple[str, ...]:
    """Return the names that a predicate reads."""
    return tuple(inspect.signature(predicate).parameters)


@dataclass(frozen=True)
class Tunable:
    """A named parameter of a kernel with its possible values, in an order that means something where there is one.

    Attributes:
        name: the same name as in the `.cu` source.
        values: the legal values, all of one type.
        default: the hand-picked value; the first one unless given.
        when: a predicate over earlier tunables, `problem` and `device`; where it is false the tunable does not matter
            and is absent from the configuration, so that it does not multiply the space.
        host: decided by the host code alone; it is not compiled into the binary, so variants that differ only in such
            tunables share one build.
    """

    name: str
    values: tuple[Value, ...]
    when: Predicate | None = None
    host: bool = False
    default: Value | None = None

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name in _CONTEXT:
            raise UserError(f"'{self.name}' cannot name a tunable: use an identifier other than {', '.join(_CONTEXT)}")
        if self.name in CPP_WORDS:
            raise UserError(f"'{self.name}' cannot name a tunable: it is a word of C++, where it names a constant")
        if isinstance(self.values, str) or not isinstance(self.values, Sequence):
            raise UserError(f"tunable '{self.name}': its values are {self.values!r}: give a tuple, such as (1, 2, 4)")
        if not self.values:
            raise UserError(f"tunable '{self.name}' has no values: give at least one")
        if len({type(value) for value in self.values}) != 1 or not isinstance(self.values[0], bool | int | float | str):
            raise UserError(f"tunable '{self.name}' mixes types: its values must all be bool, int, float or str")
        if len(set(self.values)) != len(self.values):
            raise UserError(f"tunable '{self.name}' repeats a value: {list(self.values)}")
        if self.default is not None and not self.has(self.default):
            raise UserError(f"tunable '{self.name}' has no value {self.default!r}; its values are {list(self.values)}")

    def has(self, value: Value) -> bool:
        """Return whether this is a value of it, type included: True equals 1, and would be compiled as what it is."""
        return value in self.values and type(value) is type(self.values[0])


@dataclass(frozen=True)
class Constraint:
    """A named predicate that every valid configuration satisfies.

    A constraint over a tunable that is inactive in a configuration does not apply to that configuration.
    """

    name: str
    holds: Predicate


@dataclass(frozen=True)
class SearchSpace:
    """The declared space: tunables and constraints.

    Attributes:
        starts: what a study begins with, each some tunables' values, where it is valid: the first before the default.
        rounding: the tunables that decide how exact an answer is: a study that finds one configuration too far off by
            rounding leaves out those that have the same values of all of these.
        names: of the tunables.
        default: the hand-picked value of every tunable, those that are inactive by default included.
    """

    tunables: tuple[Tunable, ...]
    constraints: tuple[Constraint, ...] = ()
    starts: tuple[Mapping[str, Value], ...] = ()
    rounding: tuple[str, ...] = ()
    names: tuple[str, ...] = field(init=False)
    default: Mapping[str, Value] = field(init=False)

    def __post_init__(self) -> None:
        for what, given, kind in (("tunables", self.tunables, Tunable), ("constraints", self.constraints, Constraint)):
            several: Sequence[object] = given if isinstance(given, Sequence) else [given]
            wrong = [one for one in several if not isinstance(one, kind)]
            if wrong or several is not given:
                shown = type(wrong[0] if wrong else given).__name__
                raise UserError(f"the space's {what} are or have a {shown}: give a tuple of {kind.__name__}(name, …)")
        names = tuple(tunable.name for tunable in self.tunables)
        object.__setattr__(self, "names", names)
        default = {one.name: one.values[0] if one.default is None else one.default for one in self.tunables}
        object.__setattr__(self, "default", default)
        if len(set(names)) != len(names):
            raise UserError(f"a tunable is declared twice among {', '.join(names)}")
        for position, tunable in enumerate(self.tunables):
            self._require_known(tunable.when, names[:position], f"the condition of tunable '{tunable.name}'")
        for constraint in self.constraints:
            self._require_known(constraint.holds, names, f"constraint '{constraint.name}'")
        for name in self.rounding:
            self.tunable(name)

    @staticmethod
    def _require_known(predicate: Predicate | None, known: Sequence[str], owner: str) -> None:
        for name in parameters_of(predicate) if predicate else ():
            if name not in known and name not in _CONTEXT:
                raise UnknownNameError(f"name in {owner}", name, (*known, *_CONTEXT))

    def tunable(self, name: str) -> Tunable:
        """Return the tunable of that name.

        Raises:
            UnknownNameError: there is none; the message has the nearest names.
        """
        for tunable in self.tunables:
            if tunable.name == name:
                return tunable
        raise UnknownNameError("tunable", name, self.names)

    def value_in(self, configuration: Mapping[str, Value], name: str) -> Value:
        """Return the value of a tunable in a configuration; if inactive, the one that a binary is compiled with.

        Raises:
            UnknownNameError: there is no such tunable.
        """
        return configuration[name] if name in configuration else self.tunable(name).values[0]

    def restrict(self, allowed: Mapping[str, Sequence[Value]]) -> SearchSpace:
        """Return the same space with some tunables limited to some of their values; the rest of it is unchanged.

        Raises:
            UnknownNameError: a name that is no tunable of this space.
            UserError: a value that the tunable does not have.
        """
        for name, values in allowed.items():
            tunable = self.tunable(name)
            for value in values:
                if not tunable.has(value):
                    raise UserError(f"tunable '{name}' has no value {value!r}; its values are {list(tunable.values)}")
            if not values:
                raise UserError(f"tunable '{name}' is restricted to no values; its values are {list(tunable.values)}")

        def restricted(tunable: Tunable) -> Tunable:
            values = tuple(allowed.get(tunable.name, tunable.values))
            default = self.default[tunable.name]
            return replace(tunable, values=values, default=default if default in values else None)

        return replace(self, tunables=tuple(map(restricted, self.tunables)))

    def fix(self, values: Mapping[str, Value]) -> SearchSpace:
        """Return the same space with some tunables at one value each; raises as `restrict` does."""
        return self.restrict({name: [value] for name, value in values.items()})

    def enumerate(self, problem: Problem | None = None, device: Device | None = None) -> ValidSpace:
        """Return every valid configuration for a problem on a device.

        Raises:
            EmptySpaceError: there is none; the message names the constraint that emptied the space.
        """
        context = {"problem": problem, "device": device}
        walk = _Walk(self, context)
        rows = walk.rows(self.constraints)
        if not len(rows):
            raise EmptySpaceError(self._why_empty(walk))
        return ValidSpace(self, rows)

    def admits(self, values: Mapping[str, Value], problem: Problem | None, device: Device | None) -> bool:
        """Return whether these values, types included, are a valid configuration; the others are not looked at.

        256.0 and True equal 256 and 1, and would be compiled as what they are: they are not admitted for them.
        """
        found = self._member(values, problem, device)
        return found is not None and found.keys() == values.keys()

    def default_for(self, problem: Problem | None, device: Device | None) -> Configuration:
        """Return the default configuration where it is valid, else the valid one nearest to it.

        Raises:
            EmptySpaceError: there is no valid configuration at all.
        """
        found = self._member(self.default, problem, device)
        if found is None and (found := self._nearest(problem, device)) is None:
            raise EmptySpaceError(self._why_empty(_Walk(self, {"problem": problem, "device": device})))
        return found

    def _nearest(
        self, problem: Problem | None, device: Device | None, active: Collection[str] = ()
    ) -> Configuration | None:
        """Return the valid configuration nearest to the default in which these tunables are active; None without one.

        Nearly always few tunables have to differ from the default: what differs in more is looked at last.
        """
        walk, columns = _Walk(self, {"problem": problem, "device": device}), [self.names.index(name) for name in active]
        for changes in (1, 2, None):
            valid = ValidSpace(self, walk.rows(self.constraints, changes))
            among = (valid.indices[:, columns] != INACTIVE).all(axis=1)
            if among.any():
                return cast(Configuration, valid[valid.nearest(self.default, among)])
        return None

    def completed(
        self, values: Mapping[str, Value], problem: Problem | None, device: Device | None
    ) -> Configuration | None:
        """Return the configuration with those of these values that are a tunable's here, and else with the default's.

        None where that is not valid, as where a value is none of its tunable's.
        """
        shared = {name: values.get(name, value) for name, value in self.default.items()}
        try:
            return self._member(shared, problem, device)
        except UserError:
            return None

    def _member(
        self, values: Mapping[str, Value], problem: Problem | None, device: Device | None
    ) -> Configuration | None:
        """Return the configuration with these values, without inactive tunables' ones; None where it is not valid."""
        if not all(name in self.names and self.tunable(name).has(value) for name, value in values.items()):
            return None
        return _Walk(self, {"problem": problem, "device": device}).member(values, self.constraints)

    def choose(self, values: Mapping[str, Value], problem: Problem | None, device: Device | None) -> Configuration:
        """Return the valid configuration with these values that is otherwise nearest to the default.

        Raises:
            EmptySpaceError: there is no valid configuration at all.
            UserError: none has these values; the message names the nearest one.
        """
        if (found := self.fix(values)._nearest(problem, device, values)) is not None:
            return found
        valid = self.enumerate(problem, device)
        nearest = valid[valid.nearest({**self.default, **values})]
        wrong = ", ".join(name for name, value in values.items() if nearest.get(name) != value)
        raise UserError(f"not valid for {problem}: {wrong} cannot be so; the nearest that is: {nearest}")

    def _why_empty(self, walk: _Walk) -> str:
        """Name the constraints each of which alone empties the space, or else some that do so only together."""
        total = len(walk.rows(()))
        guilty = tuple(constraint for constraint in self.constraints if not len(walk.rows((constraint,))))
        manner = "each"
        if not guilty:
            guilty, manner = self.constraints, "together"
            for constraint in self.constraints:
                others = tuple(one for one in guilty if one is not constraint)
                guilty = guilty if len(walk.rows(others)) else others
        names = ", ".join(f"'{constraint.name}'" for constraint in guilty)
        seen = ", ".join(dict.fromkeys(name for one in guilty for name in parameters_of(one.holds)))
        if len(guilty) == 1:
            who, what = f"constraint {names} refuses", "it, or allow more values of what it looks at"
        else:
            who, what = f"constraints {names} {manner} refuse", "them, or allow more values of what they look at"
        return f"no valid configuration: {who} all of the {total} left; loosen {what} ({seen})"


class _Walk:
    """Enumeration of one space in one context, tunable by tunable, constraints tested as early as they can be.

    Many partial configurations are extended at once, and a predicate is asked once for each combination of the values
    that it looks at, however many of them have it.
    """

    def __init__(self, space: SearchSpace, context: Mapping[str, Any]) -> None:
        self._space = space
        self._context = context
        self._position = {tunable.name: index for index, tunable in enumerate(space.tunables)}

    def rows(self, constraints: Sequence[Constraint], changes: int | None = None) -> npt.NDArray[np.int16]:
        """Return value indices, one row a configuration, `INACTIVE` where a tunable does not matter.

        Rows are in the order of nested loops over the tunables' values, the last tunable's the innermost.

        Args:
            changes: limit of the tunables that differ from the default, as inactive ones do not; None for no limit.
        """
        tunables = self._space.tunables
        default = np.array([one.values.index(self._space.default[one.name]) for one in tunables])
        ready = self._ready(constraints)

        def extended(rows: npt.NDArray[np.int16], depth: int) -> Iterator[npt.NDArray[np.int16]]:
            for predicate in ready[depth]:
                rows = rows[self._met(predicate, rows, if_inactive=True)]
            if changes is not None:
                rows = rows[((rows != default[:depth]) & (rows != INACTIVE)).sum(axis=1) <= changes]
            if depth == len(tunables) or not len(rows):
                yield rows
                return
            tunable = tunables[depth]
            most = max(1, _ROWS_AT_ONCE // len(tunable.values))
            for first in range(0, len(rows), most):
                block = rows[first : first + most]
                yield from extended(self._with_values_of(tunable, block), depth + 1)

        found = [rows for rows in extended(np.zeros((1, 0), np.int16), 0) if len(rows)]
        return np.concatenate(found) if found else np.zeros((0, len(tunables)), np.int16)

    def member(self, values: Mapping[str, Value], constraints: Sequence[Constraint]) -> Configuration | None:
        """Return the configuration with these values, without inactive tunables' ones; None where it is not valid."""
        ready = self._ready(constraints)
        chosen: dict[str, Value] = {}
        for depth, tunable in enumerate((*self._space.tunables, None)):
            if any(self.says(predicate, chosen) is False for predicate in ready[depth]):
                return None
            if tunable is not None and (tunable.when is None or self.says(tunable.when, chosen)):
                if tunable.name not in values:
                    return None
                chosen[tunable.name] = values[tunable.name]
        return Configuration(chosen)

    def _ready(self, constraints: Sequence[Constraint]) -> list[list[Predicate]]:
        """Return, for each number of tunables with values, the constraints that can be checked from there on."""
        ready: list[list[Predicate]] = [[] for _ in range(len(self._space.tunables) + 1)]
        for constraint in constraints:
            names = parameters_of(constraint.holds)
            last = max((self._position[name] + 1 for name in names if name in self._position), default=0)
            ready[last].append(constraint.holds)
        return ready

    def _with_values_of(self, tunable: Tunable, rows: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
        """Return each row once for each value of the tunable, or once where its condition does not hold."""
        count = len(tunable.values)
        values = np.tile(np.arange(count, dtype=np.int16), len(rows))
        kept = np.ones(len(values), dtype=bool)
        if tunable.when is not None:
            # A condition on a tunable that is itself inactive is not met.
            active = np.repeat(self._met(tunable.when, rows, if_inactive=False), count)
            kept = active | (values == 0)
            values[~active] = INACTIVE
        return np.column_stack((np.repeat(rows, count, axis=0)[kept], values[kept]))

    def _met(self, predicate: Predicate, rows: npt.NDArray[np.int16], *, if_inactive: bool) -> npt.NDArray[np.bool_]:
        """Return whether the predicate is true of each row; `if_inactive` where a tunable it reads is inactive."""
        seen = [name for name in parameters_of(predicate) if name in self._position]
        levels = rows[:, [self._position[name] for name in seen]].astype(np.intp) + 1
        counts = [len(self._space.tunable(name).values) + 1 for name in seen]
        if math.prod(counts) < np.iinfo(np.intp).max:
            levels = levels @ np.array([math.prod(counts[:position]) for position in range(len(counts))], dtype=np.intp)
        _, first, which = np.unique(levels, axis=0, return_index=True, return_inverse=True)

        def met(row: npt.NDArray[np.int16]) -> bool:
            indices = {name: int(row[self._position[name]]) for name in seen}
            chosen = {n: self._space.tunable(n).values[index] for n, index in indices.items() if index != INACTIVE}
            said = self.says(predicate, chosen)
            return if_inactive if said is None else said

        return np.array([met(rows[number]) for number in first], dtype=bool)[which.reshape(-1)]

    def says(self, predicate: Predicate, chosen: Mapping[str, Value]) -> bool | None:
        """Return a predicate's value; None where a tunable that it reads has no value, as it is inactive."""
        values = {**self._context, **chosen}
        asked = {name: values[name] for name in parameters_of(predicate) if name in values}
        if len(asked) < len(parameters_of(predicate)):
            return None
        try:
            return bool(predicate(*asked.values()))
        except Exception as error:
            raise self._broken(predicate, asked, error) from error

    def _broken(self, predicate: Predicate, values: Mapping[str, Any], error: Exception) -> UserError:
        """Return the error of a predicate that raised."""
        named = [(f"the condition of tunable '{one.name}'", one.when) for one in self._space.tunables]
        named += [(f"constraint '{one.name}'", one.holds) for one in self._space.constraints]
        owner = next((name for name, one in named if one is predicate), "a predicate")
        shown = " ".join(f"{name}={value}" for name, value in values.items() if name in self._space.names)
        file = Path(inspect.getsourcefile(predicate) or "")
        return UsersCodeError(told(error, f"{owner} fails for {shown}" if shown else f"{owner} fails", file))


class ValidSpace(Sequence[Configuration]):
    """The enumerated valid configurations of a space, in enumeration order, held as value indices.

    Attributes:
        space: the declared space.
        indices: int16 array (configurations × tunables) of value indices, `INACTIVE` where a tunable does not matter.
    """

    def __init__(self, space: SearchSpace, indices: npt.NDArray[np.int16]) -> None:
        self.space = space
        self.indices = indices
        self._value_index = [{value: index for index, value in enumerate(t.values)} for t in space.tunables]

    @cached_property
    def _number_of(self) -> dict[bytes, int]:
        """The number of each configuration by its value indices."""
        width, every = self.indices.shape[1] * self.indices.itemsize, self.indices.tobytes()
        return {every[width * number : width * (number + 1)]: number for number in range(len(self))}

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        row = self.indices[number]
        return Configuration(
            {
                tunable.name: tunable.values[index]
                for tunable, index in zip(self.space.tunables, row.tolist(), strict=True)
                if index != INACTIVE
            }
        )

    def find(self, configuration: Mapping[str, Value]) -> int | None:
        """Return the number of a configuration in this space, or None where it is not a member of it."""
        row = np.full(len(self.space.tunables), INACTIVE, dtype=np.int16)
        for position, tunable in enumerate(self.space.tunables):
            if tunable.name in configuration:
                index = self._value_index[position].get(configuration[tunable.name])
                if index is None:
                    return None
                row[position] = index
        if len(set(configuration) - set(self.space.names)):
            return None
        return self._number_of.get(row.tobytes())

    def require(self, configuration: Mapping[str, Value]) -> int:
        """Return the number of a configuration that is to be a member of this space.

        Raises:
            UserError: it is none.
        """
        number = self.find(configuration)
        if number is None:
            shown = " ".join(f"{name}={value}" for name, value in configuration.items())
            raise UserError(f"not a valid configuration: {shown}; name members of the space only")
        return number

    @cached_property
    def rounding_columns(self) -> list[int]:
        """The columns of `indices` that decide how exact an answer is."""
        return [position for position, name in enumerate(self.space.names) if name in self.space.rounding]

    def rounding_alike(self, number: int) -> npt.NDArray[np.intp]:
        """Return the numbers of the configurations that round as one does, itself among them."""
        if not (columns := self.rounding_columns):
            return np.array([number])
        return np.flatnonzero((self.indices[:, columns] == self.indices[number, columns]).all(axis=1))

    def nearest(self, values: Mapping[str, Value], among: npt.NDArray[np.bool_] | None = None) -> int:
        """Return the number of the configuration that differs from the given values in the fewest tunables.

        Of several the one whose values are the fewest steps away counts, then the first. Tunables that are inactive in
        a configuration are not counted as different.

        Args:
            among: True for each configuration to choose from, at least one; None for all.
        """
        differing, steps = self._away_from(values)
        away = differing * (int(steps.max()) + 1) + steps
        return int(np.argmin(away if among is None else np.where(among, away, np.iinfo(np.int64).max)))

    def completing(self, values: Mapping[str, Value]) -> int | None:
        """Return the number of the configuration that has all of these values and is otherwise nearest to the default.

        None where there is none. What this space has no tunable for is not looked at.
        """
        rows = np.arange(len(self))
        for position, tunable in enumerate(self.space.tunables):
            if tunable.name in values:
                index = self._value_index[position].get(values[tunable.name])
                if index is None:
                    return None
                rows = rows[self.indices[rows, position] == index]
        if not len(rows):
            return None
        default = [self._value_index[i][self.space.default[t.name]] for i, t in enumerate(self.space.tunables)]
        return int(rows[np.argmin((self.indices[rows] != np.array(default)).sum(axis=1))])

    def simplest_first(self, configurations: Iterable[Configuration]) -> list[Configuration]:
        """Return configurations of this space, those closer to the default first.

        Closer is: fewer tunables that differ from the default, then fewer steps along the tunables' values.
        """
        differing, steps = self._away_from(self.space.default)

        def distance(configuration: Configuration) -> tuple[int, int]:
            number = self.require(configuration)
            return int(differing[number]), int(steps[number])

        return sorted(configurations, key=distance)

    def _away_from(self, values: Mapping[str, Value]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return for each configuration in how many tunables it differs from these values, and by how many steps."""
        indices = np.array(
            [self._value_index[i].get(values.get(t.name, t.values[0]), 0) for i, t in enumerate(self.space.tunables)],
            dtype=np.int16,
        )
        live = self.indices != INACTIVE
        differing = ((self.indices != indices) & live).sum(axis=1)
        return differing, np.where(live, np.abs(self.indices - indices), 0).sum(axis=1)

    @cached_property
    def default(self) -> int:
        """The number of the default configuration, or of the valid one nearest to it; looked for once."""
        return self.nearest(self.space.default)
