"""A kernel: a KernelBench problem plus a search space, and the model that runs it under a configuration."""

from __future__ import annotations

import enum
import functools
import hashlib
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from tunebench.tuner.build import Argument, Extent, LoadedModule
from tunebench.tuner.configuration import Configuration, Value
from tunebench.tuner.device import Device
from tunebench.tuner.errors import KernelFolderError, UnknownNameError, UserError
from tunebench.tuner.problem import Axes, Problem, Work
from tunebench.tuner.running_text import running_text
from tunebench.tuner.space import SearchSpace
from tunebench.tuner.users_code import MODEL_FILE
from tunebench.tuner.variant import KernelSource, Variant, prologue

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tunebench.tuner.reference import Reference

Module = TypeVar("Module", bound="nn.Module")
Made = TypeVar("Made")

_MOST_MADE = 4096

_HEADERS = Path(__file__).parents[1] / "kernels" / "shared" / "include"
"""Device code that any source may include."""


def ceil_div(dividend: int, divisor: int) -> int:
    """The quotient, rounded up: how many blocks of so many elements hold all of them."""
    return -(-dividend // divisor)


class Mode(enum.StrEnum):
    """The state of a module that a call is made in; modes are different problems, told apart by the option `mode`."""

    EVAL = "eval"
    TRAIN = "train"
    FROZEN = "frozen"
    """As `eval`, after `ModelNew.freeze()`: what depends on the weights alone is kept between calls."""

    def put(self, module: Module) -> Module:
        """The module, in this mode; one that keeps nothing between calls, as references do, is as in `eval`."""
        module.train(self is Mode.TRAIN)
        if self is Mode.FROZEN and isinstance(module, Freezable):
            module.freeze()
        return module


def prepare_model(
    reference: Reference,
    mode: Mode,
    device: torch.device,
    factory: Callable[..., nn.Module] | None = None,
    state: Mapping[str, Any] | None = None,
) -> nn.Module:
    """A model ready to be called: made on the device from one seed, with these weights, in this mode.

    Args:
        factory: takes the place of the reference's `Model`.
        state: the state dict of the model beside which this one stands; None keeps what the seed drew.

    Raises:
        Exception: whatever the model's file raises.
    """
    model = reference.make_model(0, device, factory)
    if state is not None:
        theirs, ours = (
            {f"{name} {tuple(one.shape)}" for name, one in each.items()} for each in (state, model.state_dict())
        )
        if differing := ", ".join(sorted(theirs ^ ours)):
            raise ValueError(f"its parameters and buffers are not Model's: {differing}")
        model.load_state_dict(state)
    return mode.put(model)


@runtime_checkable
class Freezable(Protocol):
    """A module that can keep what depends on its weights alone."""

    def freeze(self) -> object:
        """Keep what is derived from the weights between calls, beginning anew."""


@dataclass(frozen=True)
class Kernel:
    """All that is declared about a kernel.

    Attributes:
        path: the file that declares it: `model.py` in a folder of its own, or one file with the reference and the
            source's text in it.
        texts: its Python files as they were when it was declared, by name: all that are beside `model.py`, or the one.
        space: its tunables, constraints and default.
        work: the least any implementation of a problem must do.
        axes: what the dimensions of its tensors are called.
        modes: those worth tuning, each a problem of its own; one where the mode changes nothing.
        compiled_axes: axes of the problem that are constants of the binary.
        compiled_options: options of the problem that are constants of the binary, with the values they may have.
        dtypes: of inputs and parameters that the source serves, by torch's names.
        atomics: sums in an order that changes from run to run, so that runs may differ in their last bits.
        rewrites_algebra: an algebraic rewrite of the reference, which may make an infinity of its NaN and the reverse.
        bulk_copies: entry points that copy into shared memory with cp.async.bulk, whose barriers compute-sanitizer's
            racecheck takes for none: it is not asked about them.
    """

    name: str
    path: Path
    texts: Mapping[str, str] = field(repr=False)
    source: KernelSource
    space: SearchSpace
    work: Callable[[Problem], Work]
    axes: Axes | None = None
    modes: tuple[Mode, ...] = (Mode.EVAL,)
    compiled_axes: tuple[str, ...] = ()
    compiled_options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("float32", "float64")
    atomics: bool = False
    rewrites_algebra: bool = False
    bulk_copies: tuple[str, ...] = ()

    @classmethod
    def declare(
        cls,
        model_file: str,
        space: SearchSpace,
        *,
        source: str | None = None,
        axes: Axes | None = None,
        work: Callable[[Problem], Work] | None = None,
        modes: tuple[str, ...] = ("eval",),
        compiled_axes: tuple[str, ...] = (),
        compiled_options: Mapping[str, tuple[str, ...]] | None = None,
        dtypes: tuple[str, ...] = ("float32", "float64"),
        atomics: bool = False,
        rewrites_algebra: bool = False,
        bulk_copies: tuple[str, ...] = (),
    ) -> Kernel:
        """Declare the kernel of a model's file.

        Args:
            model_file: the file's `__file__`.
            source: the text of the CUDA C++ source, of a kernel that is one file; None for the `.cu` beside `model.py`
                that has the folder's name. Either may include headers beside it, and those of tunebench.
            axes: names of the dimensions of inputs, parameters and the output, such as `{"x": ("rows", "columns")}`;
                None for `x_0`, `x_1` and so on, for each input `x` that is a tensor.
            work: the least that any implementation must do; None where all that `axes` names crosses memory once.
            dtypes: that the source serves; of `float16` and `bfloat16` it has to include `half.cuh` and `bfloat.cuh`.
            modes: those worth tuning: `eval`, `train`, `frozen`.

        Raises:
            KernelFolderError: the folder has no `.cu` of the folder's name, it has no entry point, or a mode is none.
        """
        if not isinstance(space, SearchSpace):
            raise KernelFolderError(f"the space is a {type(space).__name__}: give a SearchSpace")
        path = Path(model_file)
        name = path.parent.name if source is None else path.stem
        file = path.parent / f"{name}.cu"
        if source is None and not file.exists():
            raise KernelFolderError(f"{path.parent}: no {file.name}; a kernel's source has its folder's name")
        read = KernelSource.read(file, _HEADERS, source)
        if not read.entry_points:
            what = 'write one as extern "C" __global__ void name(parameters)'
            raise KernelFolderError(f"{file if source is None else path}: no entry point; {what}")
        python = sorted(path.parent.glob("*.py")) if path.name == MODEL_FILE else [path]
        return cls(
            name,
            path,
            {file.name: file.read_text(encoding="utf-8") for file in python},
            read,
            space,
            work or functools.partial(_work_of_axes, axes),
            axes,
            _modes(modes),
            compiled_axes,
            compiled_options or {},
            dtypes,
            atomics,
            rewrites_algebra,
            bulk_copies,
        )

    @property
    def is_one_file(self) -> bool:
        """Whether model, reference and source are one file."""
        return self.path.name != MODEL_FILE

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self.path.parent

    @property
    def results_folder(self) -> Path:
        """Where the results are that ship with it."""
        return self.folder / (f"{self.name}.tuned" if self.is_one_file else "tuned")

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what runs in every file of the kernel: results of an edited kernel are never served."""
        texts = {name: running_text(text) for name, text in self.texts.items()}
        return hashlib.sha256(json.dumps([self.source.digest, texts]).encode()).hexdigest()

    def reference(self, sizes: Mapping[str, int | float] | None = None, dtype: str | None = None) -> Reference:
        """The kernel's reference, with some of its sizes changed, its models and inputs in a dtype of the kernel's.

        Raises:
            UnknownNameError: the kernel serves no such dtype, or the file has no such size.
        """
        from tunebench.tuner.reference import load_reference

        if dtype is not None and dtype not in self.dtypes:
            raise UnknownNameError(f"dtype of kernel '{self.name}'", dtype, self.dtypes)
        return load_reference(self.path if self.is_one_file else self.folder / "reference.py", sizes, dtype)

    def require_axes(self, problem: Problem) -> None:
        """Refuse a problem that lacks what is compiled into a binary.

        Raises:
            KernelFolderError: an axis of `compiled_axes` is none of the problem's.
        """
        if missing := [name for name in self.compiled_axes if name not in problem.axes]:
            legal = ", ".join(problem.axes)
            raise KernelFolderError(f"{self.path}: compiled_axes: no axis '{missing[0]}'; the problem has {legal}")

    def variant(self, configuration: Configuration, problem: Problem, architecture: str) -> Variant:
        """The variant that a configuration needs for a problem on an architecture."""
        axes = {name: problem.axes[name] for name in self.compiled_axes}
        options = {name: (problem.options[name], values) for name, values in self.compiled_options.items()}
        text = prologue(self.space, configuration, problem.dtype, axes, options)
        return Variant(self.source, text, architecture)


def _work_of_axes(axes: Axes | None, problem: Problem) -> Work:
    """Without axes, dimensions are called `x_0`, `x_1` and so on."""
    if axes is not None:
        return Work.of_axes(problem, axes)
    names: dict[str, tuple[str, ...]] = {}
    for axis in problem.axes:
        tensor = axis.rpartition("_")[0]
        names[tensor] = (*names.get(tensor, ()), axis)
    return Work.of_axes(problem, names)


def _modes(names: Sequence[str]) -> tuple[Mode, ...]:
    legal = [mode.value for mode in Mode]
    if not names or any(name not in legal for name in names):
        raise KernelFolderError(f"modes {tuple(names)}: name one or more of {', '.join(legal)}")
    return tuple(Mode(name) for name in names)


@dataclass(frozen=True)
class Plan:
    """How to run one problem on one device: a configuration with its loaded binary.

    `plan["name"]` is the value of a tunable, `plan.integer("name")` that of one whose values are integers.
    """

    kernel: Kernel
    configuration: Configuration
    problem: Problem
    device: Device
    module: LoadedModule
    _values: dict[str, Value] = field(init=False, repr=False, compare=False, default_factory=dict)
    _made: dict[Hashable, Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __getitem__(self, tunable: str) -> Value:
        """A tunable's value; where it is inactive, the one that the binary is compiled with."""
        try:
            return self._values[tunable]
        except KeyError:
            value = self._values[tunable] = self.kernel.space.value_in(self.configuration, tunable)
            return value

    def once(self, make: Callable[..., Made], *arguments: Hashable) -> Made:
        """What `make(plan, *arguments)` makes: made once for equal arguments, and kept with the plan.

        For what depends on the plan and on numbers alone, such as grids and sizes of buffers for a shape: no forward
        waits for it again.
        """
        key = (make, *arguments)
        try:
            found: Made = self._made[key]
        except KeyError:
            if len(self._made) >= _MOST_MADE:
                self._made.clear()
            found = self._made[key] = make(self, *arguments)
        return found

    def integer(self, tunable: str) -> int:
        """The value of an integer tunable; where it is inactive, the one that the binary is compiled with.

        Raises:
            UserError: there is no such tunable, or its values are not integers.
        """
        value = self[tunable]
        if type(value) is not int:
            raise UserError(f"tunable '{tunable}' of kernel '{self.kernel.name}' is {value!r}, not an integer")
        return value

    def launch(self, entry_point: str, *arguments: Argument, blocks: Extent, threads: Extent, shared: int = 0) -> None:
        """Launch an entry point on torch's current stream of the device.

        Args:
            arguments: in the order of its parameters: tensors, or None, for pointers; ints, bools and floats for
                numbers, which are passed in the type that the source declares.
            blocks, threads: of the grid, and of a block: an int, or up to three (x, y, z).
            shared: dynamic shared memory, bytes a block.

        Raises:
            LaunchError: the arguments are not what the source declares, or the device refused the launch.
        """
        self.module.launch(entry_point, blocks, threads, arguments, shared)

    def resident_blocks(self, entry_point: str, threads: int, shared: int = 0) -> int:
        """Blocks of that entry point that the whole device holds at once."""
        return self.device.multiprocessors * self.module.resident_blocks(entry_point, threads, shared)


class TunableModel(Protocol):
    """What the tuner needs of a `ModelNew`: an `nn.Module` that runs the plan it is given."""

    def problem(self, *inputs: Any) -> Problem | None:
        """The problem that a call with these inputs is; None where only the reference's operations can serve it."""

    def pin(self, plan: Plan | None) -> None:
        """Run this plan in every forward from now on; None goes back to choosing."""

    def make_ready(self, plan: Plan) -> None:
        """Make now what the first forward under a plan would make; LaunchError where this machine cannot."""

    def __call__(self, *inputs: Any) -> torch.Tensor:
        """The model's forward."""

    @property
    def reason(self) -> str:
        """Why the latest call of `problem` that was None was so."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """As in `nn.Module`."""

    def named_buffers(self) -> Any:
        """As in `nn.Module`."""

    def named_parameters(self) -> Any:
        """As in `nn.Module`."""


ModelFactory = Callable[..., TunableModel]
Inputs = Sequence[Any]
