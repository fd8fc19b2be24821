"""Parameters of a test of many like cases: some of them in `make test`, all of them in continuous integration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(quick: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """The values for `parametrize`, each marked slow that is not among the quick ones."""
    kept = list(quick)
    return [value if value in kept else pytest.param(value, marks=pytest.mark.slow) for value in values]
