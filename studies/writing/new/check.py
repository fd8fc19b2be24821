"""Runs what `tunebench new` wrote beside the reference, as the tuner will, at its sizes or at smaller ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from tunebench.kernels.runtime.registry import load_model
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.writing.new.trace import converted_in_place
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.cpu.compiler import CpuCompiler
from tunebench.tuner.device import find_device
from tunebench.tuner.errors import CompilerMissingError, TunebenchError, UserError, first_line
from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.sources import Sizes, capped, divided
from tunebench.tuner.gate.tolerance import FEW_SAMPLES_MULTIPLE, tolerance_of
from tunebench.tuner.gate.values import Values, cloned, difference_of_kinds, tensors_in
from tunebench.tuner.kernel import Mode, prepare_model
from tunebench.tuner.reference import Reference, seed_generators
from tunebench.tuner.study.subject import Subject
from tunebench.tuner.users_code import described

MOST_BYTES = 16 << 20
"""Limit in bytes of all results of one forward together; a model that makes more is run at smaller sizes."""
MOST_OPERATIONS = 1 << 28
_CAPS = (2048, 1024, 512, 256, 128, 64, 32, 16)

Rewrite = Callable[[Reference, Path], Path]
"""Writes a kernel of a reference into a folder, which it returns."""


@dataclass(frozen=True)
class Checked:
    """The outcome of the check of a new kernel.

    Attributes:
        reason: why the tuner would not take the kernel, of one line; empty where it would.
        sizes: at which it ran, those of the reference that are others than the file's; None where it did not run.
        missing: why it did not run.
    """

    reason: str = ""
    sizes: Mapping[str, int | float] | None = None
    missing: str = ""


def check(folder: Path, rewrite: Rewrite | None = None) -> Checked:
    """Have the tuner prepare a kernel on the CPU in each of its modes, and compare it with its reference.

    In eval and in train mode its default configuration has to give what the reference gives, leave inputs and buffers
    as the reference leaves them, and draw as many random numbers.

    Args:
        rewrite: writes the kernel at other sizes, where it has those of the file alone.
    """
    failed = Checked(missing="its sizes are too large to run it here, and no number in its file makes it smaller")
    try:
        model = load_model(str(folder))
        reference = model.kernel.reference({}, None)
    except TunebenchError as error:
        return Checked(_told(error, folder))
    for number, sizes in enumerate(_sizes_to_run(reference)):
        resized = reference.resized(sizes) if sizes else reference
        try:
            if sizes and rewrite is not None:
                model = load_model(str(rewrite(resized, folder.parent / f"small_{number}" / folder.name)))
            for mode in model.kernel.modes:
                _compare(model, resized, Mode(mode))
            return Checked(sizes=sizes)
        except CompilerMissingError as error:
            return Checked(missing=str(error))
        except (*FAILURES, TunebenchError) as error:
            failed = Checked(_told(error, folder))
    return failed


def _told(error: BaseException, folder: Path) -> str:
    """An error in one line, without the folder that the kernel lies in for now."""
    text = first_line(error) if isinstance(error, TunebenchError) else described(error)
    return text.removeprefix(f"{folder}/").removeprefix("model.py: ").removeprefix("model.py:")


def _sizes_to_run(reference: Reference) -> Iterator[Sizes]:
    """Yield changes of a reference's numbers with which it runs within the bounds, largest first."""
    if _is_small(reference):
        yield {}
        return
    own = reference.numbers
    reductions = [reduce(own, cap) for cap in _CAPS for reduce in (divided, capped)]
    for sizes in {tuple(one.items()): one for one in reductions}.values():
        changed = {name: size for name, size in sizes.items() if size != own[name]}
        try:
            if changed and _is_small(reference.resized(changed)):
                yield changed
        except (*FAILURES, TunebenchError):
            continue


class _Cost(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes that operations make, and their multiplications and additions."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else (result,):
            if isinstance(one, torch.Tensor):
                self.bytes += one.numel() * one.element_size()
        if (count := flop_registry.get(func._overloadpacket)) is not None:
            self.operations += count(*args, **(kwargs or {}), out_val=result)
        return result


def _is_small(reference: Reference) -> bool:
    """Whether a forward stays within the bounds, found without memory for it."""
    with FakeTensorMode(), torch.no_grad(), converted_in_place(), _Cost() as cost:
        model = reference.model(*reference.get_init_inputs())
        model(*reference.get_inputs())
    return bool(cost.bytes <= MOST_BYTES and cost.operations <= MOST_OPERATIONS)


def _compare(factory: type[TunedModule], reference: Reference, mode: Mode) -> None:
    """Prepare one mode as a study does, and compare the two models in eval and train mode.

    Raises:
        UserError: they do not agree, or the kernel cannot serve the reference's inputs.
    """
    device = find_device("cpu")
    kernel = factory.kernel
    subject = Subject.prepare(kernel, factory, reference, mode, device)
    configuration = kernel.space.default_for(subject.problem, device)
    plan = build_plan(kernel, configuration, subject.problem, device, CpuCompiler())
    inputs = subject.oracle.cases[0].inputs
    given = [one for one in tensors_in(inputs) if one.is_floating_point()]
    for training in (False, True) if mode is Mode.EVAL else (mode is Mode.TRAIN,):
        original = prepare_model(reference, Mode.TRAIN if training else mode, device.torch_device)
        tuned: Any = prepare_model(
            reference, Mode.TRAIN if training else mode, device.torch_device, factory, original.state_dict()
        )
        is_served = tuned.mode() == plan.problem.options.get("mode", tuned.mode())
        if is_served:
            tuned.pin(plan)
        (wanted, drawn), (found, drawn_by_kernel) = _called(original, inputs), _called(tuned, inputs)
        what = f"in {'train' if training else mode} mode its kernel"
        if (difference := difference_of_kinds(found, wanted)) is not None:
            raise UserError(f"{what} returns {difference}")
        for path, tensor in wanted.tensors.items():
            if found.tensors[path].dtype != tensor.dtype:
                raise UserError(f"{what} returns {found.tensors[path].dtype}, not {tensor.dtype}")
            # An output in float32 may have been rounded to the inputs' half type on its way, as eager does.
            tolerance = max(tolerance_of(one.dtype) for one in (*given, tensor))
            if not _is_close(found.tensors[path], tensor, tolerance):
                raise UserError(f"{what} computes something else")
        if drawn != drawn_by_kernel:
            raise UserError(f"{what} draws other random numbers")


_ONE_TIE_OF = 64
"""One integer of this number may differ: ties decide some in half types. The gate checks which may."""


def _called(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Values, list[int]]:
    """Call a model; return its output with its inputs and buffers afterwards, and the state of the generator then."""
    given = cloned(inputs)
    seed_generators(0, torch.device("cpu"))
    with torch.no_grad():
        output = model(*given)
    after = dict(model.named_buffers())
    return Values.of((output, given, after)), torch.get_rng_state().tolist()


def _is_close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> bool:
    """Whether two results are the same up to what rounding may make of them."""
    if not wanted.is_floating_point():
        return found.shape == wanted.shape and int((found != wanted).sum()) * _ONE_TIE_OF <= wanted.numel()
    finite = wanted[wanted.isfinite()]
    size = float(finite.abs().max()) if finite.numel() else 0.0
    allowed = FEW_SAMPLES_MULTIPLE * tolerance * max(size, math.ulp(1.0))
    return torch.allclose(found.double(), wanted.double(), rtol=0.0, atol=allowed, equal_nan=True)
