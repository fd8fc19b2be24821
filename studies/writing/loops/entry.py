"""The entry points of a pass in CUDA C++: their parameters, what a thread's row and elements are, and their statements.

Of rows that are few and long several blocks may have one each: a second entry point leaves what a block makes of its
part, a third joins the parts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from tunebench.studies.writing.loops.body import Lines
from tunebench.studies.writing.loops.expressions import cpp, product_of

K, R = sympy.symbols("k r", integer=True, nonnegative=True)
"""The numbers of a kept element and of a reduced one."""
_INDENT = "    "
_JOIN = re.compile(r"(\w+) = threads::join<(.*)>\(\1\);")


@dataclass(frozen=True)
class Tensor:
    """A tensor that a pass reads or writes.

    Attributes:
        kind: of its elements in memory.
    """

    name: str
    kind: str
    is_written: bool


@dataclass(frozen=True)
class Entry:
    """The properties that the entry points of a pass share.

    Attributes:
        name: of the pass.
        tensors: the parameters.
        kept, reduced: how many elements it keeps, and how many of each it reduces; None of a pass without reductions.
        innermost: the size of the dimension of which a thread has several neighbours at once; None where it has one.
        neighbours_are_lanes: whether neighbours in memory are lanes of a row.
    """

    name: str
    tensors: tuple[Tensor, ...]
    kept: sympy.Expr
    reduced: sympy.Expr | None
    innermost: sympy.Expr | None
    neighbours_are_lanes: bool

    def text(self, lines: Sequence[str], joins: int) -> str:
        """Return the entry point with its statements; and where several blocks may have a row, the two others.

        Args:
            joins: how many values of a row are joined then; 0 where one block has it.
        """
        body = Lines(list(lines)).inlined()
        return "\n".join([self._text(self.name, body), *(self._parts(body, joins) if joins else ())])

    def _parts(self, body: Sequence[str], joins: int) -> list[str]:
        """The entry points of the parts of rows, and of what joins them."""
        begin = body.index(loop(has_items=self.innermost is not None))
        end = _end(body, begin)
        joined = [_JOIN.fullmatch(one) for one in body[end + 1 : end + 1 + joins]]
        names = [(one[1], one[2]) for one in joined if one is not None]
        kinds = {name: _kind_of(name, body) for name, _ in names}
        parts = [Tensor(f"memory_of_{name}", "unsigned char", is_written=True) for name, _ in names]
        typed = [
            f"{kinds[name]}* const parts_of_{name} = reinterpret_cast<{kinds[name]}*>(memory_of_{name});"
            for name, _ in names
        ]
        r, items, each = (start(R), " * items", "reduced / items") if self.innermost is not None else (R, "", "reduced")
        own = [
            *typed,
            f"constexpr index_t each = ({each} + parts - 1) / parts{items};",
            "const index_t first = index_t(blockIdx.y) * each, last = smaller(first + each, reduced);",
            *body[:begin],
            f"for (index_t {r} = first + lane{items}; {r} < last; {r} += lanes{items}) {{",
            *body[begin + 1 : end],
            "}",
            *body[end + 1 : end + 1 + joins],
            *(f"if (is_first) parts_of_{name}[k * parts + blockIdx.y] = {name};" for name, _ in names),
        ]
        together = [
            *typed,
            *body[:begin],
            "for (int part = lane; part < parts; part += lanes) {",
            *(f"{name} = {join}::join({name}, parts_of_{name}[k * parts + part]);" for name, join in names),
            "}",
            *body[end + 1 :],
        ]
        return [self._text(f"{self.name}_part", own, parts), self._text(f"{self.name}_join", together, parts)]

    def _text(self, name: str, body: Sequence[str], more: Sequence[Tensor] = ()) -> str:
        parameters = ", ".join(
            f"{one.kind}* {one.name}" if one.is_written else f"const {one.kind}* __restrict__ {one.name}"
            for one in (*self.tensors, *more)
        )
        head = ["begin_pass<early_passes>();", f"constexpr index_t kept = {cpp(product_of(self.kept))};"]
        if self.innermost is not None:
            head.append(f"constexpr int items = common(pass_vector_width, {cpp(product_of(self.innermost))});")
        if self.reduced is None:
            threads = "element_threads"
            number = "(index_t(blockIdx.x) * element_threads + threadIdx.x) * items"
            head += [f"const index_t {start(K)} = {number};", f"if ({start(K)} >= kept) {{", "return;", "}"]
        else:
            threads = f"{self.name}_rows * {self.name}_lanes"
            parts = f", parts = {self.name}_parts" if more else ""
            head += [
                f"constexpr index_t reduced = {cpp(product_of(self.reduced))};",
                f"constexpr int rows = {self.name}_rows, lanes = {self.name}_lanes{parts};",
                f"using threads = Threads<rows, lanes, {str(self.neighbours_are_lanes).lower()}>;",
                f"using trips = Trips<reduced, lanes, {1 if self.innermost is None else 'items'}>;",
                "const int lane = threads::lane();",
                "// A row behind the last one is that one again.",
                "const index_t own = index_t(blockIdx.x) * rows + threads::row(), k = own < kept ? own : kept - 1;",
                "const bool is_first = lane == 0 && own < kept;",
            ]
        for word in ("is_first", "trips"):
            if not any(word in line for line in body):
                head = [line for line in head if word not in line]
        return (
            f'extern "C" __global__ void __launch_bounds__({threads})\n'
            f"    {name}({parameters}) {{\n{_indented([*head, *body])}\n}}\n"
        )


def start(symbol: sympy.Symbol) -> sympy.Symbol:
    """Return the symbol of the first of the elements that a thread has at once."""
    return sympy.Symbol(f"{symbol}_start", integer=True, nonnegative=True)


def loop(*, has_items: bool) -> str:
    """Return the head of a loop over a row's elements, of which a thread may have several at once."""
    return f"trips::each<index_t>(lane, [&](const index_t {start(R) if has_items else R}) {{"


LOOPS_END = "});"


def _end(lines: Sequence[str], begin: int) -> int:
    """The line that closes what a line opens."""
    depth = 0
    for at in range(begin, len(lines)):
        depth += lines[at].endswith("{") - lines[at].startswith("}")
        if depth == 0:
            return at
    raise AssertionError(lines[begin])


def _kind_of(name: str, lines: Sequence[str]) -> str:
    """The type that a value is declared with."""
    (found,) = [one for line in lines if (one := re.fullmatch(rf"(.+) {name} = .*;", line))]
    return found[1]


def _indented(statements: Sequence[str]) -> str:
    depth, lines = 1, []
    for line in statements:
        depth -= line.startswith("}")
        lines.append(_INDENT * depth + line)
        depth += line.endswith("{")
    return "\n".join(lines)
