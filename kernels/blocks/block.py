"""The base of all building blocks: makes a kernel from the attributes of a class.

    class ModelNew(blocks.Pointwise, Model):
        function = "x * sigmoid(x) * scale"
        scalars = {"scale": "scale"}

When such a class is made, `Block.__init_subclass__` reads its attributes, asks the block for a `Design` (the CUDA text,
the search space, the axes, the least work, what is declared to the gate), and gives the class its `kernel`. From there
on it is a `TunedModule` like any other. What a class may say, whatever its block:

    function      the device function: an expression in CUDA C++, or statements that end in `return …;`. A block may
                  have more texts (`reductions`). Values are `accumulator_t`; `functions.cuh` has the field's functions.
    scalars       numbers, by their name in the texts: {"eps": "norm.eps"}
    per_feature   tensors with one value for each element of the last dimension: {"weight": "weight"}
    per_row       tensors with one value for each row: all dimensions but the last
    per_channel   tensors with one value for each index of dimension 1, as the channels of NCHW
    per_tensor    tensors with one element in all
    dtypes        that it serves; by default all four
    defaults      other defaults of tunables: {"block_size": 512}
    passes        what `tuned_forward` launches behind the block's own, see `Passes`
    written_for   layers, words, switches and lists that the texts are for, by their paths; the reference serves others

The right-hand side says where a value is: an argument of the reference's `forward`, or the path of an attribute of the
module, such as `gemm.bias`. Where both names are one, a tuple of names will do: `scalars = ("eps",)`. Arguments of
`forward` need not be named again: one that is annotated as a number is a scalar, any other a tensor, with an element
wherever the block's main tensor has one. Only what the texts use is passed to the kernel.

A block is a direct subclass of `Block`, which implements

    design(cls) -> Design
        What the class's attributes make. `cls.operands(texts, known)` finds what the texts refer to: each `Operand` has
        its name, its `Kind`, and where it comes from; a name that is neither is an error of one line. `known` are the
        names that the block itself gives to texts, such as `features`. `cls.wrong(attribute, what)` is the error for
        anything else. `device_function` (device_function.py) writes a text as CUDA C++, `fast_math_line` and
        `fast_math_tunables` are for what `functions.cuh` needs.
    tuned_forward(self, plan, *inputs)
        As of any `TunedModule`. `self.values(inputs)` are the operands' values, in the order of `cls.used`, ready to be
        passed to `plan.launch`: a tensor for each operand but scalars. It and the methods that it calls read of the
        class only attributes that are plain data (numbers, texts, and tuples of them), by `self.name`: an exported
        file states those, and has nothing of `design`.

and may override `problem` to serve less (shapes, layouts): `Block.problem` has refused scalars that are no numbers.
The block's axes name what `TunedModule.problem` looks at: `cls.axes_of` gives those of operands.
"""

from __future__ import annotations

import abc
import difflib
import enum
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from tunebench.kernels.blocks.device_function import has_fast_form, used_names
from tunebench.kernels.runtime import folders
from tunebench.kernels.runtime.tuned_module import TunedModule, require_reference
from tunebench.kernels.shared import DTYPES
from tunebench.tuner.configuration import Value
from tunebench.tuner.errors import KernelFolderError, UserError
from tunebench.tuner.files import read_text
from tunebench.tuner.kernel import Kernel
from tunebench.tuner.problem import Problem, Work
from tunebench.tuner.space import CPP_WORDS, Constraint, SearchSpace, Tunable
from tunebench.tuner.users_code import MODEL_FILE

Names = Mapping[str, str] | Sequence[str]
"""Names in a text, and where their values are; a sequence where both are one."""

_NUMBERS = ("int", "float", "bool")


class Kind(enum.StrEnum):
    """The kind of an operand; the value is the attribute that declares such operands (none declares an element)."""

    ELEMENT = "forward"
    SCALAR = "scalars"
    PER_FEATURE = "per_feature"
    PER_ROW = "per_row"
    PER_CHANNEL = "per_channel"
    PER_TENSOR = "per_tensor"
    LAYER = "other_layers"


_FAST_MATH = "fast_math"
_NAMED = (Kind.SCALAR, Kind.PER_FEATURE, Kind.PER_ROW, Kind.PER_CHANNEL, Kind.PER_TENSOR, Kind.LAYER)


class Operand(NamedTuple):
    """A value that a device function takes from outside.

    Attributes:
        name: in the text.
        path: the argument of `forward`, or the path of the module's attribute.
        argument: its place among the arguments of `forward`; None of what is the module's.
    """

    name: str
    kind: Kind
    path: str
    argument: int | None


