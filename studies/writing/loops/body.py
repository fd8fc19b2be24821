"""The operations of a loop nest as C++: Inductor calls a handler for each, which answers with a text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.virtualized import V
from torch.utils._sympy.value_ranges import ValueRanges

from tunebench.studies.writing.loops.expressions import cpp
from tunebench.studies.writing.loops.lower import UnloweredError

_OF_ONE = (
    "exp expm1 sqrt cos sin erf rsqrt log1p log tanh sigmoid floor ceil trunc relu tan asin acos atan sinh cosh"
    " asinh acosh atanh exp2 log2 log10 erfc lgamma"
)
_OF_TWO = "atan2 fmod copysign hypot remainder pow"
_SIGNS = {
    **{"add": "+", "sub": "-", "mul": "*", "div_rn": "/", "mul_rn": "*", "truncdiv": "/", "mod": "%"},
    **{"eq": "==", "ne": "!=", "lt": "<", "gt": ">", "le": "<=", "ge": ">=", "logical_and": "&&", "logical_or": "||"},
    **{"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^", "and_": "&", "or_": "|", "xor": "^", "lshift": "<<"},
    **{"rshift": ">>", "bitwise_left_shift": "<<", "bitwise_right_shift": ">>"},
}
TEXTS: Mapping[str, str] = {
    **{name: f"{name}({{0}})" for name in _OF_ONE.split()},
    **{name: f"{name}({{0}}, {{1}})" for name in _OF_TWO.split()},
    **{name: f"{{0}} {sign} {{1}}" for name, sign in _SIGNS.items()},
    "maximum": "larger({0}, {1})",
    "minimum": "smaller({0}, {1})",
    "truediv": "divide({0}, {1})",
    "reciprocal": "divide(1, {0})",
    "square": "{0} * {0}",
    "neg": "-{0}",
    "abs": "magnitude({0})",
    "sign": "sign_of({0})",
    "identity": "{0}",
    "round": "rint({0})",
    "where": "{0} ? {1} : {2}",
    "isnan": "{0} != {0}",
    "isinf": "magnitude({0}) == INFINITY",
    "signbit": "is_negative({0})",
    "logical_not": "!{0}",
    "logical_xor": "bool({0}) != bool({1})",
    "bitwise_not": "inverse({0})",
    "fma": "{0} * {1} + {2}",
    "floordiv": "floor_div({0}, {1})",
    "int_truediv": "accumulator_t({0}) / {1}",
}
"""Operations whose text is no more than their operands'; operands are names or in parentheses."""

_INTEGERS = {
    torch.int64: "long long",
    torch.int32: "int",
    torch.int16: "short",
    torch.int8: "signed char",
    torch.uint8: "unsigned char",
    torch.bool: "bool",
}
_NARROW = ("short", "signed char", "unsigned char")
"""Types that C++ computes with as int, so that what it makes of them has to be one of them again."""
_CONDITIONS = (
    *("eq", "ne", "lt", "gt", "le", "ge", "isnan", "isinf", "signbit"),
    *("logical_and", "logical_or", "logical_xor", "logical_not"),
)
"""Operations whose results are truth values."""
_KEEPING = ("abs", "neg", "maximum", "minimum", "where", "round", "floor", "ceil", "trunc", "relu", "sign", "identity")
"""Operations that round nothing: their result is of the half type where their operands are."""
_SMALL_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_JOINS = {"sum": "Sum", "prod": "Product", "max": "Max", "min": "Min", "any": "Any", "xor_sum": "Parity"}
_NUMBER = re.compile(r"accumulator_t\([-+.e\d]+\)")
_LONGEST = 90


def type_of(dtype: torch.dtype, main: torch.dtype) -> str:
    """Return the type that a value is computed in.

    Raises:
        UnloweredError: it is none that a source for the main type has.
    """
    if dtype in _INTEGERS:
        return _INTEGERS[dtype]
    if dtype == main or (dtype in _SMALL_FLOATS and (dtype == torch.float32 or main != torch.float64)):
        if dtype in (torch.float16, torch.bfloat16) and main == torch.float32:
            raise UnloweredError(f"{str(dtype).removeprefix('torch.')} beside float32")
        return "accumulator_t"
    raise UnloweredError(f"{str(dtype).removeprefix('torch.')} beside {str(main).removeprefix('torch.')}")


