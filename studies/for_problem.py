"""Studies of a problem that a program has met: which sizes of its kernel's reference make it, and tuning it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import torch

from tunebench.db.connection.database import Database, open_database
from tunebench.db.queries.misses import misses
from tunebench.db.queries.rows import MissRow
from tunebench.kernels.runtime.registry import kernel_names, load_model, of_current_kernels, target_of
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.study_file import make_request
from tunebench.studies.tune import Resolved, resolve, tune
from tunebench.tuner.device import Device, find_devices
from tunebench.tuner.errors import KernelFolderError, TunebenchError, UnknownNameError, UserError
from tunebench.tuner.kernel import Kernel, Mode
from tunebench.tuner.problem import Problem
from tunebench.tuner.reference import Reference

_MANY = 1_000_000

Sizes = Mapping[str, int]


class UnfitProblemError(UserError):
    """A problem that the reference's own inputs cannot be made into."""


def tune_problem(kernel: Kernel, problem: Problem, device: Device, seconds: float) -> None:
    """Run a study of one problem, recorded in the user's own database.

    Args:
        seconds: of the search; starting it and the final comparison come on top.

    Raises:
        TunebenchError: it cannot be tuned.
    """
    name = str(device.torch_device)
    resolved = resolve_problem(target_of(kernel), problem, {"seconds": seconds, "trials": _MANY, "device": name})
    with open_database() as database:
        tune(resolved, database)


def resolve_misses(
    database: Database, kernels: Collection[str], options: Mapping[str, object], limit: int, tell: Callable[[str], None]
) -> list[Resolved]:
    """The studies of what was served without evidence on a device, the most used first.

    Args:
        kernels: only these; all where none is named.
        options: keys of a study file, such as `device` and `trials`.
        limit: so many studies at most.
        tell: called with a line on each problem that cannot be tuned.

    Raises:
        UserError: the database cannot be read, or an option is not legal.
    """
    named = make_request({"kernel": "any", **options}, "the options")
    device = find_devices(named.devices or [named.device])[0]
    found: list[Resolved] = []
    for miss in of_current_kernels(misses(database, device=device.name)):
        if len(found) == limit:
            break
        if kernels and miss.kernel not in kernels:
            continue
        try:
            resolved = resolve_problem(_target_of(miss), miss.problem, options)
        except (KernelFolderError, UnknownNameError, UnfitProblemError) as error:
            tell(str(error))
            continue
        if resolved.kernel.digest == miss.source_digest:
            found.append(resolved)
        else:
            tell(f"{miss.kernel} at {miss.path} is another version than the one that was served")
    return found


def _target_of(miss: MissRow) -> str:
    return miss.kernel if miss.kernel in kernel_names() else miss.path


def resolve_problem(target: str, problem: Problem, options: Mapping[str, object]) -> Resolved:
    """The study of one problem of a kernel.

    Args:
        target: a shipped kernel's name, or the path of its folder or file.
        options: further keys of a study file.

    Raises:
        UnfitProblemError: no sizes of the reference make that problem.
        UserError: an option is not legal.
    """
    model = load_model(target)
    kernel = model.kernel
    mode = kernel.mode_of(problem)
    sizes = dict(sizes_for(model, problem, mode))
    given = {"dtype": problem.dtype, "modes": [mode], "sizes": sizes, "accuracy": problem.accuracy}
    given["kernel"] = target
    return replace(resolve(make_request({**given, **options}, target)), expected=problem)


def sizes_for(model: type[TunedModule], problem: Problem, mode: Mode) -> Sizes:
    """The sizes of a kernel's reference that make a problem.

    Found by trying, without memory: which axis follows which size, and how. An axis is one size, or the product of
    several, of which one then gets all.

    Raises:
        UnfitProblemError: none do.
    """
    reference = model.kernel.reference(None, problem.dtype)
    names = [name for name, size in reference.sizes.items() if isinstance(size, int)]
    own = {name: int(reference.sizes[name]) for name in names}
    before = _axes_at(model, reference, own, mode)
    doubled = {name: _axes_at(model, reference, {**own, name: 2 * own[name]}, mode) for name in names}
    sizes = dict(own)
    for axis, size in problem.axes.items():
        factors = [name for name, axes in doubled.items() if axis in before and axes.get(axis) == 2 * before[axis]]
        for name in factors:
            sizes[name] = 1
        if factors:
            sizes[factors[0]] = size // math.prod(sizes[name] for name in factors)
    if min(sizes.values()) > 0 and _axes_at(model, reference, sizes, mode) == problem.axes:
        return sizes
    raise UnfitProblemError(f"no sizes of {model.kernel.name}'s reference make {problem}: it cannot be tuned by itself")


def problem_of(model: type[TunedModule], reference: Reference, mode: Mode) -> Problem | None:
    """The problem of the reference's own inputs, found without memory; None where it has none that a kernel serves."""
    nowhere = torch.device("meta")
    try:
        module = mode.put(reference.make_model(0, nowhere, model))
        assert isinstance(module, TunedModule)
        return module.identify(*reference.make_inputs(0, nowhere))
    except (RuntimeError, ValueError, TypeError, ArithmeticError, LookupError, AttributeError, TunebenchError):
        return None  # such as a filter larger than its image


def _axes_at(model: type[TunedModule], reference: Reference, sizes: Sizes, mode: Mode) -> Mapping[str, int]:
    """The axes at these sizes; none where the reference has no such problem."""
    try:
        resized = reference.resized(sizes)
    except TunebenchError:
        return {}
    problem = problem_of(model, resized, mode)
    return {} if problem is None else problem.axes