@dataclass(frozen=True)
class Design:
    """The design that a block makes from a class's attributes: the arguments of `Kernel.declare`.

    Attributes:
        source: CUDA C++; headers are included by name.
        axes: as in `Kernel.declare`.
        work: None where all that `axes` names crosses memory once.
    """

    source: str
    space: SearchSpace
    axes: Mapping[str, str | tuple[str, ...]]
    work: Callable[[Problem], Work] | None = None
    modes: tuple[str, ...] = ("eval",)
    compiled_axes: tuple[str, ...] = ()
    compiled_options: Mapping[str, tuple[str, ...]] | None = None
    atomics: bool = False
    rewrites_algebra: bool = False
    bulk_copies: tuple[str, ...] = ()
    usual_axes: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Passes:
    """Passes behind a block, whose entry points are in the `.cu` beside `model.py` that has the folder's name.

    Attributes:
        space: of their tunables.
        sizes: axes of the problem that are constants of the binary, which the class's `problem` adds.
        modes: those that have passes of their own.
    """

    space: SearchSpace
    sizes: tuple[str, ...] = ()
    modes: tuple[str, ...] = ("eval",)

    def behind(self, design: Design, file: Path) -> Design:
        """Return the design of a block with these passes.

        Args:
            file: the model's.

        Raises:
            KernelFolderError: the passes' source cannot be read.
        """
        space, block = design.space, design.source
        known = {one.name for one in space.tunables}
        more = [one for one in self.space.tunables if one.name not in known]
        starts, rounding = space.starts, space.rounding
        if any(one.name == _FAST_MATH for one in more):
            block = block.replace(fast_math_line(()), "", 1)
            # They are as exact as what torch.compile makes. Where memory is the limit, they may be slower.
            starts = tuple({**start, **fast} for start in starts for fast in ({_FAST_MATH: True}, {}))
            rounding = (*rounding, _FAST_MATH) if rounding else ()
        source = read_text(file.with_name(f"{file.parent.name}.cu"))
        return replace(
            design,
            source=f"{block}\n{source}",
            space=replace(
                space,
                tunables=(*space.tunables, *more),
                constraints=tuple(dict.fromkeys((*space.constraints, *self.space.constraints))),
                starts=starts,
                rounding=rounding,
            ),
            modes=tuple(dict.fromkeys((*design.modes, *self.modes))),
            compiled_axes=(*design.compiled_axes, *self.sizes),
        )