def literal(value: Any, kind: str) -> str:
    """Return a number as a value of a type."""
    if kind == "bool":
        return str(bool(value)).lower()
    if kind != "accumulator_t":
        return f"{int(value)}" if abs(int(value)) < 1 << 31 else f"{int(value)}ll"
    if math.isnan(value):
        return "accumulator_t(NAN)"
    if math.isinf(value):
        return f"accumulator_t({'-' if value < 0 else ''}INFINITY)"
    return f"accumulator_t({int(value) if float(value).is_integer() and abs(value) < 1e9 else repr(float(value))})"


_DECLARED, _WORD = re.compile(r"const auto (\w+) = "), re.compile(r"\w+")
_HERE_ALONE = re.compile(r"\[|\bchecked\(|\brequire\(|div\(|%")
"""Statements with these stay behind their condition: they read memory, or may trap."""


def in_front(
    statements: Sequence[str], changing: Set[str], but: re.Pattern[str] | None = None
) -> tuple[list[str], list[str]]:
    """Return those of a scope's statements that may stand in front of it, and the others.

    Args:
        changing: names that mean something in it alone.
        but: what no statement in front may have.
    """
    before, within, own = list[str](), list[str](), set(changing)
    for one in statements:
        name = _DECLARED.match(one)
        if name and own.isdisjoint(_WORD.findall(one)) and not (but and but.search(one)):
            before.append(one)
        else:
            within.append(one)
            own |= {name[1]} if name else set()
    return before, within


def made_from(value: str, statements: Sequence[str]) -> list[str]:
    """Return those of a scope's statements that a value is made from."""
    found, used = list[str](), set(_WORD.findall(value))
    for one in reversed(statements):
        if (name := _DECLARED.match(one)) and name[1] in used:
            found.append(one)
            used.update(_WORD.findall(one))
    return found[::-1]


@dataclass
class Lines:
    """Statements of one scope, and what is known in it already.

    Attributes:
        known: names by their texts.
    """

    statements: list[str] = field(default_factory=list)
    known: dict[str, str] = field(default_factory=dict)

    def inlined(self) -> list[str]:
        """Return the statements, without names that are used once, in a short text beside others."""
        statements = list(self.statements)
        for at in range(len(statements) - 1, -1, -1):
            found = re.fullmatch(r"const auto (\w+) = ([^\[\n]*);", statements[at])
            if found is None:
                continue
            name, text = found.groups()
            users = [number for number, one in enumerate(statements) if number > at and re.search(rf"\b{name}\b", one)]
            uses = sum(len(re.findall(rf"\b{name}\b", one)) for one in statements[at + 1 :])
            between = statements[at + 1 : users[0]] if uses == 1 else ["}"]
            if any(one.startswith(("for (", "}")) for one in between):
                continue  # a value that all elements of a loop have is made once
            if "[&]" in statements[users[0]] or len(statements[users[0]]) + len(text) > _LONGEST:
                continue
            statements[users[0]] = _inserted(statements[users[0]], name, text)
            del statements[at]
        return statements


def _inserted(statement: str, name: str, text: str) -> str:
    place = re.search(rf"\b{name}\b", statement)
    assert place is not None
    before, behind = statement[: place.start()], statement[place.end() :]
    is_whole = before.endswith(("(", ", ", " = ")) and behind.startswith((")", ",", ";"))
    is_atom = re.fullmatch(r"\w+|\w+\([^()]*(\([^()]*\)[^()]*)*\)", text) is not None
    return f"{before}{text if is_whole or is_atom else f'({text})'}{behind}"


