"""When two configurations are one and the same run: equal machine code, and a host that does the same with it.

What the host does depends on the values that the model's forward looks at. A `WatchedConfiguration` notes which these
are, so that nobody has to declare it: a forward that looked at some values only does the same for every configuration
that agrees in them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from tunebench.tuner.build import Build
from tunebench.tuner.compile.machine_code import machine_code_digest
from tunebench.tuner.space import Configuration, Value


class WatchedConfiguration(Configuration):
    """A configuration that notes which of its tunables are looked at, those that it does not have included."""

    __slots__ = ("seen",)

    def __init__(self, values: Mapping[str, Value]) -> None:
        super().__init__(values)
        self.seen: set[str] = set()

    def __getitem__(self, name: str) -> Value:
        self.seen.add(name)
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        self.seen.update(super().__iter__())
        return super().__iter__()

    def integer(self, name: str) -> int:
        """See `Configuration.integer`."""
        self.seen.add(name)
        return super().integer(name)


def run_key(build: Build, watched: WatchedConfiguration) -> str:
    """All that a run of a problem depended on: the machine code's digest, and the values that the host looked at."""
    host = {name: watched.get(name) for name in sorted(watched.seen)}
    return json.dumps({"code": machine_code_digest(build.code), "host": host}, sort_keys=True)


class KnownRuns:
    """Runs by what they depend on, for finding one that another configuration would only repeat."""

    def __init__(self) -> None:
        self._keys: set[str] = set()
        self._by_code: dict[str, list[tuple[Mapping[str, Value | None], int]]] = {}

    def add(self, key: str, trial: int) -> bool:
        """Remember the run of a trial; False where an earlier trial had that very run.

        A key that is none of `run_key`'s is passed over.
        """
        if key in self._keys:
            return False
        self._keys.add(key)
        try:
            parts = json.loads(key)
            code, host = parts["code"], dict(parts["host"])
        except (ValueError, TypeError, KeyError):
            return True
        self._by_code.setdefault(str(code), []).append((host, trial))
        return True

    def same_as(self, configuration: Configuration, build: Build) -> int | None:
        """The first trial whose run is this configuration's too; None where there is none."""
        if not self._by_code:
            return None
        for host, trial in self._by_code.get(machine_code_digest(build.code), ()):
            if all(configuration.get(name) == value for name, value in host.items()):
                return trial
        return None
