"""A loop nest as a pass: an entry point in CUDA C++, its tunables, and how it is launched.

The elements that a nest keeps and those that it reduces are numbered by `k` and `r`. Each row, the elements of one `k`,
has some threads (`lanes`), and a block some rows. Nodes whose values need the result of a reduction are in a later loop
over the row than that one; what is one value for each row is computed between the loops. Of rows that are few and long
several blocks may have one each: a second entry point leaves what a block makes of its part, a third joins the parts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import sympy
import torch
from torch._inductor import ir
from torch._inductor.scheduler import SchedulerNode
from torch._inductor.virtualized import V
from torch.utils._sympy.value_ranges import ValueRanges

from tunebench.studies.writing.loops.body import Handler, Lines, cast, run_body, type_of
from tunebench.studies.writing.loops.domain import Domain, hint, simplified
from tunebench.studies.writing.loops.expressions import coefficient, cpp, grouped, product_of, tidy
from tunebench.studies.writing.loops.lower import Nest, UnloweredError, group_of

_K, _R = sympy.symbols("k r", integer=True, nonnegative=True)
_INDENT = "    "
_LEAST_ROWS = 64
"""Least number of rows whose elements may be computed where the rows are reduced: so many blocks keep a device busy."""
_LOOP = "for (index_t r = lane; r < reduced; r += lanes) {"
_JOIN = re.compile(r"(\w+) = threads::join<(.*)>\(\1\);")
_MOST_SPLIT, _LEAST_PART, _BLOCKS, _THREADS = 4096, 1024, 512, 1 << 18
"""Most rows that several blocks may have each, least elements of a row for each, enough blocks, enough threads."""


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
class Pass:
    """An entry point.

    Attributes:
        text: of the entry point.
        tensors: its parameters.
        kept, reduced: how many elements it keeps, and how many of each it reduces; None of a pass without reductions.
        rows, lanes: how many a block had better have, and how many threads each of them.
        does: the operations, by torch's names.
        joins: how many values of a row are joined where several blocks may have it; 0 where one has.
        parts: how many blocks it had better have then.
    """

    name: str
    text: str
    tensors: tuple[Tensor, ...]
    kept: sympy.Expr
    reduced: sympy.Expr | None
    rows: int
    lanes: int
    does: tuple[str, ...]
    joins: int = 0
    parts: int = 1

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the entry points."""
        return (self.name, f"{self.name}_part", f"{self.name}_join") if self.joins else (self.name,)


class UnfusedError(UnloweredError):
    """Nodes cannot be in one nest."""


