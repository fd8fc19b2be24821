"""Studies of a problem that a program has met: which sizes of its kernel's reference make it, and tuning it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

import torch

from tunebench.db.connection.database import Database, open_database
from tunebench.db.queries.misses import misses
from tunebench.db.queries.rows import MissRow
from tunebench.kernels.runtime.registry import kernel_names, load_model, of_current_kernels, target_of
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.tuning.resolved import Resolved, resolve
from tunebench.studies.tuning.study_file import make_request
from tunebench.studies.tuning.tune import tune
from tunebench.tuner.device import Device, find_devices
from tunebench.tuner.errors import KernelFolderError, TunebenchError, UnknownNameError, UserError
from tunebench.tuner.kernel import Kernel, Mode
from tunebench.tuner.problem import CALL_OPTION, Problem
from tunebench.tuner.reference import Reference
from tunebench.tuner.settings import meta_stands_for, settings_of

_MANY = 1_000_000

Sizes = Mapping[str, int]


class UnfitProblemError(UserError):
    """A problem that the reference's own inputs cannot be made into."""


def tune_problem(kernel: Kernel, problem: Problem, device: Device, seconds: float) -> None:
    """Run a study of one problem, recorded in the user's own database.

    Args:
        seconds: of the study, its final comparison included.

    Raises:
        TunebenchError: it cannot be tuned.
    """
    name = str(device.torch_device)
    options = {"seconds": seconds, "trials": _MANY, "device": name, "compile": False}
    resolved = resolve_problem(target_of(kernel), problem, options)
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
    given |= {"objective": problem.objective}
    given |= {"kernel": target, "settings": settings_of(problem.options)}
    return replace(resolve(make_request({**given, **options}, target)), expected=problem)


def sizes_for(model: type[TunedModule], problem: Problem, mode: Mode) -> Sizes:
    """The sizes of a kernel's reference that make a problem.

    Found by trying, without memory: which axis follows which size, and how. So do the dimensions of tensors that have
    no name. An axis is one size, or the product of several: of those that nothing else says one is changed, and the
    others only if that is not enough.

    Raises:
        UnfitProblemError: none do.
    """
    reference = model.kernel.reference(None, problem.dtype)
    names = [name for name, size in reference.sizes.items() if isinstance(size, int)]
    own = {name: int(reference.sizes[name]) for name in names}
    before = _axes_at(model, reference, own, mode)
    doubled = {name: _axes_at(model, reference, {**own, name: 2 * own[name]}, mode) for name in names}
    wanted = _axes_of(problem)
    factors = {
        axis: [name for name, axes in doubled.items() if axis in before and axes.get(axis) == 2 * before[axis]]
        for axis in wanted
    }
    sizes, found = dict(own), set[str]()
    for axis in sorted(wanted, key=lambda axis: len(factors[axis])):
        free = [name for name in factors[axis] if name not in found]
        if not free:
            continue
        others = [name for name in factors[axis] if name != free[0]]
        if wanted[axis] % math.prod(sizes[name] for name in others):
            sizes |= dict.fromkeys(free, 1)
        sizes[free[0]] = wanted[axis] // math.prod(sizes[name] for name in others)
        found.update(factors[axis])
    made = _axes_at(model, reference, sizes, mode) if min(sizes.values()) > 0 else {}
    if wanted == (made if CALL_OPTION in problem.options else {name: made.get(name) for name in wanted}):
        return sizes
    raise UnfitProblemError(f"no sizes of {model.kernel.name}'s reference make {problem}: it cannot be tuned by itself")


def problem_of(
    model: type[TunedModule],
    reference: Reference,
    mode: Mode,
    kind: str = "cuda",
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Problem | None:
    """The problem of the reference's own inputs, found without memory; None where it has none that a kernel serves.

    Args:
        kind: the type of device that it is asked for.
        settings: of PyTorch's that are in force there.
    """
    nowhere = torch.device("meta")
    try:
        with meta_stands_for(kind, settings):
            module = mode.put(reference.make_model(0, nowhere, model))
            assert isinstance(module, TunedModule)
            return module.identify(*reference.make_inputs(0, nowhere))
    except (RuntimeError, ValueError, TypeError, ArithmeticError, LookupError, AttributeError, TunebenchError):
        return None  # such as a filter larger than its image


def identified(model: type[TunedModule], problem: Problem, kind: str) -> Problem:
    """Return a problem with what identifies its call, where it says of that no more than what the author names.

    Args:
        kind: the type of device that it belongs to.

    Raises:
        UnfitProblemError: the reference's own inputs cannot be made into it.
    """
    mode = model.kernel.mode_of(problem)
    reference = model.kernel.reference(sizes_for(model, problem, mode), problem.dtype)
    found = problem_of(model, reference, mode, kind, settings_of(problem.options))
    if found is None or found.at(problem.accuracy, problem.objective).named != problem.named:
        raise UnfitProblemError(f"the reference's own inputs are {found} where {problem} is asked for")
    return found.at(problem.accuracy, problem.objective)


def _axes_at(model: type[TunedModule], reference: Reference, sizes: Sizes, mode: Mode) -> Mapping[str, int]:
    """The axes and other dimensions at these sizes; none where the reference has no such problem."""
    try:
        resized = reference.resized(sizes)
    except TunebenchError:
        return {}
    problem = problem_of(model, resized, mode)
    return {} if problem is None else _axes_of(problem)


def _axes_of(problem: Problem) -> Mapping[str, int]:
    """A problem's axes, and the dimensions of the tensors whose shapes these do not say."""
    shapes = (one.rpartition("=") for one in problem.other_shapes.split())
    others = {
        f"{name} {place}": int(size) for name, _, shape in shapes for place, size in enumerate(shape.split("x")) if size
    }
    return {**problem.axes, **others}
