"""The problems of a kernel's calls at drawn sizes, of which unequal ones have to be unequal."""

from __future__ import annotations

import json
import random
from typing import Any

import torch

from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.tuning.for_problem import problem_of
from tunebench.tuner.problem import Problem
from tunebench.tuner.reference import Reference

NOWHERE = torch.device("meta")
DRAWS = 12


def _what_is_given(reference: Reference) -> str:
    """Return the sizes and types of all that goes into a call, and the whole numbers that the model is made with."""
    model = reference.make_model(0, NOWHERE)
    tensors = [*model.state_dict().values(), *reference.make_inputs(0, NOWHERE)]
    numbers = [one for one in reference.get_init_inputs() if not isinstance(one, float)]
    told = [(str(one.dtype), list(one.shape)) if isinstance(one, torch.Tensor) else one for one in tensors]
    return json.dumps([told, numbers], default=str)


def _draw(drawn: random.Random, sizes: dict[str, Any]) -> dict[str, Any]:
    """Change one or two of the whole numbers: a little, or by a factor."""
    names = drawn.sample(sorted(sizes), min(len(sizes), drawn.choice((1, 1, 2))))
    return {**sizes, **{name: drawn.choice((sizes[name] + 1, 2 * sizes[name], 4 * sizes[name])) for name in names}}


def known_problems(factory: type[TunedModule], seed: int) -> dict[str, Problem]:
    """Identify calls of drawn sizes in every mode; fail where two unequal ones are one problem."""
    drawn = random.Random(seed)
    kernel = factory.kernel
    reference = kernel.reference()
    whole = {name: size for name, size in reference.sizes.items() if isinstance(size, int)}
    found: dict[str, Problem] = {}
    for sizes in (whole, *(_draw(drawn, whole) for _ in range(DRAWS))):
        resized = reference.resized(sizes)
        try:
            given = _what_is_given(resized)
        except (RuntimeError, ValueError, ArithmeticError, LookupError):
            continue  # such as groups that do not divide the channels
        for mode in kernel.modes:
            problem = problem_of(factory, resized, mode)
            if problem is None:
                continue
            key = f"{mode.value} {given}"
            alike = [other for other, known in found.items() if known == problem and other != key]
            assert not alike, f"{problem} is both {key} and {alike[0]}"
            assert found.setdefault(key, problem) == problem
    return found
