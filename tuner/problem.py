"""A problem: the shapes, dtype and choices that a measurement belongs to."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Never

from tunebench.tuner.errors import UserError
from tunebench.tuner.settings import Setting

ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of an element, by torch dtype name."""

Axes = Mapping[str, str | tuple[str, ...]]
"""The names of a model's tensor dimensions: a name for each dimension, or one name for the number of elements of a
tensor of any shape. A tensor is an input, by its name in the reference's `forward`, a parameter or buffer, by its name
in the state dict, or the output, which is `return`. Dimensions of one name have one size."""

OUTPUT = "return"
"""The name of the output among `Axes`."""


class Accuracy(enum.StrEnum):
    """The accuracy that a kernel needs. It is its user's choice, and with it another problem is to be solved."""

    TOLERANCE = "tolerance"
    """An error within the gate's tolerance, or twice the reference's own error: see `tuner/gate/tolerance.py`."""
    EAGER = "eager"
    """An error no larger than the reference's own at full precision: see `tuner/gate/accuracy.py`."""
    TF32 = "tf32"
    """An error no larger than the reference's own where its products are in TF32, as the program permits."""

    @classmethod
    def under(cls, settings: Mapping[str, str], asked: Accuracy | None = None) -> Accuracy:
        """Return the accuracy of a program: where nobody asks for one it follows the settings, and it is never TF32's
        where they do not permit TF32.

        Args:
            settings: that are not PyTorch's defaults; a problem's options have them.
        """
        if asked in (cls.EAGER, cls.TOLERANCE):
            return asked
        return cls.TF32 if settings.get(Setting.MATMUL) == "tf32" else cls.TOLERANCE

    @classmethod
    def _missing_(cls, value: object) -> Never:
        raise ValueError(f"{value!r} is no accuracy: use one of {', '.join(cls)}")


class Objective(enum.StrEnum):
    """The quantity that a study minimises. Another one than the time makes another problem."""

    TIME = "time"
    ENERGY = "energy"
    """Energy of a call, by NVML."""
    BOTH = "both"
    """The product of time and energy."""

    @classmethod
    def _missing_(cls, value: object) -> Never:
        raise ValueError(f"{value!r} is no objective: use one of {', '.join(cls)}")

    def cost(self, median_ms: float, energy_mj: float | None) -> float:
        """Return what is minimised, of a time and the energy of a call; infinite where that is needed and not known."""
        if self is Objective.TIME:
            return median_ms
        energy = math.inf if energy_mj is None else energy_mj
        return energy if self is Objective.ENERGY else energy * median_ms


OBJECTIVE_OPTION = "objective"
"""The option of a problem whose energy counts; there is none for the time alone."""

CALL_OPTION = "call"
"""The option with what identifies a call beside the named sizes: `TENSOR=SHAPE` for tensors whose sizes the axes do not
say, then a digest of all of them, and of what the reference computes."""

ACCURACY_OPTION = "accuracy"
"""The option of a problem that is to be solved as exactly as eager does; there is none for the tolerance."""


@dataclass(frozen=True)
class Problem:
    """The properties of a model's call that its speed depends on.

    Attributes:
        axes: named sizes, in elements; two problems that differ only here are near or far from each other.
        dtype: the name of the inputs' type as torch spells it, such as `float32`.
        options: choices that make a different problem altogether, such as `mode=train`; and under `CALL_OPTION` what
            identifies the call.
    """

    axes: Mapping[str, int]
    dtype: str = "float32"
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def item_bytes(self) -> int:
        """Bytes of one element of the inputs' type."""
        return ITEM_BYTES[self.dtype]

    @property
    def accuracy(self) -> Accuracy:
        """How wrong what solves it may be."""
        found = self.options.get(ACCURACY_OPTION, Accuracy.TOLERANCE)
        return Accuracy(found) if found in list(Accuracy) else Accuracy.TOLERANCE

    @property
    def objective(self) -> Objective:
        """The figure that a study of it minimises."""
        found = self.options.get(OBJECTIVE_OPTION, Objective.TIME)
        return Objective(found) if found in list(Objective) else Objective.TIME

    @property
    def named(self) -> Problem:
        """The problem by what its kernel's author names alone, which several calls may share."""
        return self.without(CALL_OPTION, *Setting)

    @property
    def other_shapes(self) -> str:
        """The shapes of the call's tensors that the named sizes do not say, such as `x=64x128`."""
        return self.options.get(CALL_OPTION, "").rpartition("#")[0].rstrip()

    @property
    def names_all(self) -> bool:
        """Whether the call is identified, and the named sizes say the shapes of all of its tensors."""
        return CALL_OPTION in self.options and not self.other_shapes

    def without(self, *options: str) -> Problem:
        """Return the same problem without these options."""
        left = {name: value for name, value in self.options.items() if name not in options}
        return self if left == self.options else replace(self, options=left)

    def at(self, accuracy: Accuracy, objective: Objective = Objective.TIME) -> Problem:
        """Return the same problem, to be solved as accurately as this, and to that end."""
        asked = ((ACCURACY_OPTION, accuracy, Accuracy.TOLERANCE), (OBJECTIVE_OPTION, objective, Objective.TIME))
        options = {name: value for name, value in self.options.items() if name not in (one for one, _, _ in asked)}
        options |= {name: value.value for name, value, usual in asked if value is not usual}
        return self if options == self.options else replace(self, options=options)

    @property
    def key(self) -> str:
        """Canonical JSON; equal problems have equal keys."""
        parts = {"axes": dict(self.axes), "dtype": self.dtype, "options": dict(self.options)}
        return json.dumps(parts, sort_keys=True, separators=(",", ":"))

    def __hash__(self) -> int:
        # Of what nearly always differs; a look-up by problem stands in every forward of a tuned model.
        return hash((self.dtype, frozenset(self.axes.items())))

    def __str__(self) -> str:
        sizes = " ".join(f"{name}={size}" for name, size in self.axes.items())
        options = "".join(f" {name}={value}" for name, value in self.options.items() if name != CALL_OPTION)
        return f"{sizes} {self.dtype}{options} {self.other_shapes}".rstrip()


