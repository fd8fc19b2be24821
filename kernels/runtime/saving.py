"""Saving what models chose; `choices_file.py` has the file and how it is served again."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from tunebench.kernels.runtime.choices_file import original, write_choices
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.errors import UserError


def save_choices(path: str | Path, *models: nn.Module) -> int:
    """Write what served the problems that models have met, for `load_choices`.

    Args:
        models: tuned models, or modules that hold some.

    Returns:
        How many choices were written.

    Raises:
        UserError: the models have met no problem yet, a kernel is still being built, or the file cannot be written.
    """
    tuned = [module for model in models for module in model.modules() if isinstance(module, TunedModule)]
    met = [
        (module.kernel, problem, device, choice)
        for module in tuned
        for (problem, device), choice in module.choices.items()
        if problem is not None and device is not None
    ]
    for kernel, problem, _, choice in met:
        if choice.being_built:
            raise UserError(
                f"{kernel.name} is still being built for {problem}: call it with use_policy(wait=True) first"
            )
    choices = [original(*one) for one in met]
    if not choices:
        raise UserError(
            f"nothing to save in {path}: no tuned model among these has been called with what a kernel serves"
        )
    write_choices(Path(path), choices)
    return len(choices)
