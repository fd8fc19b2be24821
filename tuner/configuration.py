"""A configuration: one member of a search space. Results need it and no more of the space, so it stands apart."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Self, TypeAlias

Value: TypeAlias = bool | int | float | str


class Configuration(Mapping[str, Value]):
    """One member of a search space: the values of its active tunables, immutable, equal by content."""

    __slots__ = ("_key", "_values")

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = dict(values)
        self._key = json.dumps(self._values, sort_keys=True, separators=(",", ":"))

    @property
    def key(self) -> str:
        """Canonical JSON: equal configurations have equal keys, whatever the order of their tunables."""
        return self._key

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self._key == other._key

    def __deepcopy__(self, memo: object) -> Self:
        """Return itself: it is immutable, and Optuna copies every trial that is added to a study."""
        return self

    def __repr__(self) -> str:
        return "Configuration(" + ", ".join(f"{name}={value!r}" for name, value in self.items()) + ")"

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.items())