def told_apart(listed: Iterable[tuple[str, Problem]]) -> list[str]:
    """Return the texts of a listing's problems, each of which stands beside another text, such as its kernel.

    They are those of `str`; where unequal problems beside one text would look alike, their calls' digests are added.
    """
    pairs = [(beside, str(problem), problem) for beside, problem in listed]
    keys: dict[tuple[str, str], set[str]] = {}
    for beside, text, problem in pairs:
        keys.setdefault((beside, text), set()).add(problem.key)
    return [
        f"{text} {_digest(problem)}".rstrip() if len(keys[beside, text]) > 1 else text
        for beside, text, problem in pairs
    ]


def briefly(listed: Iterable[tuple[str, Problem]]) -> list[str]:
    """Return short texts of a listing's problems, as `told_apart` has long ones: sizes, dtype, mode.

    Where unequal problems beside one text would look alike, the options that they differ in are added.
    """
    pairs = list(listed)
    short = [_short(problem) for _, problem in pairs]
    alike: dict[tuple[str, str], dict[str, Problem]] = {}
    for (beside, problem), text in zip(pairs, short, strict=True):
        alike.setdefault((beside, text), {})[problem.key] = problem
    texts = []
    for (beside, problem), text in zip(pairs, short, strict=True):
        others = [one.options for one in alike[beside, text].values()]
        differing = {name for one in others for name in one if len({each.get(name) for each in others}) > 1}
        added = [f"{name}={problem.options.get(name)}" for name in sorted(differing - {CALL_OPTION})]
        if CALL_OPTION in differing:
            shapes = [one.other_shapes for one in alike[beside, text].values()]
            added += [_digest(problem) if shapes.count(problem.other_shapes) > 1 else problem.other_shapes]
        texts.append(" ".join([text, *filter(None, added)]))
    return texts


def _short(problem: Problem) -> str:
    mode = problem.options.get("mode", "eval")
    sizes = "×".join(map(str, problem.axes.values()))
    return " ".join([sizes, problem.dtype, *([] if mode == "eval" else [mode])])


def _digest(problem: Problem) -> str:
    call = problem.options.get(CALL_OPTION, "")
    return call[call.rfind("#") :] if "#" in call else ""


@dataclass(frozen=True)
class Work:
    """The least that any implementation of a problem must do.

    Attributes:
        bytes: device memory that must be read and written, each input once and each output once.
        operations: arithmetic operations of the reference's own algorithm.
    """

    bytes: int
    operations: int

    def __post_init__(self) -> None:
        for name, value in (("bytes", self.bytes), ("operations", self.operations)):
            if not isinstance(value, int | float) or not value >= 0:
                raise UserError(f"Work({name}={value!r}): give a number that is not negative")

    @classmethod
    def of_axes(cls, problem: Problem, axes: Axes) -> Work:
        """Return the least work of a kernel that declares only its axes: each of these tensors crosses memory once.

        An operation for each element of the output is the least there can be; without axes of an output, one in all.
        """
        sizes = {
            tensor: math.prod(problem.axes[name] for name in ((names,) if isinstance(names, str) else names))
            for tensor, names in axes.items()
        }
        return cls(bytes=sum(sizes.values()) * problem.item_bytes, operations=sizes.get(OUTPUT, 1))


def size_distance(one: Problem, other: Problem) -> float:
    """Return how far apart the sizes of two problems are: the sum of |log(size ratio)| over the axes that both have."""
    # An empty axis is one step below size 1.
    pairs = ((max(one.axes[name], 0.5), max(other.axes[name], 0.5)) for name in one.axes if name in other.axes)
    return sum(abs(math.log(mine / theirs)) for mine, theirs in pairs)


def problem_distance(one: Problem, other: Problem) -> float:
    """Return how far apart two problems are that differ in their sizes alone; zero for equal problems only.

    Infinite where the axes' names, the dtype or the options differ.
    """
    if one == other:
        return 0.0
    if one.axes.keys() != other.axes.keys() or one.dtype != other.dtype or _compared(one) != _compared(other):
        return math.inf
    return size_distance(one, other) or _OTHER_CALL


def _compared(problem: Problem) -> Mapping[str, str]:
    return problem.without(CALL_OPTION).options


_OTHER_CALL = 0.1
"""The distance of two calls whose named sizes are equal."""
