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
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, runtime_checkable

from tunebench.tuner.build import Argument, Extent, LoadedModule, Threads
from tunebench.tuner.configuration import Configuration, Value
from tunebench.tuner.device import Device
from tunebench.tuner.errors import KernelFolderError, UnknownNameError, UserError
from tunebench.tuner.files import read_text
from tunebench.tuner.problem import ITEM_BYTES, Accuracy, Axes, Problem, Work
from tunebench.tuner.running_text import running_text
from tunebench.tuner.sources import SOURCE_TUNABLE, Language, language_of, read_sources, require_fitting
from tunebench.tuner.space import SearchSpace
from tunebench.tuner.triton_source import TritonSource
from tunebench.tuner.users_code import MODEL_FILE
from tunebench.tuner.variant import Source, Variant, prologue

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tunebench.tuner.reference import Reference

Module = TypeVar("Module", bound="nn.Module")
Made = TypeVar("Made")

_MOST_MADE = 4096


def ceil_div(dividend: int, divisor: int) -> int:
    """Return the quotient, rounded up: how many blocks of so many elements hold all of them."""
    return -(-dividend // divisor)


class Mode(enum.StrEnum):
    """The state of a module that a call is made in; modes are different problems, told apart by the option `mode`."""

    EVAL = "eval"
    TRAIN = "train"
    FROZEN = "frozen"
    """As `eval`, after `ModelNew.freeze()`: what depends on the weights alone is kept between calls."""

    def put(self, module: Module) -> Module:
        """Put the module into this mode; one that keeps nothing between calls, as references do, is as in `eval`."""
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
    """Return a model ready to be called: made on the device from one seed, with these weights, in this mode.

    Args:
        factory: takes the place of the reference's `Model`.
        state: the state dict of the model beside which this one stands; None keeps what the seed drew.

    Raises:
        Exception: whatever the model's file raises.
    """
    model = reference.make_model(0, device, factory)
    if state is not None:
        if differing := differing_entries(state, model.state_dict()):
            raise ValueError(f"its parameters and buffers are not Model's: {differing}")
        model.load_state_dict(state)
    return mode.put(model)


def differing_entries(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> str:
    """Return the differences of two state dicts, by name and shape, for people; empty where they agree."""
    first, second = ({f"{name} {tuple(tensor.shape)}" for name, tensor in each.items()} for each in (one, other))
    return ", ".join(sorted(first ^ second))


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
        sources: in CUDA C++, in Triton, or one of each, which the tunable `source` chooses between.
        space: its tunables, constraints and default.
        work: the least any implementation of a problem must do.
        axes: what the dimensions of its tensors are called.
        indices: of these tensors, those that are positions, classes or masks: int64 or bool.
        in_float32: parameters and buffers that are float32 whatever the inputs are.
        modes: those worth tuning, each a problem of its own; one where the mode changes nothing.
        compiled_axes: axes of the problem that are constants of the binary.
        usual_axes: further axes that are constants of the binary, which a problem has where they are not these numbers.
        compiled_options: options of the problem that are constants of the binary, with the values they may have.
        dtypes: of inputs and parameters that the source serves, by torch's names.
        atomics: sums in an order that changes from run to run, so that runs may differ in their last bits.
        rewrites_algebra: an algebraic rewrite of the reference, which may make an infinity of its NaN and the reverse.
        bulk_copies: entry points that copy into shared memory with cp.async.bulk, whose barriers compute-sanitizer's
            racecheck takes for none: it is not asked about them.
        block: what made it from a few attributes, such as `Linear`; results of one kernel say something about others
            of its block. Empty for a kernel with a source of its own.
    """

    name: str
    path: Path
    texts: Mapping[str, str] = field(repr=False)
    sources: tuple[Source, ...]
    space: SearchSpace
    work: Callable[[Problem], Work]
    axes: Axes | None = None
    indices: tuple[str, ...] = ()
    in_float32: tuple[str, ...] = ()
    modes: tuple[Mode, ...] = (Mode.EVAL,)
    compiled_axes: tuple[str, ...] = ()
    compiled_options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("float32", "float64")
    atomics: bool = False
    rewrites_algebra: bool = False
    bulk_copies: tuple[str, ...] = ()
    usual_axes: Mapping[str, int] = field(default_factory=dict)
    block: str = ""

    @classmethod
    def declare(
        cls,
        model_file: str,
        space: SearchSpace,
        *,
        source: str | None = None,
        name: str | None = None,
        texts: Mapping[str, str] | None = None,
        axes: Axes | None = None,
        indices: tuple[str, ...] = (),
        in_float32: tuple[str, ...] = (),
        work: Callable[[Problem], Work] | None = None,
        modes: tuple[str, ...] = ("eval",),
        compiled_axes: tuple[str, ...] = (),
        compiled_options: Mapping[str, tuple[str, ...]] | None = None,
        dtypes: tuple[str, ...] = ("float32", "float64"),
        atomics: bool = False,
        rewrites_algebra: bool = False,
        bulk_copies: tuple[str, ...] = (),
        usual_axes: Mapping[str, int] | None = None,
        block: str = "",
    ) -> Kernel:
        """Declare the kernel of a model's file.

        Args:
            model_file: the file's `__file__`.
            source: the text of the CUDA C++ source, of a kernel that is one file or made from a block; None for the
                `.cu` beside `model.py` that has the folder's name. Either may include headers beside it, and those of
                tunebench. Functions in Triton are those of the `.py` that has the folder's name, or else of the model's
                file itself.
            name: the kernel's; None for the folder's name or, of one file, the file's.
            texts: the Python that its results depend on, by name; None for the file, or all that are beside `model.py`.
            axes: names of the dimensions of inputs, parameters and the output, such as `{"x": ("rows", "columns")}`;
                None for `x_0`, `x_1` and so on, for each input `x` that is a tensor.
            indices: of these tensors, those that are positions, classes or masks: `long long` or `bool` in the source.
            in_float32: paths of parameters and buffers that are float32 beside inputs in a half type, as a schedule is.
            work: the least that any implementation must do; None where all that `axes` names, indices aside,
                crosses memory once.
            dtypes: that the source serves; of `float16` and `bfloat16` it has to include `half.cuh` and `bfloat.cuh`.
            modes: those worth tuning: `eval`, `train`, `frozen`.

        Raises:
            KernelFolderError: there is no source, it has no entry point, its constants are not the space's, or a mode
                is none.
        """
        if not isinstance(space, SearchSpace):
            raise KernelFolderError(f"the space is a {type(space).__name__}: give a SearchSpace")
        given = {"modes": modes, "compiled_axes": compiled_axes, "dtypes": dtypes, "bulk_copies": bulk_copies}
        _require_forms({**given, "indices": indices, "in_float32": in_float32}, axes, work)
        if axes is not None and (unknown := [one for one in indices if one not in axes]):
            raise KernelFolderError(f"indices: no '{unknown[0]}' among the tensors of axes: {', '.join(axes)}")
        if other := [one for one in dtypes if one not in ITEM_BYTES]:
            raise KernelFolderError(f"dtypes: no '{other[0]}'; the legal ones are {', '.join(ITEM_BYTES)}")
        path = Path(model_file)
        compiled_options = compiled_options or {}
        name = name or (path.parent.name if path.name == MODEL_FILE else path.stem)
        sources = read_sources(path, name, source)
        require_fitting(sources, space, compiled_axes, compiled_options)
        if texts is None:
            python = sorted(path.parent.glob("*.py")) if path.name == MODEL_FILE else [path]
            texts = {file.name: read_text(file) for file in python}
        return cls(
            name=name,
            path=path,
            texts=texts,
            sources=sources,
            space=space,
            work=work or functools.partial(_work_of_axes, axes, indices),
            axes=axes,
            indices=indices,
            in_float32=in_float32,
            modes=_modes(modes),
            compiled_axes=compiled_axes,
            compiled_options=compiled_options,
            dtypes=dtypes,
            atomics=atomics,
            rewrites_algebra=rewrites_algebra,
            bulk_copies=bulk_copies,
            usual_axes=usual_axes or {},
            block=block,
        )

    @property
    def source(self) -> Source:
        """Its source; of two, the one in CUDA C++."""
        return self.sources[0]

    @property
    def languages(self) -> tuple[Language, ...]:
        """The languages of its sources."""
        return tuple(map(language_of, self.sources))

    def languages_in(self, space: SearchSpace) -> tuple[Language, ...]:
        """Return the languages that a restricted search space of this kernel still allows."""
        if len(self.sources) == 1:
            return self.languages
        return tuple(one for one in self.languages if one in space.tunable(SOURCE_TUNABLE).values)

    @property
    def is_one_file(self) -> bool:
        """Whether model, reference and source are one file."""
        return self.path.name != MODEL_FILE

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return self.path.parent

    @property
    def place(self) -> Path:
        """The path that it is named by where it does not ship: its folder, or its one file."""
        return self.path if self.is_one_file else self.folder

    @property
    def results_folder(self) -> Path:
        """Where the results are that ship with it."""
        return self.folder / (f"{self.name}.tuned" if self.is_one_file else "tuned")

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what runs in every file of the kernel: results of an edited kernel are never served."""
        texts = {name: running_text(text) for name, text in self.texts.items()}
        sources = [source.digest for source in self.sources]
        return hashlib.sha256(json.dumps([*sources, texts]).encode()).hexdigest()

    def reference(self, sizes: Mapping[str, int | float] | None = None, dtype: str | None = None) -> Reference:
        """Return the kernel's reference, with some of its sizes changed, its models and inputs in one of its dtypes.

        Raises:
            UnknownNameError: the kernel serves no such dtype, or the file has no such size.
            UserError: the size is one that the file's `Model` reads itself.
        """
        from tunebench.tuner.reference import load_reference

        if dtype is not None and dtype not in self.dtypes:
            raise UnknownNameError(f"dtype of kernel '{self.name}'", dtype, self.dtypes)
        file = self.path if self.is_one_file else self.folder / "reference.py"
        made = load_reference(file, sizes, dtype)
        reference = made.for_another_file()
        for name in sizes or {}:
            if name not in reference.sizes:
                raise UserError(
                    f"size '{name}' cannot be changed: Model reads it itself in {file.name}; "
                    "have get_init_inputs() or get_inputs() pass it"
                )
        return reference

    def modes_named(self, names: Sequence[str]) -> tuple[Mode, ...]:
        """Return the modes of these names.

        Raises:
            UnknownNameError: one is none of the kernel's.
        """
        for name in names:
            if name not in self.modes:
                raise UnknownNameError(f"mode of kernel '{self.name}'", name, self.modes)
        return tuple(map(Mode, names))

    def mode_of(self, problem: Problem) -> Mode:
        """Return the mode that a problem is of."""
        return Mode(problem.options.get("mode", self.modes[0]))

    def require_axes(self, problem: Problem) -> None:
        """Refuse a problem that lacks what is compiled into a binary.

        Raises:
            KernelFolderError: an axis of `compiled_axes`, or an option of `compiled_options`, is none of the problem's.
        """
        if lacking := [name for name in self.compiled_options if name not in problem.options]:
            legal = ", ".join(problem.named.options) or "no options"
            raise KernelFolderError(f"{self.path}: compiled_options: no option '{lacking[0]}'; the problem has {legal}")
        if missing := [name for name in self.compiled_axes if name not in problem.axes]:
            legal = ", ".join(problem.axes)
            raise KernelFolderError(f"{self.path}: compiled_axes: no axis '{missing[0]}'; the problem has {legal}")

    def variant(self, configuration: Configuration, problem: Problem, architecture: str) -> Variant:
        """Return the variant that a configuration needs for a problem on an architecture."""
        axes = {name: problem.axes[name] for name in self.compiled_axes}
        axes |= {name: problem.axes.get(name, size) for name, size in self.usual_axes.items()}
        source = self._source_in(configuration)
        if isinstance(source, TritonSource):
            chosen = {name: problem.options[name] for name in self.compiled_options}
            text = source.constants(self.space, configuration, problem, axes, chosen)
        else:
            options = {name: (problem.options[name], values) for name, values in self.compiled_options.items()}
            text = prologue(self.space, configuration, problem.dtype, axes, options)
        return Variant(source, text, architecture)

    def _source_in(self, configuration: Configuration) -> Source:
        if len(self.sources) == 1:
            return self.source
        return self.sources[self.languages.index(Language(str(self.space.value_in(configuration, SOURCE_TUNABLE))))]


def _require_forms(names: Mapping[str, object], axes: object, work: object) -> None:
    """Refuse arguments of other types: a text would be taken for its characters, and the rest be missed much later."""
    for what, value in names.items():
        if isinstance(value, str) or not isinstance(value, Sequence):
            shown = f'("{value}",)' if isinstance(value, str) else '("name", …)'
            raise KernelFolderError(f"{what}={value!r}: give a tuple of names, such as {shown}")
    if axes is not None and not isinstance(axes, Mapping):
        raise KernelFolderError(
            f'axes={axes!r}: give a mapping of tensors\' names, such as {{"x": ("rows", "columns")}}'
        )
    if work is not None and not callable(work):
        raise KernelFolderError(f"work={work!r}: give a function of the problem that returns a Work")


def _work_of_axes(axes: Axes | None, indices: tuple[str, ...], problem: Problem) -> Work:
    """Return the work by the axes; without any, dimensions are called `x_0`, `x_1` and so on. Indices are left out."""
    names: dict[str, str | tuple[str, ...]] = {}
    if axes is not None:
        names.update(axes)
    else:
        for axis in problem.axes:
            tensor = axis.rpartition("_")[0]
            names[tensor] = (*names.get(tensor, ()), axis)
    return Work.of_axes(problem, {name: of_tensor for name, of_tensor in names.items() if name not in indices})


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
        """Return a tunable's value; where it is inactive, the one that the binary is compiled with."""
        try:
            return self._values[tunable]
        except KeyError:
            value = self._values[tunable] = self.kernel.space.value_in(self.configuration, tunable)
            return value

    def once(self, make: Callable[..., Made], *arguments: Hashable) -> Made:
        """Return `make(plan, *arguments)`: made once for equal arguments, and kept with the plan.

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
        """Return an integer tunable's value; where it is inactive, the one that the binary is compiled with.

        Raises:
            UserError: there is no such tunable, or its values are not integers.
        """
        value = self[tunable]
        if type(value) is not int:
            raise UserError(f"tunable '{tunable}' of kernel '{self.kernel.name}' is {value!r}, not an integer")
        return value

    def launch(
        self,
        entry_point: str,
        *arguments: Argument,
        blocks: Extent,
        threads: Threads = None,
        shared: int = 0,
        early: bool = False,
    ) -> None:
        """Launch an entry point on torch's current stream of the device.

        Args:
            arguments: in the order of its parameters: tensors, or None, for pointers; ints, bools and floats for
                numbers, which are passed in the type that the source declares.
            blocks, threads: of the grid, and of a block: an int, or up to three (x, y, z). A Triton function is given
                no threads: its programs, which `blocks` counts, have `num_warps`.
            shared: dynamic shared memory, bytes a block; Triton knows what it needs.
            early: whether it may begin before the launch in front of it in the stream has ended (programmatic dependent
                launch, from compute capability 9.0 on). The entry point has to wait for that by `griddepcontrol.wait`
                before it reads what earlier launches write or writes what they read; where launches are not early, the
                instruction does nothing.

        Raises:
            LaunchError: the arguments are not what the source declares, or the device refused the launch.
        """
        launch = self.module.launch_early if early else self.module.launch
        launch(entry_point, blocks, threads, arguments, shared)

    def resident_blocks(self, entry_point: str, threads: int = 0, shared: int = 0) -> int:
        """Return how many blocks of an entry point (for Triton, programs) the whole device holds at once."""
        return self.device.multiprocessors * self.module.resident_blocks(entry_point, threads, shared)


class TunableModel(Protocol):
    """The interface of a `ModelNew` that the tuner needs: an `nn.Module` that runs the plan it is given.

    Attributes:
        policies: the names of those by which it may choose what serves a call, without searching.
    """

    policies: ClassVar[Sequence[str]]

    def problem(self, *inputs: Any) -> Problem | None:
        """Return the problem of a call, by what the author names; None where only the reference can serve it."""

    def identify(self, *inputs: Any) -> Problem | None:
        """Return the problem of a call with all that identifies it; None where only the reference can serve it."""

    def pin(self, plan: Plan | None) -> None:
        """Run this plan in every forward from now on; None goes back to choosing."""

    def choose(self, policy: str, accuracy: Accuracy) -> None:
        """Choose by this policy from now on, and wait for what has to be built."""

    def make_ready(self, plan: Plan) -> None:
        """Make now what the first forward under a plan would make; LaunchError where this machine cannot."""

    def __call__(self, *inputs: Any) -> torch.Tensor:
        """Run the model's forward."""

    @property
    def reason(self) -> str:
        """Why the latest call of `problem` that was None was so."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any:
        """See `nn.Module`."""

    def named_buffers(self) -> Any:
        """See `nn.Module`."""

    def named_parameters(self) -> Any:
        """See `nn.Module`."""


ModelFactory = Callable[..., TunableModel]
Inputs = Sequence[Any]
