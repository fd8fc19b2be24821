"""A dictionary that does not grow with the shapes that a program uses."""

from __future__ import annotations

from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Latest(dict[Key, Value]):
    """A dictionary that keeps what was put in last; what goes is found out again when it is needed.

    Args:
        most: so many entries.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        while len(self) > self._most:
            self.pop(next(iter(self)), None)
