"""A loop nest as a pass: the statements of its entry points, its tunables, and how it is launched.

The elements that a nest keeps and those that it reduces are numbered by `k` and `r`. Each row, the elements of one `k`,
has some threads (`lanes`), and a block some rows. Where neighbours in memory are elements of a row, or of a nest that
reduces none, a thread has some of them at once (`items`) and reads and writes them as packs. Nodes whose values need
the result of a reduction are in a later loop over the row than that one; what is one value for each row is computed
between the loops.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

import sympy
import torch
from torch._inductor.scheduler import SchedulerNode
from torch._inductor.virtualized import V
from torch.utils._sympy.value_ranges import ValueRanges

from tunebench.studies.writing.loops.body import Handler, Lines, cast, in_front, made_from, run_body, type_of
from tunebench.studies.writing.loops.domain import Domain, hint, is_by_rows, simplified
from tunebench.studies.writing.loops.entry import LOOPS_END, Entry, K, R, Tensor, loop, start
from tunebench.studies.writing.loops.expressions import coefficient, cpp, grouped, has_neighbours, product_of, tidy
from tunebench.studies.writing.loops.lower import Nest, UnloweredError, group_of
from tunebench.studies.writing.loops.numbering import factor, in_order, in_turn
from tunebench.studies.writing.loops.passes import Pass, operations_of
from tunebench.studies.writing.loops.steps import Steps, is_scan
from tunebench.studies.writing.loops.threads import Rows


class UnfusedError(UnloweredError):
    """Nodes cannot be in one nest."""


class NestWriter:
    """Writes one nest.

    Args:
        main: the type that the source calls `scalar_t`.
        needed: buffers that something else reads.
        kinds: of the elements of all buffers.
        has_items: whether a thread has several neighbours at once.
        along: the dimension of elements along which they are neighbours; None for the innermost.
    """

    def __init__(
        self,
        name: str,
        nodes: Sequence[SchedulerNode],
        main: torch.dtype,
        needed: Set[str],
        kinds: Mapping[str, str],
        *,
        has_items: bool,
        along: sympy.Symbol | None = None,
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
        self.steps = Steps(nodes, self.kept, self.reduced)
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
        # How many tensors have neighbours along a dimension of elements: as packs of a thread, or across its elements.
        self.packable: dict[sympy.Symbol, int] = {}
        self.across: dict[sympy.Symbol, int] = {}
        self.along_rows = {str(R), *(str(one) for one, _ in self.domain.reduced_dimensions)}
        self.head = Lines()
        self.number = K if self.reduced is None else R
        dimensions = self.domain.kept_dimensions if self.reduced is None else self.domain.reduced_dimensions
        self.dimensions = sorted(dimensions, key=lambda one: one[0] == along)
        # The symbol of the dimension whose elements are neighbours, and its size.
        size = self.kept if self.reduced is None else self.reduced
        self.item = self.dimensions[-1] if self.dimensions else (self.number, size)
        self.handler.ranges[start(self.item[0])] = ValueRanges(0, sympy.oo)
        self.has_items = has_items
        self.packs: dict[str, str] = {}
        self.puts: list[str] = []
        self.scans: list[str] = []
        self.stores: dict[str, list[str]] = {}
        self.is_numbered, self.is_in_order = False, True

    # The handler calls the methods from here to `write`.

    def load(self, handler: Handler, name: str, index: sympy.Expr) -> str:
        """Return an element of a buffer, or what was stored there in this step."""
        index = self._tidy(index)
        if name in self.stored:
            step, place, value = self.stored[name]
            if sympy.expand(place - index) != 0:
                raise UnfusedError(f"'{name}' is read elsewhere than it is written")
            if step == self.step or not self.steps.is_loop(step):
                return value
            self.reread.add(name)  # what the same thread wrote in an earlier loop
        kind = type_of(_dtype_of(name), self.main)
        text = f"{name}[{self._place(index)}]"
        if name not in self.stored and (found := self._pack(name, index)):
            width, pointer, at = found
            pack = f"read<items, {width}>({pointer})"
            text = f"{self.packs.setdefault(pack, f'pack{len(self.packs)}')}.of[{at}]"
        self.read[name] = None
        self._vote(index)
        value = handler.named(f"accumulator_t({text})" if kind == "accumulator_t" else text)
        if self.kinds[name] == "scalar_t":
            handler.rounded.add(value)
        return value

    def _pack(self, name: str, index: sympy.Expr) -> tuple[str, str, str] | None:
        """A pack of the elements that a thread has, in C++; None where they cannot be read at once.

        That is how many are one access at most, a pointer to the first in memory, and the place of `item` behind it.
        """
        symbol, size = self.item
        if not self.has_items or not self._is_packable(index, symbol):
            return None
        is_forwards = coefficient(index, symbol) == 1
        first = start(symbol) if is_forwards else start(symbol) + sympy.Symbol("items", integer=True) - 1
        # A place is a multiple of what divides each of its terms.
        factors, variable = [size], {*self.handler.ranges, K, R}
        for term in sympy.Add.make_args(sympy.expand(index - symbol if is_forwards else index + symbol + 1)):
            own = [one for one in sympy.Mul.make_args(term) if not one.free_symbols & variable]
            factors.append(sympy.prod(own))
        texts = dict.fromkeys(cpp(product_of(one)) for one in factors if one != 0)
        place = self._place(index.subs(symbol, first))
        pointer = name if place == "0" else f"{name} + {place}"
        return f"common(items, {', '.join(texts)})", pointer, "item" if is_forwards else "items - 1 - item"

    def _is_packable(self, index: sympy.Expr, symbol: sympy.Symbol) -> bool:
        """Whether neighbours along a dimension can be read or written at once."""
        step = coefficient(index, symbol)
        if self.handler.lines is not self.scope or not self._is_of_items(self.step) or step not in (1, -1):
            return False
        rest = sympy.expand(index - step * symbol)
        named = (rest.free_symbols & {*self.handler.ranges}) - {*self.domain.ranges, K, R}
        if not named:
            return True
        # A row that a tensor names is the same for all of them where that tensor's element is.
        same, _ = in_front(self.scope.statements, {"item", str(symbol), str(self.number)})
        return all(any(statement.startswith(f"const auto {name} = ") for statement in same) for name in named)

    def _is_of_items(self, step: int) -> bool:
        return self.reduced is None or self.steps.is_loop(step)

    def _tidy(self, index: sympy.Expr) -> sympy.Expr:
        return tidy(V.graph.sizevars.simplify_with_ranges(sympy.expand(index), self.domain.ranges))

    def _vote(self, index: sympy.Expr) -> None:
        """Count what lies along the rows, of what a loop reads and writes; or along which dimensions of elements."""
        if self.steps.is_loop(self.step):
            self.places.append(index)
        elif self.reduced is None and self._elements(index) * 2 > hint(self.kept):
            is_across = not has_neighbours(index, self.item[0])
            for symbol in [one for one, _ in self.dimensions if has_neighbours(index, one)]:
                self.packable[symbol] = self.packable.get(symbol, 0) + self._is_packable(index, symbol)
                self.across[symbol] = self.across.get(symbol, 0) + is_across

    def _elements(self, index: sympy.Expr) -> int:
        """How many elements have places of their own."""
        symbols = index.free_symbols & {K, R, *self.handler.ranges}
        return math.prod(hint(self.domain.ranges.get(one, self.reduced or self.kept)) for one in symbols)

    def _place(self, index: sympy.Expr) -> str:
        symbols = [one for one in self.handler.ranges if one in index.free_symbols]
        return self.handler.place(grouped(index, symbols))

    def store(self, handler: Handler, name: str, index: sympy.Expr, value: str) -> None:
        """Store an element, or what is one for each row."""
        index = self._tidy(index)
        self._vote(index)
        if self.kinds[name] == "scalar_t" and self.steps.is_loop(self.step) and self._is_read_behind(name):
            value = handler.as_stored(value)  # what later loops read is what this one computes with
        self.stored[name] = (self.step, index, value)
        self.written[name] = None
        value = f"{cast(self.kinds[name])}({value})"
        if found := self._pack(name, index):
            width, pointer, at = found
            handler.count += 1
            pack = f"made{handler.count}"  # no other loop's: a store that nothing reads goes by its lines
            put = f"{self.guard}write<{width}>({pointer}, {pack});"
            self.puts += [f"Pack<{self.kinds[name]}, items> {pack};", put]
            text = f"{pack}.of[{at}] = {value};"
            self.stores.setdefault(name, []).extend([*self.puts[-2:], text])
        else:
            text = f"{self.guard}{name}[{self._place(index)}] = {value};"
            self.stores.setdefault(name, []).append(text)
        handler.lines.statements.append(text)

    def reduce(self, handler: Handler, kind: str, start: str, join: str, text: str, value: str) -> str:
        """Declare what a loop makes of all values, and have it joined behind the loop."""
        if (known := self.reductions.get((self.step, text, value))) is not None:
            return known
        handler.count += 1
        name = self.reductions[self.step, text, value] = f"all{handler.count}"
        self.declared.append(f"{kind} {name} = {start};")
        if join == "Spread" and self.has_items:
            self.puts += [f"accumulator_t of_{name}[items];", f"{self.guard}{name} = Spread::add({name}, of_{name});"]
            handler.lines.statements.append(f"of_{name}[item] = {value};")
        else:
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
        self.behind.append(f"if (is_first) {name}[{self._place(index)}] = {cast(self.kinds[name])}({value});")
        self.stores.setdefault(name, []).append(self.behind[-1])

    def scan(self, handler: Handler, kind: str, join: str, value: str) -> str:
        """Return what the elements of a row up to this one make."""
        handler.count += 1
        carry, name = f"before{handler.count}", f"upto{handler.count}"
        number, at = ("items", "item") if self.has_items else (1, 0)
        made = [*made_from(value, handler.lines.statements), f"{name}[{at}] = {cast(kind)}({value});"]
        self.declared.append(f"{kind} {carry} = 0;")
        self.scans += [
            f"{kind} {name}[{number}];",
            *(self._each(made) if self.has_items else ("{", *made, "}")),
            f"threads::scan({name}, {carry}, base == 0, {join});",
        ]
        return handler.named(f"{name}[{at}]")

    def write(self) -> Pass:
        """Return the pass."""
        texts = list[str]()
        for step in self.steps.all:
            texts += self._step_text(step, [node for node in self.nodes if self.steps.of(node) == step])
        own = [f"const index_t {name} = {text};" for text, name in self.head.known.items()]
        if self.reduced is None:
            texts = self._of_items([*own, *texts])
        else:
            texts = [*in_order(K, self.domain.kept_dimensions), *own, *texts]
        lines = self._without_unneeded(texts)
        tensors = self._tensors(lines)
        neighbours = self.neighbours_are_lanes()
        usual = self._rows(neighbours)
        rows, lanes = usual.threads() if usual else (256, 1)
        is_split = usual is not None and usual.may_be_split() and not any(map(is_scan, self.nodes))
        joins, innermost = len(self.reductions) if is_split else 0, self.item[1] if self.has_items else None
        entry = Entry(self.name, tensors, self.kept, self.reduced, innermost, neighbours)
        return Pass(
            self.name,
            entry.text(lines, joins),
            tensors,
            self.kept,
            self.reduced,
            rows,
            lanes,
            tuple(dict.fromkeys(name for node in self.nodes for name in operations_of(node))),
            joins,
            usual.parts(rows) if usual and joins else 1,
            innermost,
            self.is_numbered,
        )

    def _rows(self, along: bool) -> Rows | None:
        """The rows at the problem's sizes; None where nothing is reduced."""
        if self.reduced is None:
            return None
        has_window = len(self.domain.reduced_dimensions) > 1
        return Rows(hint(self.kept), hint(self.reduced), self.steps.loops, along, self.has_items, has_window)

    def _is_read_behind(self, name: str) -> bool:
        """Whether a later loop reads a buffer that this one writes."""
        readers = [node for node in self.nodes if any(dep.name == name for dep in node.read_writes.reads)]
        return any(self.steps.of(node) > self.step and self.steps.is_looped(node) for node in readers)

    def _step_text(self, step: int, nodes: Sequence[SchedulerNode]) -> list[str]:
        if not nodes:
            return []
        self.step, self.declared, self.joins, self.behind, self.guard = step, [], [], [], ""
        handler = self.handler
        self.scope = handler.lines
        if not self.steps.is_loop(step):
            self.guard = "" if self.reduced is None else "if (is_first) "
            for node in nodes:
                self._run(node)
            handler.lines.statements, made = [], handler.lines.statements
            return made
        has_scan = any(map(is_scan, nodes))
        self.guard = "if (is_inside) " if has_scan else ""
        self.packs, self.puts, self.scans = {}, [], []
        with handler.scope() as self.scope:
            for node in nodes:
                self._run(node)
        body = self._of_items(self.scope.statements)
        if has_scan:
            r, items, one = (start(R), " * items", "items") if self.has_items else (R, "", "1")
            head = [
                f"for (index_t base = 0; base < reduced; base += lanes{items}) {{",
                f"const bool is_inside = base + lane{items} < reduced;",
                f"const index_t {r} = is_inside ? base + lane{items} : reduced - {one};",
            ]
        else:
            head = [loop(has_items=self.has_items)]
        return [*self.declared, *head, *body, "}" if has_scan else LOOPS_END, *self.joins, *self.behind]

    def _of_items(self, statements: Sequence[str]) -> list[str]:
        """The statements for each of the elements that a thread has at once, with the places of these."""
        if not self.has_items:
            return [*in_order(self.number, self.dimensions), *self.scans, *statements]
        symbol, number = self.item[0], self.number
        dimensions = [*self.dimensions[:-1], *((start(one), size) for one, size in self.dimensions[-1:])]
        texts = "\n".join((*statements, *self.packs, *self.puts))
        self.is_in_order = len(dimensions) < 2 or re.search(rf"\b{number}(_start)?\b", texts) is not None
        across = None if self.is_in_order else _most(self.across, but=symbol)
        once, each = in_front(statements, {"item", str(symbol), str(number)})
        return [
            *(in_turn(start(number), dimensions, across) if across else in_order(start(number), dimensions)),
            *once,
            *(f"const auto {name} = {text};" for text, name in self.packs.items()),
            *self.puts[::2],
            *self.scans,
            *self._each(each),
            *self.puts[1::2],
        ]

    def _each(self, statements: Sequence[str]) -> list[str]:
        """Statements for each of the elements that a thread has at once."""
        places = [f"const index_t {one} = {start(one)} + item;" for one in dict.fromkeys((self.number, self.item[0]))]
        return ["#pragma unroll", "for (int item = 0; item < items; ++item) {", *places, *statements, "}"]

    def _run(self, node: SchedulerNode) -> None:
        kept, reduced = node._body.sizes
        if self.steps.is_looped(node) and not reduced:
            variables = self.domain.variables(kept)
            if variables is None:
                self.is_numbered = True
                variables = self._variables(K * self.reduced + R, kept)
            run_body(self.handler, node._body, self._in_its_order(node, variables), ())
            return
        of_kept, of_reduced = self.domain.kept_variables(kept), self.domain.reduced_variables(reduced)
        of_kept = self._variables(K, kept) if of_kept is None else of_kept
        of_reduced = self._variables(R, reduced) if of_reduced is None else of_reduced
        run_body(self.handler, node._body, of_kept, of_reduced)

    def _in_its_order(self, node: SchedulerNode, variables: Sequence[sympy.Expr]) -> Sequence[sympy.Expr]:
        """The variables of a node, each row backwards where it reads one so that this nest writes."""
        if self.reduced is not None and len(self.domain.reduced_dimensions) == 1:
            place_of = dict(zip(node._body.iter_vars, variables, strict=True))
            for name, (step, place, _) in self.stored.items():
                reads: list[Any] = node._body.get_all_read_expr(name)  # type: ignore[no-untyped-call]
                for read in reads if self.steps.is_loop(step) else ():
                    if sympy.expand(place - self._tidy(read.subs(place_of))) != 0:
                        return [one.subs(R, self.reduced - 1 - R) for one in variables]
        return variables

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
            whole = cpp(number) if behind == 1 else f"{factor(number)} / {factor(behind)}"
            is_first = all(one == 1 for one in sizes[:at])
            text = whole if is_first else f"{whole if behind != 1 else factor(number)} % {factor(size)}"
            if number.has(R):
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
        unneeded = {line for name in unread for line in self.stores[name]}
        kept = [line for line in lines if line not in unneeded]
        for at in range(len(kept) - 1, -1, -1):  # names that nothing uses any more, latest first
            found = re.match(r"const [\w ]+ (\w+) = ", kept[at])
            if found and not re.search(rf"\b{found[1]}\b", "\n".join(kept[at + 1 :])):
                del kept[at]
        return kept

    def _tensors(self, lines: Sequence[str]) -> tuple[Tensor, ...]:
        text = "\n".join(lines)
        names = [name for name in (*self.read, *self.written) if re.search(rf"\b{name}\b", text)]
        written = {name for name in self.written if any(line in lines for line in self.stores[name])}
        return tuple(Tensor(name, self.kinds[name], name in written) for name in dict.fromkeys(names))

    def better_along(self) -> sympy.Symbol | None:
        """Return a dimension along which more tensors are packs than along the innermost; None where there is none."""
        own = self.item[0]
        best = None if self.is_in_order else _most(self.packable, but=own)
        return best if best is not None and self.packable[best] > self.packable.get(own, 0) else None

    def neighbours_are_lanes(self) -> bool:
        """Whether more elements that are read and written have neighbours along the rows than across them."""
        if self.reduced is None:
            return False
        if hint(self.kept) == 1:
            return True  # across them is nothing
        votes = 0
        for place in self.places:
            elements = self._elements(place)
            for symbol in place.free_symbols & {K, R, *self.handler.ranges}:
                if has_neighbours(place, symbol):
                    votes += elements if str(symbol) in self.along_rows else -elements
        return votes > 0


def _most(counts: Mapping[sympy.Symbol, int], but: sympy.Symbol) -> sympy.Symbol | None:
    """The symbol that is counted most often, other than one of them; None where none is counted."""
    found = max((one for one in counts if one != but), key=counts.__getitem__, default=None)
    return found if found is not None and counts[found] else None


def _dtype_of(name: str) -> torch.dtype:
    return V.graph.get_dtype(name)


def may_join(nest: Nest, other: Nest) -> bool:
    """Whether a nest may be computed together with an earlier one that reduces rows, or with it makes single numbers.

    Where each of their elements is to be computed by the threads of its row, rows have to be many or short.
    """
    if all(group_of(node) == (1, 1) for node in (*nest, *other)):
        return True
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
            fits = not simplified(own_kept - kept) or (is_each and is_by_rows(kept, reduced))
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
    has_items = not any(node.is_reduction() for node in nodes)
    writer = NestWriter(name, nodes, main, needed, kinds, has_items=has_items)
    made = writer.write()
    along = writer.better_along() if has_items else None
    is_best = along is None if has_items else not writer.neighbours_are_lanes()
    return made if is_best else NestWriter(name, nodes, main, needed, kinds, has_items=True, along=along).write()