class Block(TunedModule):
    """A model whose kernel is made from a few attributes: see the module's own text."""

    function: ClassVar[str]
    scalars: ClassVar[Names] = {}
    per_feature: ClassVar[Names] = {}
    per_row: ClassVar[Names] = {}
    per_channel: ClassVar[Names] = {}
    per_tensor: ClassVar[Names] = {}
    other_layers: ClassVar[Names] = {}
    dtypes: ClassVar[tuple[str, ...]] = DTYPES
    defaults: ClassVar[Mapping[str, Value]] = {}
    passes: ClassVar[Passes | None] = None

    kinds_of_operands: ClassVar[tuple[Kind, ...]] = _NAMED[:-1]
    """The kinds that the block can handle; the attribute of another one is refused."""

    used: ClassVar[tuple[Operand, ...]] = ()
    """The operands of the class's texts, in the order in which `values` gives them."""

    places: ClassVar[tuple[tuple[int | None, str], ...]] = ()
    """The places of their values: the place among the arguments of `forward`, or None and a path."""
    kinds: ClassVar[tuple[str, ...]] = ()
    """The kinds of the operands, as plain data too."""
    left_out: ClassVar[tuple[int | float | bool | None, ...]] = ()
    """The numbers that arguments of `forward` are where a call leaves them out; None of those that have none."""
    takes_inputs: ClassVar[bool] = False
    """Whether they are the arguments of `forward`, all of them and in their order: nothing is looked for then."""

    def __init_subclass__(cls, **named: Any) -> None:
        if Block not in cls.__bases__:
            file = _file_of(cls)
            require_reference(cls, file)
            _require_well_spelt(cls)
            design = cls.design()
            if cls.passes is not None:
                design = cls.passes.behind(design, file)
            cls.places = tuple((one.argument, one.path) for one in cls.used)
            cls.kinds = tuple(one.kind.value for one in cls.used)
            defaults = [one.default for one in list(cls._signature().parameters.values())[1:]]
            cls.left_out = tuple(one if isinstance(one, int | float) else None for one in defaults)
            cls.takes_inputs = [one.argument for one in cls.used] == [*range(len(cls._input_names()))]
            cls.kernel = Kernel.declare(
                str(file),
                _with_defaults(cls, design.space),
                source=design.source,
                name=None if cls.__name__ == "ModelNew" else cls.__name__,
                texts=_texts_of(cls, file),
                axes=design.axes,
                work=design.work,
                modes=design.modes,
                compiled_axes=design.compiled_axes,
                compiled_options=design.compiled_options,
                dtypes=cls.dtypes,
                atomics=design.atomics,
                rewrites_algebra=design.rewrites_algebra,
                bulk_copies=design.bulk_copies,
                usual_axes=design.usual_axes,
                block=next(one.__name__ for one in cls.__mro__ if Block in one.__bases__),
            )
        super().__init_subclass__(**named)

    @classmethod
    @abc.abstractmethod
    def design(cls) -> Design:
        """Return the kernel that the class's attributes make; sets `used`.

        Raises:
            KernelFolderError: an attribute is wrong; the message names it.
        """

    def values(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the values of `used` in a call with these inputs; what the call leaves out is as in the reference."""
        if len(inputs) < len(self.left_out):
            inputs = (*inputs, *self.left_out[len(inputs) :])
        if self.takes_inputs:
            return inputs
        return [attrgetter(path)(self) if at is None else inputs[at] for at, path in self.places]

    def problem(self, *inputs: Any, **named: Any) -> Problem | None:
        """See `Kernel.problem`. A call whose scalar is not a number is left to the reference."""
        for kind, (at, path) in zip(self.kinds, self.places, strict=True):
            if at is None or at < len(inputs):
                value = inputs[at] if at is not None else attribute_of(self, kind, path)
                if kind == "scalars" and not isinstance(value, int | float):
                    return self.unserved(f"'{path}' is a {type(value).__name__}, not a number")
        return super().problem(*inputs, **named)

    @classmethod
    def wrong(cls, attribute: str, what: str) -> KernelFolderError:
        """Return the error of an attribute, in one line."""
        return KernelFolderError(f"{_file_of(cls)}: {cls.__name__}.{attribute}: {what}")

    @classmethod
    def text(cls, attribute: str) -> str:
        """Return an attribute that is a device function's text.

        Raises:
            KernelFolderError: it is missing, or no text.
        """
        found = getattr(cls, attribute, None)
        if not isinstance(found, str) or not found.strip():
            raise cls.wrong(attribute, 'give a device function as text, such as "x * sigmoid(x)"')
        return found

    @classmethod
    def operands(cls, texts: Mapping[str, str], known: Collection[str] = ()) -> tuple[Operand, ...]:
        """Return the operands that the texts refer to, arguments of `forward` first, in their order.

        Args:
            texts: by the attribute that has them, for messages.
            known: names that the block itself gives to the texts.

        Raises:
            KernelFolderError: a name is not known, or one that an attribute gives is not used.
        """
        arguments = cls._input_names()
        by_name = {name: Operand(name, kind, name, at) for at, (name, kind) in enumerate(cls._arguments().items())}
        for kind in _NAMED:
            given = getattr(cls, kind.value)
            if given and kind not in cls.kinds_of_operands:
                legal = ", ".join(one.value for one in cls.kinds_of_operands)
                raise cls.wrong(kind.value, f"this block has no such operands; it has {legal}")
            for name, path in _paths(cls, kind, given).items():
                if name in by_name and by_name[name].kind in _NAMED and name not in arguments:
                    raise cls.wrong(kind.value, f"'{name}' is named under {by_name[name].kind} too")
                by_name[name] = Operand(name, kind, path, arguments.index(path) if path in arguments else None)
        names = {name: attribute for attribute, text in texts.items() for name in used_names(text)}
        for name, attribute in names.items():
            if name not in by_name and name not in known:
                legal = ", ".join(dict.fromkeys([*by_name, *known]))
                how = "name it under scalars or a tensor's per_feature, per_row …, or declare it as `auto name = …;`"
                raise cls.wrong(attribute, f"unknown name '{name}' (known: {legal}); {how}")
        for name, one in by_name.items():
            if name not in names and one.kind in _NAMED and name not in arguments:
                raise cls.wrong(one.kind.value, f"'{name}' is used in no text")
        return tuple(one for name, one in by_name.items() if name in names)

    @classmethod
    def _arguments(cls) -> dict[str, Kind]:
        """Return the arguments of the reference's forward: numbers by annotation or default, all others tensors."""
        found = {}
        for name, parameter in list(cls._signature().parameters.items())[1:]:
            annotation = parameter.annotation
            told = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
            parts = {part.strip() for part in told.replace("Union[", "").replace("]", "").replace(",", "|").split("|")}
            is_number = bool(parts) and parts <= {*_NUMBERS, "None"}
            if annotation is inspect.Parameter.empty:
                is_number = isinstance(parameter.default, int | float)
            found[name] = Kind.SCALAR if is_number else Kind.ELEMENT
        return found


def attribute_of(model: Block, given: str, path: str) -> Any:
    """Return the value at a path of the model.

    Args:
        given: the class's attribute that names it.

    Raises:
        KernelFolderError: nothing does.
    """
    found: Any = model
    for name in path.split("."):
        if not hasattr(found, name):
            what = f"the model has no '{path}': name an argument of forward or the path of an attribute"
            raise type(model).wrong(given, what)
        found = getattr(found, name)
    return found


def axes_of(
    operands: Iterable[Operand], names: Mapping[Kind, str | tuple[str, ...]]
) -> dict[str, str | tuple[str, ...]]:
    """Return the axes of operands that are tensors, by what the elements of each kind are called."""
    return {one.path: names[one.kind] for one in operands if one.kind in names}


def fast_math_line(texts: Iterable[str]) -> str:
    """Return the line that has to precede the inclusion of `functions.cuh`: empty where `fast_math` is a tunable."""
    return "" if has_fast_form(texts) else "constexpr bool fast_math = false;\n"


def fast_math_tunables(texts: Iterable[str]) -> tuple[tuple[Tunable, ...], tuple[Constraint, ...]]:
    """Return the tunable `fast_math` with its constraint, where one of the texts calls a function that it changes."""
    if not has_fast_form(texts):
        return (), ()
    constraint = Constraint("fast_math_is_not_for_float64", _is_precise_enough)
    return (Tunable(_FAST_MATH, (False, True)),), (constraint,)


def _is_precise_enough(fast_math: bool, problem: Problem) -> bool:
    return not (fast_math and problem.dtype == "float64")


def _paths(cls: type[Block], kind: Kind, given: object) -> dict[str, str]:
    """Return the paths of the values of an attribute's names."""
    if isinstance(given, str) or not isinstance(given, Mapping | Sequence):
        raise cls.wrong(kind.value, 'give a dict, such as {"eps": "norm.eps"}, or a tuple of names')
    paths = dict(given) if isinstance(given, Mapping) else {name: name for name in given}
    for name, path in paths.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise cls.wrong(kind.value, f"{name!r} cannot be a name in a device function")
        if name in CPP_WORDS:
            raise cls.wrong(kind.value, f"'{name}' is a word of C++: give it another name")
        if not isinstance(path, str):
            raise cls.wrong(kind.value, f"'{name}' is {path!r}: give the path of an attribute or an argument's name")
    return paths


def _require_well_spelt(cls: type[Block]) -> None:
    """Refuse an attribute that is nearly one of the block's: it would be left unread."""
    read = {name for one in cls.__mro__ if issubclass(one, Block) for name in inspect.get_annotations(one)}
    for name, value in vars(cls).items():
        is_data = not callable(value) and not hasattr(value, "__get__")
        if is_data and name not in read and not any(hasattr(base, name) for base in cls.__bases__):
            for meant in difflib.get_close_matches(name, read, n=1, cutoff=0.8):
                raise cls.wrong(name, f"a block reads no such attribute; did you mean {meant}?")


def _with_defaults(cls: type[Block], space: SearchSpace) -> SearchSpace:
    """Return the space with the class's own defaults."""
    if not cls.defaults:
        return space
    try:
        for name, value in cls.defaults.items():
            space.fix({name: value})
    except UserError as error:
        raise cls.wrong("defaults", str(error)) from error
    tunables = tuple(
        Tunable(one.name, one.values, one.when, one.host, cls.defaults.get(one.name, one.default))
        for one in space.tunables
    )
    return replace(space, tunables=tunables)


def _file_of(cls: type) -> Path:
    """Return the file of a class; of one typed into an interpreter a name in the working folder."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return Path(file) if file else Path(f"{cls.__name__}.py")


def _texts_of(cls: type[Block], file: Path) -> Mapping[str, str] | None:
    """Return the texts that a class's results depend on; None where they are its file, or the files of its folder.

    A program's own module may have many such classes and much else: the class counts, and the classes it is made of.
    """
    if cls.__name__ == "ModelNew" and (file.name == MODEL_FILE or file.is_file()):
        return None
    texts = {}
    for one in cls.__mro__:
        package = one.__module__.split(".")[0]
        if package not in ("torch", "tunebench", "builtins", "abc") or one.__module__.startswith(folders.__name__):
            try:
                texts[one.__qualname__] = inspect.cleandoc(inspect.getsource(one))
            except (OSError, TypeError):
                texts[one.__qualname__] = ""  # typed into an interpreter that keeps no text
    return texts
