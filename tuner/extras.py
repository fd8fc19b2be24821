"""Packages that come with an extra of tunebench."""

from __future__ import annotations

import importlib.util

from tunebench.tuner.errors import UserError


def require_extra(extra: str, what: str, *packages: str) -> None:
    """Check that the packages of an extra are installed.

    Raises:
        UserError: one of them is missing; the message says how to get it.
    """
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise UserError(f"{what} needs {' and '.join(missing)}: pip install 'tunebench[{extra}]'")
