"""The text of a device function as it grows: values with their precedence, operands and the names they get."""

from __future__ import annotations

import enum
import keyword
import math
import re
from dataclasses import dataclass, field

from tunebench.studies.writing.new.named_numbers import expression_of, path_of
from tunebench.studies.writing.new.operations import OPERATIONS
from tunebench.tuner.space import CPP_WORDS

ATOM, PRODUCT, SUM = 3, 2, 1
"""How tightly a text's outermost operation binds."""

FUNCTIONS = frozenset(
    (
        *("min", "max", "clamp", "pow", "gelu", "gelu_tanh", "silu", "divide", "zero_if_infinite", "accumulator_t"),
        *(name for operation in OPERATIONS.values() for name in re.findall(r"(\w+)\(", operation.text)),
    )
)
"""Names that a device function may call."""

_OF_BLOCKS = ("x", "value", "values", "features", "rows", "row", "element", "function", "finish", "d")
_TAKEN = {*FUNCTIONS, *CPP_WORDS, *_OF_BLOCKS}
"""Names that mean something in a device function."""


class Reach(enum.Enum):
    """The part of a tensor for which a value is the same."""

    NUMBER = "a number, the same for all"
    ROW = "each row that is reduced"
    ELEMENT = "each element"


@dataclass(frozen=True)
class Value:
    """A text of C++ that stands for a value."""

    text: str
    reach: Reach = Reach.ELEMENT
    binds: int = ATOM

    def within(self, least: int) -> str:
        """As part of an operation that binds as tightly as this, or tighter."""
        return self.text if self.binds >= least else f"({self.text})"


def reach_of(*values: Value) -> Reach:
    """Return the reach of what is made of these values."""
    order = list(Reach)
    return max((value.reach for value in values), key=order.index, default=Reach.NUMBER)


def number_text(number: float) -> str:
    """A number as C++ has it."""
    if math.isinf(number):
        return "INFINITY" if number > 0 else "-INFINITY"
    return repr(int(number) if float(number).is_integer() and abs(number) < 1e9 else float(number))


@dataclass(frozen=True)
class Computed:
    """A property of the class: a number that Python makes of other attributes, in full precision."""

    expression: str


@dataclass
class Operands:
    """The operands of a device function: for each attribute of a block, names and where their values are.

    Attributes:
        computed: numbers that are made of the module's attributes, by the names of the properties that make them.
    """

    taken: set[str] = field(default_factory=set)
    by_attribute: dict[str, dict[str, str]] = field(default_factory=dict)
    computed: dict[str, Computed] = field(default_factory=dict)

    def name(self, attribute: str, path: str) -> str:
        """The name of an operand, new or known."""
        names = self.by_attribute.setdefault(attribute, {})
        for name, known in names.items():
            if known == path:
                return name
        name = self._free(path)
        names[name] = path
        return name

    def argument(self, attribute: str, name: str) -> str:
        """The name of an argument of `forward`, which it keeps."""
        self.by_attribute.setdefault(attribute, {})[name] = name
        return name

    def _free(self, path: str) -> str:
        parts = path.split(".")
        wanted = parts[-1]
        if not wanted.isidentifier() or self._means_something(wanted) or wanted in self.taken:
            wanted = "_".join(part for part in parts if part.isidentifier())
        if self._means_something(wanted):
            wanted = f"own_{wanted}"
        name, number = wanted, 2
        while name in self.taken:
            name, number = f"{wanted}_{number}", number + 1
        self.taken.add(name)
        return name

    @staticmethod
    def _means_something(name: str) -> bool:
        return name in _TAKEN or keyword.iskeyword(name)

    def number(self, number: float) -> Value:
        """A number of the trace: an operand where it is an attribute of the module, else written as it is."""
        path, expression = path_of(number), expression_of(number)
        if expression is None:
            return Value(number_text(number), Reach.NUMBER, SUM if number < 0 else ATOM)
        if path is None:
            path = self._property(Computed(expression))
        return Value(self.name("scalars", path), Reach.NUMBER)

    def _property(self, wanted: Computed) -> str:
        """The name of a property that computes this, new or known."""
        for name, known in self.computed.items():
            if known == wanted:
                return name
        name = f"number_{len(self.computed) + 1}"
        self.computed[name] = wanted
        return name