class Handler(DefaultHandler):
    """Writes the operations of one loop nest's bodies.

    Args:
        main: the type that the source calls `scalar_t`.
        nest: what writes it: loads, stores, reductions and scans are its to write.

    Attributes:
        lines: of the scope at hand.
        count: of the names that it has given.
        ranges: of the symbols in places.
        narrow: the types of values that are narrow integers.
        rounded: values that `scalar_t` has, which converting to it does not change.
    """

    def __init__(self, main: torch.dtype, nest: Any) -> None:
        self.main = main
        self.nest = nest
        self.lines = Lines()
        self.count = 0
        self.ranges: dict[sympy.Symbol, ValueRanges[sympy.Expr]] = {}
        self.narrow: dict[str, str] = {}
        self.rounded: set[str] = set()

    def typed(self, kind: str, value: str) -> str:
        """Return a value, whose type is known from here on where it is a narrow integer."""
        if kind in _NARROW:
            self.narrow[value] = kind
        return value

    def named(self, text: str, prefix: str = "t") -> str:
        """Return the name of a value, new or known."""
        if re.fullmatch(r"\w+", text):
            return text
        if text not in self.lines.known:
            self.count += 1
            name = f"{prefix}{self.count}"
            self.lines.known[text] = name
            self.lines.statements.append(f"const auto {name} = {text};")
        return self.lines.known[text]

    def place(self, index: sympy.Expr) -> str:
        """Return the text of a place in memory."""
        try:
            return cpp(index, self.ranges)
        except (TypeError, NotImplementedError) as error:
            raise UnloweredError(f"an index with {error}") from error

    @contextmanager
    def scope(self) -> Iterator[Lines]:
        """Within it statements go to a scope of their own, which knows what is known outside."""
        outer, self.lines = self.lines, Lines([], dict(self.lines.known))
        try:
            yield self.lines
        finally:
            self.lines = outer

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name not in TEXTS or kwargs:
            raise UnloweredError(name)
        text = TEXTS[name].format(*args)
        kind = next((self.narrow[one] for one in args if one in self.narrow), "")
        if kind and name not in (*_CONDITIONS, "int_truediv"):
            return self.typed(kind, self.named(f"{cast(kind)}({text})"))
        result = self.named(text)
        if name in _KEEPING and self.rounded.issuperset(args[name == "where" :]):
            self.rounded.add(result)
        return result

    def constant(self, value: Any, dtype: torch.dtype) -> str:
        """Return a number."""
        kind = type_of(dtype, self.main)
        text = literal(value, kind)
        text = f"({text})" if text.startswith("-") else text
        if kind == "accumulator_t" and torch.tensor(value, dtype=self.main).item() == value:
            self.rounded.add(text)
        return text

    def truediv(self, x: str, y: str) -> str:
        """Return a quotient: as torch divides by a number on a GPU, a product with its reciprocal."""
        if _NUMBER.fullmatch(y):
            return self.named(f"{x} * (accumulator_t(1) / {y})")
        return str(self._default("truediv", (x, y), {}))

    def index_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> str:
        """Return a place as a value."""
        return self.named(f"{cast(type_of(dtype, self.main))}({self.place(expr)})")

    def to_dtype(
        self,
        x: str,
        dtype: torch.dtype,
        src_dtype: torch.dtype | None = None,
        use_compute_types: bool = True,
    ) -> str:
        """Return a value in another type, which is computed in; a half type's own where that is asked for."""
        kind = type_of(dtype, self.main)
        is_float = x in self.rounded or (src_dtype is not None and src_dtype.is_floating_point)
        if not (is_float and kind == "accumulator_t"):
            x = self.typed(kind, self.named(f"{cast(kind)}({x})"))
        if use_compute_types or dtype != self.main:
            return x
        return self.as_stored(x)

    def as_stored(self, x: str) -> str:
        """Return a value as `scalar_t` has it."""
        if x not in self.rounded:
            x = self.named(f"rounded({x})")
            self.rounded.add(x)
        return x

    def trunc_to_int(self, x: str, dtype: torch.dtype) -> str:
        """Return a value rounded towards zero."""
        return self.named(f"{cast(type_of(dtype, self.main))}(trunc({x}))")

    def floor_to_int(self, x: str, dtype: torch.dtype) -> str:
        """Return a value rounded down."""
        return self.named(f"{cast(type_of(dtype, self.main))}(floor({x}))")

    def ceil_to_int(self, x: str, dtype: torch.dtype) -> str:
        """Return a value rounded up."""
        return self.named(f"{cast(type_of(dtype, self.main))}(ceil({x}))")

    def round_to_int(self, x: str, dtype: torch.dtype) -> str:
        """Return a value rounded to the nearest integer."""
        return self.named(f"{cast(type_of(dtype, self.main))}(rint({x}))")

    def masked(self, mask: str, body: Callable[[], str], other: Any) -> str:
        """Return a value that is computed where a condition holds.

        What reads no memory, such as places, is computed before: once for all elements of a thread that have it alike.
        """
        with self.scope() as inner:
            value = body()
        before, within = in_front(inner.statements, set(), but=_HERE_ALONE)
        self.lines.statements += before
        self.lines.known.update(
            (text, name) for text, name in inner.known.items() if f"const auto {name} = {text};" in before
        )
        text = " ".join(Lines([*within, f"return {value};"]).inlined())
        result = self.named(f"when({mask}, {literal(other, 'accumulator_t')}, [&] {{ {text} }})")
        return self.typed(self.narrow.get(value, ""), result)

    def indirect_indexing(
        self,
        x: str,
        size: Any,
        check: bool = True,
        wrap_neg: bool = True,  # noqa: ARG002
    ) -> sympy.Symbol:
        """Return a symbol for a place that a value names; of some torch makes sure that they are within a size."""
        function = "checked" if check else "wrapped"
        name = self.named(f"{function}(index_t({x}), {self.place(sympy.sympify(size))})", "at")
        symbol = sympy.Symbol(name, integer=True, nonnegative=True)
        self.ranges[symbol] = ValueRanges(0, sympy.oo)
        return symbol

    def check_bounds(self, expr: sympy.Expr, size: sympy.Expr, lower: bool, upper: bool) -> None:
        """Leave it: `checked` does."""

    def device_assert_async(self, cond: str, msg: str) -> None:  # noqa: ARG002
        """Have the kernel trap where a condition of the model's does not hold."""
        self.lines.statements.append(f"require({cond});")

    def load(self, name: str, index: sympy.Expr) -> str:
        """Return an element of a buffer, or what was stored there."""
        return self.typed(type_of(V.graph.get_dtype(name), self.main), self.nest.load(self, name, index))

    def store(self, name: str, index: sympy.Expr, value: str, mode: str | None = None) -> None:
        """Store an element."""
        if mode is not None:
            raise UnloweredError("sums into memory")
        self.nest.store(self, name, index, value)

    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, reduction_type: str, value: Any) -> Any:
        """Return what the loop at hand makes of all values, which is known behind it."""
        kind = type_of(dtype, self.main)
        kind = "int" if kind in _NARROW else kind  # lanes exchange words
        if reduction_type == "welford_reduce":
            name = self.nest.reduce(self, "Moments", "Moments{0, 0, 0}", "Spread", "Spread::add({0}, {1})", value)
            return tuple(f"{name}.{part}" for part in ("mean", "squares", "count"))
        if reduction_type in ("argmax", "argmin"):
            of = type_of(src_dtype, self.main)
            join = f"Best<{str(reduction_type == 'argmax').lower()}>"
            text = f"{join}::add({{0}}, {cast(of)}({{1}}), r)"
            name = self.nest.reduce(self, f"Placed<{of}>", f"Placed<{of}>{{0, -1}}", join, text, value)
            return f"{name}.place"
        if reduction_type not in _JOINS:
            raise UnloweredError(f"{reduction_type} over rows")
        join = _JOINS[reduction_type]
        first = {"prod": 1, "max": -math.inf, "min": math.inf}.get(reduction_type, 0)
        start = literal(first, kind) if math.isfinite(first) or kind == "accumulator_t" else _extreme(kind, first)
        result = self.nest.reduce(self, kind, start, join, f"{join}::join({{0}}, {cast(kind)}({{1}}))", value)
        if join in ("Max", "Min") and value in self.rounded:
            self.rounded.add(result)
        return result

    def store_reduction(self, name: str, index: sympy.Expr, value: str) -> None:
        """Store a row's result."""
        self.nest.store_result(name, index, value)

    def scan(self, dtypes: Any, combine_fn: Callable[..., Any], values: tuple[str, ...]) -> tuple[str, ...]:
        """Return what the elements up to this one make."""
        if len(values) != 1:
            raise UnloweredError("a scan of pairs")
        kind = type_of(dtypes[0], self.main)
        with self.scope() as inner:
            (joined,) = combine_fn(("a",), ("b",))
            text = " ".join(Lines([*inner.statements, f"return {joined};"]).inlined())
        return (self.nest.scan(self, kind, f"[&]({kind} a, {kind} b) {{ {text} }}", values[0]),)


def cast(kind: str) -> str:
    """Return the name of a type as a conversion has it."""
    return kind if " " not in kind else f"({kind})"


def _extreme(kind: str, sign: float) -> str:
    bits = {"long long": 64, "int": 32, "short": 16, "signed char": 8}.get(kind)
    if bits is None:  # bool and unsigned char
        return "0" if sign < 0 else ("true" if kind == "bool" else "255")
    return f"(-{(1 << bits - 1) - 1}{'ll' if bits == 64 else ''} - 1)" if sign < 0 else f"{(1 << bits - 1) - 1}ll"


def run_body(handler: Handler, body: Callable[..., Any], *variables: Any) -> None:
    """Have Inductor call the handler for each operation of a body."""
    with V.set_ops_handler(handler):
        body(*variables)
