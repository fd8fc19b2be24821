"""What the shell completes: names of kernels, compilers, samplers, modes, and of how trials end."""

from __future__ import annotations

from collections.abc import Iterable

SAMPLERS = ("gp", "tpe", "random", "exhaustive", "optuna:GPSampler", "optuna:TPESampler", "optuna:CmaEsSampler")
"""Spelt out because importing Optuna takes longer than the shell waits."""


def complete_kernel(incomplete: str) -> list[str]:
    """Names of shipped and installed kernels."""
    from tunebench.kernels.runtime.installed import installed_names
    from tunebench.kernels.runtime.registry import kernel_names

    return _beginning(incomplete, [*kernel_names(), *installed_names()])


def complete_compiler(incomplete: str) -> list[str]:
    """Names of compilers."""
    from tunebench.tuner.build import CompilerName

    return _beginning(incomplete, CompilerName)


def complete_status(incomplete: str) -> list[str]:
    """How trials end."""
    from tunebench.tuner.result import TrialStatus

    return _beginning(incomplete, TrialStatus)


def complete_sampler(incomplete: str) -> list[str]:
    """Names of samplers."""
    return _beginning(incomplete, SAMPLERS)


def complete_mode(incomplete: str) -> list[str]:
    """Modes of a module."""
    return _beginning(incomplete, ("eval", "train", "frozen"))


def complete_setting(incomplete: str) -> list[str]:
    """PyTorch's settings with their values."""
    from tunebench.tuner.settings import VALUES

    return _beginning(incomplete, [f"{name}={value}" for name, values in VALUES.items() for value in values])


def complete_block(incomplete: str) -> list[str]:
    """Building blocks of kernels."""
    return _beginning(incomplete, ("pointwise", "rows", "linear", "conv"))


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [str(name) for name in names if name.startswith(incomplete)]
