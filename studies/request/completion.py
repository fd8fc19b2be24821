"""Shell completion of options whose type does not say what is legal."""

from __future__ import annotations

from collections.abc import Callable, Iterable

SAMPLERS = ("gp", "tpe", "random", "exhaustive", "optuna:GPSampler", "optuna:TPESampler", "optuna:CmaEsSampler")
"""Spelt out because importing Optuna takes longer than the shell waits."""


def among(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Return what completes the beginning of one of these."""

    def complete(incomplete: str) -> list[str]:
        return [str(name) for name in names if name.startswith(incomplete)]

    return complete


def complete_kernel(incomplete: str) -> list[str]:
    """Names of shipped and installed kernels."""
    from tunebench.kernels.runtime.installed import installed_names
    from tunebench.kernels.runtime.registry import kernel_names

    return among([*kernel_names(), *installed_names()])(incomplete)


def complete_setting(incomplete: str) -> list[str]:
    """PyTorch's settings with their values."""
    from tunebench.tuner.settings import VALUES

    return among([f"{name}={value}" for name, values in VALUES.items() for value in values])(incomplete)