class NestWriter:
    """Writes one nest.

    Args:
        main: the type that the source calls `scalar_t`.
        needed: buffers that something else reads.
        kinds: of the elements of all buffers.
    """

    def __init__(
        self, name: str, nodes: Sequence[SchedulerNode], main: torch.dtype, needed: Set[str], kinds: Mapping[str, str]
    ) -> None:
        self.name = name
        self.nodes = nodes
        self.main = main
        self.needed = needed
        self.kinds = kinds
        simplify = V.graph.sizevars.simplify
        groups = [group_of(node) for node in nodes]
        reducing = [node for node in nodes if node.is_reduction()]
        self.kept: sympy.Expr
        self.reduced: sympy.Expr | None
        if reducing:
            self.kept, self.reduced = group_of(reducing[0])
        else:
            self.kept, self.reduced = groups[0][0], None
        self.kept = tidy(simplify(self.kept))
        self.handler = Handler(main, self)
        in_order = sorted(nodes, key=lambda node: not node.is_reduction())
        sizes = [[*node._body.sizes[0], *node._body.sizes[1]] for node in in_order]
        self.domain = Domain(self.kept, self.reduced, sizes)
        self.handler.ranges.update(dict.fromkeys(self.domain.ranges, ValueRanges(0, sympy.oo)))
        self.stored: dict[str, tuple[int, sympy.Expr, str]] = {}
        self.read: dict[str, None] = {}
        self.written: dict[str, None] = {}
        self.reread: set[str] = set()
        self.step = 0
        self.declared: list[str] = []
        self.joins: list[str] = []
        self.behind: list[str] = []
        self.guard = ""
        self.reductions: dict[tuple[int, str, str], str] = {}
        self.places: list[sympy.Expr] = []
        self.along_rows = {str(_R), *(str(one) for one, _ in self.domain.reduced_dimensions)}
        self.head = Lines()

    # The handler calls the methods from here to `write`.

    def load(self, handler: Handler, name: str, index: sympy.Expr) -> str:
        """Return an element of a buffer, or what was stored there in this step."""
        index = self._tidy(index)
        if name in self.stored:
            step, place, value = self.stored[name]
            if sympy.expand(place - index) != 0:
                raise UnfusedError(f"'{name}' is read elsewhere than it is written")
            if step == self.step or not self._is_loop(step):
                return value
            self.reread.add(name)  # what the same thread wrote in an earlier loop
        self.read[name] = None
        self._vote(index)
        kind = type_of(_dtype_of(name), self.main)
        text = f"{name}[{self._place(index)}]"
        return handler.named(f"accumulator_t({text})" if kind == "accumulator_t" else text)

    def _tidy(self, index: sympy.Expr) -> sympy.Expr:
        return tidy(V.graph.sizevars.simplify_with_ranges(sympy.expand(index), self.domain.ranges))

    def _vote(self, index: sympy.Expr) -> None:
        """Count what lies along the rows, of what a loop reads and writes."""
        if self._is_loop(self.step):
            self.places.append(index)

    def _place(self, index: sympy.Expr) -> str:
        symbols = [one for one in self.handler.ranges if one in index.free_symbols]
        return self.handler.place(grouped(index, symbols))

    def store(self, handler: Handler, name: str, index: sympy.Expr, value: str) -> None:
        """Store an element, or what is one for each row."""
        index = self._tidy(index)
        self._vote(index)
        self.stored[name] = (self.step, index, value)
        self.written[name] = None
        text = f"{self.guard}{name}[{self._place(index)}] = {cast(self.kinds[name])}({value});"
        handler.lines.statements.append(text)

    def reduce(self, handler: Handler, kind: str, start: str, join: str, text: str, value: str) -> str:
        """Declare what a loop makes of all values, and have it joined behind the loop."""
        if (known := self.reductions.get((self.step, text, value))) is not None:
            return known
        handler.count += 1
        name = self.reductions[self.step, text, value] = f"all{handler.count}"
        self.declared.append(f"{kind} {name} = {start};")
        handler.lines.statements.append(f"{self.guard}{name} = {text.format(name, value)};")
        self.joins.append(f"{name} = threads::join<{join}>({name});")
        return name

    def store_result(self, name: str, index: sympy.Expr, value: str) -> None:
        """Store a row's result behind the loop."""
        kind = type_of(_dtype_of(name), self.main)
        value = value if kind == "accumulator_t" else f"{cast(kind)}({value})"
        index = self._tidy(index)
        self.stored[name] = (self.step + 1, index, value)
        self.written[name] = None
        place = self._place(index)
        self.behind.append(f"if (is_first) {name}[{place}] = {cast(self.kinds[name])}({value});")

    def scan(self, handler: Handler, kind: str, join: str, value: str) -> str:
        """Return what the elements of a row up to this one make."""
        handler.count += 1
        carry = f"before{handler.count}"
        self.declared.append(f"{kind} {carry} = 0;")
        name = f"t{handler.count}"
        handler.lines.statements.append(
            f"const {kind} {name} = threads::scan({cast(kind)}({value}), {carry}, base == 0, {join});"
        )
        return name

    def write(self) -> Pass:
        """Return the pass."""
        steps = self._steps()
        texts: list[str] = []
        for step in range(max(steps.values()) + 1 if steps else 0):
            texts += self._step_text(step, [node for node in self.nodes if steps[node.get_name()] == step])
        places = self._places(_K, self.domain.kept_dimensions)
        places += [f"const index_t {name} = {text};" for text, name in self.head.known.items()]
        lines = self._without_unneeded([*places, *texts])
        tensors = self._tensors(lines)
        neighbours = self._neighbours_are_lanes()
        rows, lanes = self._usual_threads(neighbours)
        joins = self._joins(steps)
        return Pass(
            self.name,
            self._entries(lines, tensors, neighbours, joins),
            tensors,
            self.kept,
            self.reduced,
            rows,
            lanes,
            tuple(dict.fromkeys(name for node in self.nodes for name in _operations(node))),
            joins,
            self._usual_parts(rows) if joins else 1,
        )

    def _usual_threads(self, along: bool) -> tuple[int, int]:
        """Return rows and lanes of a block of 256 threads: lanes for long rows, or for few of them."""
        if self.reduced is None:
            return 256, 1
        kept, reduced = hint(self.kept), hint(self.reduced)
        wanted = reduced // 4 if along else min(reduced // 4, 32, _THREADS // max(1, kept))
        lanes = 1 << min(8, max(0, wanted.bit_length() - 1))
        rows = min(256 // lanes, 1 << max(0, kept - 1).bit_length())
        return max(rows, -(-32 // lanes)), lanes

    def _usual_parts(self, rows: int) -> int:
        """Return how many blocks a row has, a power of two, so that some hundreds are busy."""
        blocks = -(-hint(self.kept) // rows)
        most = max(1, min(_BLOCKS // blocks, hint(self.reduced) // _LEAST_PART))
        return 1 << min(8, most.bit_length() - 1)

    def _is_loop(self, step: int) -> bool:
        return self.reduced is not None and step % 2 == 0

    def _is_looped(self, node: SchedulerNode) -> bool:
        """Whether a node has a value for each element, of a nest that reduces."""
        if self.reduced is None:
            return False
        if node.is_reduction():
            return True
        return bool(V.graph.sizevars.simplify(group_of(node)[0] - self.kept) != 0)

    def _steps(self) -> dict[str, int]:
        """The step of each node: 2 s is loop s, 2 s + 1 what stands between it and the next."""
        steps: dict[str, int] = {}
        writers = {name: node for node in self.nodes for name in node.get_buffer_names()}
        for node in self.nodes:
            earliest = 0 if self._is_looped(node) or self.reduced is None else -1
            for dep in node.read_writes.reads:
                writer = writers.get(dep.name)
                if writer is None or writer is node:
                    continue
                known = steps[writer.get_name()]
                if writer.is_reduction() and not _is_scan(writer):
                    known += 1  # its result is known behind the loop
                if self._is_looped(node):
                    earliest = max(earliest, known if known % 2 == 0 else known + 1)
                else:
                    earliest = max(earliest, known if known % 2 or self.reduced is None else known + 1)
            steps[node.get_name()] = earliest
        # Nodes that precede the first loop have a step of their own.
        if self.reduced is not None:
            steps = {name: step + 2 for name, step in steps.items()}
        return steps

    def _step_text(self, step: int, nodes: Sequence[SchedulerNode]) -> list[str]:
        if not nodes:
            return []
        self.step, self.declared, self.joins, self.behind, self.guard = step, [], [], [], ""
        handler = self.handler
        if not self._is_loop(step):
            self.guard = "" if self.reduced is None else "if (is_first) "
            for node in nodes:
                self._run(node)
            handler.lines.statements, made = [], handler.lines.statements
            return made
        head = [_LOOP]
        if any(map(_is_scan, nodes)):
            self.guard = "if (is_inside) "
            head = [
                "for (index_t base = 0; base < reduced; base += lanes) {",
                "const bool is_inside = base + lane < reduced;",
                "const index_t r = is_inside ? base + lane : reduced - 1;",
            ]
        head += self._places(_R, self.domain.reduced_dimensions)
        with handler.scope() as lines:
            for node in nodes:
                self._run(node)
        return [*self.declared, *head, *lines.statements, "}", *self.joins, *self.behind]

    def _run(self, node: SchedulerNode) -> None:
        kept, reduced = node._body.sizes
        if self._is_looped(node) and not reduced:
            variables = self.domain.variables(kept)
            if variables is None:
                variables = self._variables(_K * self.reduced + _R, kept)
            run_body(self.handler, node._body, variables, ())
            return
        of_kept, of_reduced = self.domain.kept_variables(kept), self.domain.reduced_variables(reduced)
        of_kept = self._variables(_K, kept) if of_kept is None else of_kept
        of_reduced = self._variables(_R, reduced) if of_reduced is None else of_reduced
        run_body(self.handler, node._body, of_kept, of_reduced)

    def _places(self, number: sympy.Symbol, dimensions: Sequence[tuple[sympy.Symbol, sympy.Expr]]) -> list[str]:
        """Declarations of the finest dimensions, of what is numbered."""
        if len(dimensions) <= 1:
            return []
        lines = []
        for at, (symbol, size) in enumerate(dimensions):
            behind = sympy.prod([one for _, one in dimensions[at + 1 :]])
            whole = str(number) if behind == 1 else f"{number} / {_factor(behind)}"
            lines.append(f"const index_t {symbol} = {whole}{f' % {_factor(size)}' if at else ''};")
        return lines

    def _variables(self, number: sympy.Expr, sizes: Sequence[sympy.Expr]) -> list[sympy.Expr]:
        """The places along dimensions of what is numbered; each has a name where there are several."""
        if len(sizes) <= 1:
            return [number] * len(sizes)
        found: list[sympy.Expr] = []
        handler = self.handler
        for at, size in enumerate(sizes):
            if size == 1:
                found.append(sympy.Integer(0))
                continue
            behind = sympy.prod(sizes[at + 1 :])
            whole = cpp(number) if behind == 1 else f"{_factor(number)} / {_factor(behind)}"
            is_first = all(one == 1 for one in sizes[:at])
            text = whole if is_first else f"{whole if behind != 1 else _factor(number)} % {_factor(size)}"
            if number.has(_R):
                name = handler.named(f"index_t({text})", "i")
                self.along_rows.add(name)
            else:
                name = self.head.known.setdefault(text, f"own{len(self.head.known)}")
            symbol = sympy.Symbol(name, integer=True, nonnegative=True)
            handler.ranges[symbol] = ValueRanges(0, sympy.oo)
            found.append(symbol)
        return found

    def _without_unneeded(self, lines: Sequence[str]) -> list[str]:
        """The statements, without stores into buffers that nothing reads."""
        unread = self.written.keys() - self.needed - self.reread
        stores = re.compile(rf"(?:if \(\w+\) )?(?:{'|'.join(unread)})\[.*\] = .*;") if unread else None
        kept = [line for line in lines if stores is None or not stores.fullmatch(line)]
        for at in range(len(kept) - 1, -1, -1):  # names that nothing uses any more, latest first
            found = re.match(r"const [\w ]+ (\w+) = ", kept[at])
            if found and "threads::" not in kept[at] and not re.search(rf"\b{found[1]}\b", "\n".join(kept[at + 1 :])):
                del kept[at]
        return kept

    def _tensors(self, lines: Sequence[str]) -> tuple[Tensor, ...]:
        text = "\n".join(lines)
        names = [name for name in (*self.read, *self.written) if re.search(rf"\b{name}\[", text)]
        written = {name for name in self.written if re.search(rf"\b{name}\[[^\n]*\] = ", text)}
        return tuple(Tensor(name, self.kinds[name], name in written) for name in dict.fromkeys(names))

    def _neighbours_are_lanes(self) -> bool:
        """Whether more elements that are read and written have neighbours along the rows than across them."""
        if self.reduced is None:
            return False
        votes = 0
        for place in self.places:
            symbols = place.free_symbols & {_K, _R, *self.handler.ranges}
            elements = math.prod(hint(self.domain.ranges.get(one, self.reduced)) for one in symbols)
            for symbol in symbols:
                if coefficient(place, symbol) == 1:
                    votes += elements if str(symbol) in self.along_rows else -elements
        return votes > 0

    def _entries(self, lines: Sequence[str], tensors: Sequence[Tensor], along: bool, joins: int) -> str:
        """The entry point; of rows that several blocks may have, those of their parts and of what joins them too."""
        body = Lines(list(lines)).inlined()
        texts = [self._entry(self.name, body, tensors, along)]
        if joins:
            begin = body.index(_LOOP)
            end = body.index("}", begin)
            joined = [_JOIN.fullmatch(one) for one in body[end + 1 : end + 1 + joins]]
            names = [(one[1], one[2]) for one in joined if one is not None]
            kinds = {name: _kind_of(name, body) for name, _ in names}
            parts = [Tensor(f"memory_of_{name}", "unsigned char", is_written=True) for name, _ in names]
            typed = [
                f"{kinds[name]}* const parts_of_{name} = reinterpret_cast<{kinds[name]}*>(memory_of_{name});"
                for name, _ in names
            ]
            own = [
                *typed,
                "constexpr index_t each = (reduced + parts - 1) / parts;",
                "const index_t first = index_t(blockIdx.y) * each, last = smaller(first + each, reduced);",
                *body[:begin],
                "for (index_t r = first + lane; r < last; r += lanes) {",
                *body[begin + 1 : end + 1 + joins],
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
            texts.append(self._entry(f"{self.name}_part", own, [*tensors, *parts], along))
            texts.append(self._entry(f"{self.name}_join", together, [*tensors, *parts], along))
        return "\n".join(texts)

    def _entry(self, name: str, body: Sequence[str], tensors: Sequence[Tensor], along: bool) -> str:
        parameters = ", ".join(
            f"{one.kind}* {one.name}" if one.is_written else f"const {one.kind}* __restrict__ {one.name}"
            for one in tensors
        )
        kept = cpp(product_of(self.kept))
        if self.reduced is None:
            head = [
                f"constexpr index_t kept = {kept};",
                "const index_t k = index_t(blockIdx.x) * element_threads + threadIdx.x;",
                "if (k >= kept) {",
                "return;",
                "}",
            ]
            threads = "element_threads"
        else:
            parts = f", parts = {self.name}_parts" if name != self.name else ""
            head = [
                f"constexpr int rows = {self.name}_rows, lanes = {self.name}_lanes{parts};",
                f"using threads = Threads<rows, lanes, {str(along).lower()}>;",
                f"constexpr index_t kept = {kept}, reduced = {cpp(product_of(self.reduced))};",
                "const int lane = threads::lane();",
                "// A row behind the last one is that one again.",
                "const index_t own = index_t(blockIdx.x) * rows + threads::row(), k = own < kept ? own : kept - 1;",
                "const bool is_first = lane == 0 && own < kept;",
            ]
            threads = f"{self.name}_rows * {self.name}_lanes"
        if not any("is_first" in line for line in body):
            head = [line for line in head if "is_first" not in line]
        return (
            f'extern "C" __global__ void __launch_bounds__({threads})\n'
            f"    {name}({parameters}) {{\n{_indented(chr(10).join([*head, *body]))}\n}}\n"
        )

    def _joins(self, steps: Mapping[str, int]) -> int:
        """How many values are joined of the parts of rows that several blocks may have; 0 where a row has one."""
        loops = {step for step in steps.values() if self._is_loop(step)}
        is_simple = len(loops) == 1 and not any(map(_is_scan, self.nodes))
        if not is_simple or hint(self.kept) > _MOST_SPLIT or hint(self.reduced) < 2 * _LEAST_PART:
            return 0
        return len(self.reductions)


def _kind_of(name: str, lines: Sequence[str]) -> str:
    """The type that a value is declared with."""
    (found,) = [one for line in lines if (one := re.fullmatch(rf"(.+) {name} = .*;", line))]
    return found[1]


def _indented(text: str) -> str:
    depth, lines = 1, []
    for line in text.split("\n"):
        depth -= line.startswith("}")
        lines.append(_INDENT * depth + line)
        depth += line.endswith("{")
    return "\n".join(lines)


def _factor(expression: sympy.Expr) -> str:
    text = cpp(product_of(expression))
    return text if re.fullmatch(r"\w+", text) else f"({text})"


def _is_scan(node: SchedulerNode) -> bool:
    return isinstance(getattr(node.node, "data", None), ir.Scan)


def _dtype_of(name: str) -> torch.dtype:
    return V.graph.get_dtype(name)


def _operations(node: SchedulerNode) -> list[str]:
    found = []
    for origin in getattr(node.node, "origins", ()):
        target = origin.target
        found.append(getattr(getattr(target, "overloadpacket", target), "__name__", str(target)))
    return sorted(set(found))


def may_join(nest: Nest, other: Nest) -> bool:
    """Whether a nest may be computed together with an earlier one that reduces rows.

    There have to be many rows, where each of their elements is to be computed by the threads of its row.
    """
    reducing = [node for node in nest if node.is_reduction()]
    if not reducing or not _touched(nest) & _touched(other):
        return False
    kept, reduced = group_of(reducing[0])
    for node in other:
        own_kept, own_reduced = group_of(node)
        if node.is_reduction():
            fits = not simplified(own_kept - kept) and not simplified(own_reduced - reduced)
        else:
            is_each = not simplified(own_kept - kept * reduced)
            fits = not simplified(own_kept - kept) or (is_each and hint(kept) >= _LEAST_ROWS)
        if not fits:
            return False
    return True


def _touched(nest: Nest) -> set[str]:
    return {dep.name for node in nest for dep in (*node.read_writes.reads, *node.read_writes.writes)}


def nest_pass(
    name: str, nodes: Sequence[SchedulerNode], main: torch.dtype, needed: Set[str], kinds: Mapping[str, str]
) -> Pass:
    """Return the pass of a nest.

    Args:
        main: the type that the source calls `scalar_t`.
        needed: buffers that something else reads.
        kinds: of the elements of all buffers.

    Raises:
        UnloweredError: it has something that no text says.
    """
    if not nodes:
        raise UnloweredError("nothing")
    return NestWriter(name, nodes, main, needed, kinds).write()
