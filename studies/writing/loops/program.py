"""A lowered model as one CUDA source, and the Python that launches its passes one after another."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.virtualized import V
from torch.utils._sympy.value_ranges import bound_sympy

from tunebench.kernels.blocks.block import fast_math_line
from tunebench.studies.writing.loops.body import TEXTS, type_of
from tunebench.studies.writing.loops.domain import hint
from tunebench.studies.writing.loops.expressions import cpp, python, tidy
from tunebench.studies.writing.loops.in_place import in_their_place, reads, writes, written_in_place
from tunebench.studies.writing.loops.lower import Lowered, Nest, Product, UnloweredError
from tunebench.studies.writing.loops.nest import UnfusedError, may_join, nest_pass
from tunebench.studies.writing.loops.passes import Pass
from tunebench.tuner.space import CPP_WORDS

_WORDS = (
    "kept reduced rows lanes lane parts part each first last base is_first is_inside threads index_t limit"
    " item items trips common read write Pack rounded checked wrapped when require"
)
_TAKEN = {*_WORDS.split(" "), *(name.split("(")[0] for name in TEXTS.values()), *CPP_WORDS}
"""Names that mean something in an entry point."""
_NUMBERED = re.compile(r"[krt]\d*(_start)?|((of_)?all|at|own|buf|before|upto|pack|made)\d*")
"""Names that an entry point has of its own."""
_MOST_CONVOLUTIONS = 1
"""Upper limit of the convolutions that are a library's: of a network, `optimize` makes kernels of each."""
_SMALL = 8
"""A tensor is small of which that many times the elements are fewer than another's."""


@dataclass(frozen=True)
class Program:
    """Passes in order, and what stands around them.

    Attributes:
        counts: how many elements there are of whatever has places, in C++.
        sizes: of the arguments of `forward` that are constants of the binary: by name, the argument and its dimension.
        dimensions: of the arguments, how many.
        conditions: of the arguments, as Python expressions that are true where the passes serve.
        lines: of Python, that launch the passes and return the result.
        returns: the type of the result.
        results: Python that makes a tensor like each result, or that result where it is part of an argument.
        products: the sizes of the products between them, as arguments in Python.
        shape: of the only result, where each of its sizes is one of an argument's; empty of others.
    """

    passes: tuple[Pass, ...]
    counts: tuple[str, ...]
    sizes: Mapping[str, tuple[str, int]]
    dimensions: Mapping[str, int]
    conditions: tuple[str, ...]
    lines: tuple[str, ...]
    returns: str
    results: tuple[str, ...]
    products: tuple[str, ...] = ()
    shape: tuple[str, ...] = ()

    def renamed(self, prefix: str) -> Program:
        """Return the program with another prefix of its passes' names."""
        own = re.compile(r"\bpass(?=_\d+(_(rows|lanes|parts?|join))?\b)")
        passes = tuple(
            replace(one, name=own.sub(prefix, one.name), text=own.sub(prefix, one.text)) for one in self.passes
        )
        return replace(
            self, passes=passes, lines=tuple(re.sub(r'"pass(?=_\d)', f'"{prefix}', one) for one in self.lines)
        )


class ProgramWriter:
    """Writes a program; its entry points are named `pass_1` and so on."""

    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        self.names = self._symbols()
        self.texts = {**self.names, **self._replaced()}

    def write(self) -> Program:
        """Return the program.

        Raises:
            UnloweredError: it has something that no text says.
        """
        lowered = self.lowered
        with V.set_graph_handler(lowered.graph):
            results = [self._result(node) for node in lowered.results]
            main = self._main()
            changes = {path: self._result(node) for path, node in lowered.changes.items()}
            shaped = {name for name, _ in (*results, *changes.values())}
            for one in lowered.nests:
                if isinstance(one, Product):
                    shaped |= {one.name, *reads(one)}
            kinds = self._kinds(main, shaped)
            nests = self._joined(main, kinds, shaped)
            in_place = written_in_place(lowered, nests, kinds, changes, {name for name, _ in results})
            steps = [_step(nests, at, main, kinds, shaped) for at in range(len(nests))]
            steps = [in_their_place(one, in_place) if isinstance(one, Pass) else one for one in steps]
            passes = tuple(one for one in steps if isinstance(one, Pass))
            products = [one for one in steps if isinstance(one, Product)]
            if any(V.graph.get_dtype(one.name) != main for one in products):
                raise UnloweredError("a product of another type")
            if sum(not one.is_of_matrices for one in products) > _MOST_CONVOLUTIONS:
                raise UnloweredError("several convolutions")
            if not all(V.graph.get_buffer(one.name).get_layout().is_contiguous() for one in products):
                raise UnloweredError("a convolution of images that are channels-last")
            return Program(
                tuple(replace(one, text=self._in_cpp(one.text)) for one in passes),
                tuple(dict.fromkeys(self._counts(passes))),
                self._sizes(),
                {name: len(shape) for name, shape in lowered.shapes.items()},
                tuple(self._conditions()),
                (
                    *self._launches(steps, shaped),
                    *self._changes({path: one for path, one in changes.items() if one[0] not in in_place}),
                    f"return {lowered.form.format(*(text for _, text in results))}",
                ),
                "torch.Tensor" if lowered.form == "{0}" else "object",
                tuple(self._like_result(node, kinds) for node in lowered.results),
                tuple(dict.fromkeys(self._sizes_of_product(one) for one in products if one.is_of_matrices)),
                self._shape(),
            )

    def _joined(self, main: torch.dtype, kinds: Mapping[str, str], results: Set[str]) -> list[Nest | Product]:
        """Return Inductor's nests, where they have the same rows several as one; and products."""
        nests: list[Nest | Product] = []
        for nest in self.lowered.nests:
            try:
                _step([nest], 0, main, kinds, results)
                nests.append(nest)
            except UnfusedError:
                nests += [(node,) for node in nest] if not isinstance(nest, Product) else []
        at = 0
        while at < len(nests):
            first = nests[at]
            for other in range(at + 1, len(nests)):
                later, between = nests[other], set().union(*(writes(one) for one in nests[at + 1 : other]))
                if isinstance(first, Product) or isinstance(later, Product) or reads(later) & between:
                    continue
                if may_join(first, later):
                    joined = [*nests[:at], (*first, *later), *nests[at + 1 : other], *nests[other + 1 :]]
                    with contextlib.suppress(UnfusedError):
                        _step(joined, at, main, kinds, results)
                        nests = joined
                        break
            else:
                at += 1
        return nests

    def _symbols(self) -> dict[sympy.Symbol, str]:
        """Names for the sizes that are unknown: that of an argument, and its dimension."""
        names: dict[sympy.Symbol, str] = {}
        for argument, shape in self.lowered.shapes.items():
            for at, size in enumerate(shape):
                if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                    names.setdefault(size.node.expr, f"{argument}_{at}")
        return names

    def _replaced(self) -> dict[sympy.Symbol, str]:
        """Texts of sizes that torch has found to be made of others."""
        environment = self.lowered.graph.sizevars.shape_env
        found = {}
        for symbol in environment.replacements:
            size = environment.replace(symbol)
            if size.free_symbols <= self.names.keys() and not size.has(sympy.Function):
                found[symbol] = f"({self._named(cpp(size), self.names)})"
        return found

    @staticmethod
    def _named(text: str, names: Mapping[sympy.Symbol, str]) -> str:
        for symbol, name in names.items():
            text = re.sub(rf"\b{symbol}\b", name, text)
        return text

    def _main(self) -> torch.dtype:
        """The type that the source calls `scalar_t`: of the inputs, or else of what the model holds."""
        names = sorted(self.lowered.places, key=lambda name: not self.lowered.places[name].is_input)
        dtypes = [*map(V.graph.get_dtype, names), *(one.get_dtype() for one in self.lowered.results)]
        return next((one for one in dtypes if one.is_floating_point), torch.float32)

    def _kinds(self, main: torch.dtype, outside: Set[str]) -> dict[str, str]:
        """The types of the elements of all buffers in memory.

        What only passes read is of the type that is computed in, where it is small beside the largest tensor.
        """
        own = [name for nest in self.lowered.nests for name in writes(nest)]
        counts = {name: hint(V.graph.get_numel(name)) for name in [*self.lowered.places, *own]}
        kinds = {}
        for name, count in counts.items():
            kind = type_of(dtype := V.graph.get_dtype(name), main)
            if dtype == torch.float32 and main == torch.float64 and (name in outside or name not in own):
                raise UnloweredError("float32 beside float64")  # it is computed in float64
            if kind == "accumulator_t":
                is_small = name in own and name not in outside and count * _SMALL < max(counts.values())
                kind = "accumulator_t" if is_small or dtype != main else "scalar_t"
            kinds[name] = kind
        return kinds

    def _result(self, node: Any) -> tuple[str, str]:
        """The buffer that a result is in, and the result as Python."""
        while isinstance(node, ir.TensorBox | ir.StorageBox):
            node = node.data
        if isinstance(node, ir.ReinterpretView):
            layout = node.get_layout()
            name = node.get_name()
            size, stride = self._tuple(layout.size), self._tuple(layout.stride)
            value, offset = self._value(name), self._python(layout.offset)
            # A tensor need not begin where its memory does.
            begin = "" if offset == "0" else f", {value}.storage_offset() + {offset}"
            return name, f"torch.as_strided({value}, {size}, {stride}{begin})"
        if not isinstance(node, ir.Buffer):
            raise UnloweredError("a result that is no tensor of a pass")
        return node.get_name(), self._value(node.get_name())

    def _value(self, name: str) -> str:
        place = self.lowered.places.get(name)
        return name if place is None else place.text

    def _python(self, expression: Any) -> str:
        return self._renamed(python(tidy(expression)))

    def _renamed(self, text: str) -> str:
        """A text with the names of sizes for torch's symbols.

        Raises:
            UnloweredError: a size has none.
        """
        text = self._named(text, self.texts)
        if unknown := re.search(r"\b[su]\d+\b", text):
            raise UnloweredError(f"the size {unknown[0]}, which no argument has")
        return text

    def _in_cpp(self, text: str) -> str:
        """Rename as `_renamed` does, and give what the graph is given the problem's names too."""
        for name, place in self.lowered.places.items():
            own = re.sub(r"\W+", "_", place.text.removeprefix("self.")).strip("_")
            if own in _TAKEN or _NUMBERED.fullmatch(own):
                own += "_given"
            text = re.sub(rf"(?<![\w.]){name}\b", own, text)
        return self._renamed(text)

    def _tuple(self, sizes: Any) -> str:
        texts = [self._python(one) for one in sizes]
        return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"

    def _launches(self, steps: Sequence[Pass | Product], results: Set[str]) -> Iterator[str]:
        made: set[str] = set()
        for one in steps:
            if isinstance(one, Product):
                inputs = [self._result(given)[1] for given in one.inputs]
                inputs += [f"{name}={value!r}" for name, value in one.named.items()]
                if one.is_of_matrices:
                    yield f"{one.name} = loops.multiply(plan, {one.function}, {', '.join(inputs)})"
                else:  # images of one channel may be contiguous and channels-last, and then what is made of them is
                    yield f"{one.name} = {one.function}({', '.join(inputs)}).contiguous()"
                continue
            for tensor in one.tensors:
                if tensor.is_written and tensor.name not in made | self.lowered.places.keys():
                    made.add(tensor.name)
                    layout = V.graph.get_buffer(tensor.name).get_layout()
                    yield f"{tensor.name} = {self._allocated(layout, tensor.kind, tensor.name in results)}"
            values = ", ".join(self._value(tensor.name) for tensor in one.tensors)
            reduced = "" if one.reduced is None else f", {self._python(one.reduced)}"
            if one.innermost is not None and one.reduced is None:
                reduced += f", innermost={self._python(one.innermost)}"
            reduced += f", joins={one.joins}" if one.joins else ""
            places = self.lowered.places
            changed = [str(at) for at, tensor in enumerate(one.tensors) if tensor.is_written and tensor.name in places]
            reduced += f", changes=[{', '.join(changed)}]" if changed else ""
            yield f'loops.launch(plan, "{one.name}", [{values}], {self._python(one.kept)}{reduced})'

    def _sizes_of_product(self, one: Product) -> str:
        """The Python of `loops.ProductSizes`, as `loops.sizes_of_product` finds them."""
        x, weight = (factor.get_layout() for factor in one.inputs[-2:])
        rows, depth, features = *x.size[-2:], weight.size[-1]
        numbers = (sympy.prod(x.size[:-2]), rows, depth, features)
        in_columns = f"loops.InColumns({not _is_in_rows(x) and _is_in_columns(x)}, {not _is_in_columns(weight)})"
        if len(x.size) == 2 and _is_in_rows(x) and _is_in_columns(weight):
            in_columns = "None"
        return f"{', '.join(map(self._python, numbers))}, {in_columns}"

    def _shape(self) -> tuple[str, ...]:
        sizes = [self._python(size) for one in self.lowered.results for size in one.get_size()]
        is_one = len(self.lowered.results) == 1 and {*sizes} <= {*self.names.values()}
        return tuple(sizes) if is_one else ()

    def _like_result(self, node: Any, kinds: Mapping[str, str]) -> str:
        name, text = self._result(node)
        return text if name in self.lowered.places else self._allocated(node.get_layout(), kinds[name], True)

    def _allocated(self, layout: ir.Layout, of_elements: str, is_result: bool) -> str:
        """The Python that makes a tensor; one that only passes read has places and no shape."""
        like, kind = self._like, ""
        if of_elements == "accumulator_t":
            kind = ", dtype=loops.accumulator(plan)"
        elif of_elements != "scalar_t":
            kind = f", dtype={layout.dtype}"
        if not is_result:
            return f"{like}.new_empty({self._python(sympy.prod(layout.size))}{kind})"
        if layout.is_contiguous():
            return f"{like}.new_empty({self._tuple(layout.size)}{kind})"
        return f"{like}.new_empty_strided({self._tuple(layout.size)}, {self._tuple(layout.stride)}{kind})"

    @property
    def _like(self) -> str:
        """The tensor that others are made like: of a floating type, and on the device."""
        inputs = {name: place for name, place in self.lowered.places.items() if place.is_input}
        floating = [name for name in inputs if V.graph.get_dtype(name).is_floating_point]
        if not floating:
            floating = [name for name in self.lowered.places if V.graph.get_dtype(name).is_floating_point]
        if not floating:
            raise UnloweredError("no tensor of a floating type")
        return self._value(floating[0])

    def _changes(self, changes: Mapping[str, tuple[str, str]]) -> Iterator[str]:
        """Statements that change tensors of the module; what one of them becomes that another was is kept before."""
        moved = {name for name, place in self.lowered.places.items() if place.text in changes}
        texts = {path: text for path, (_, text) in changes.items()}
        for number, path in enumerate(path for path, (name, _) in changes.items() if name in moved):
            yield f"_old{number} = {texts[path]}.clone()"
            texts[path] = f"_old{number}"
        for path, text in texts.items():
            yield f"{path}.copy_({text})"

    def _sizes(self) -> dict[str, tuple[str, int]]:
        return {name: (name.rpartition("_")[0], int(name.rpartition("_")[2])) for name in self.names.values()}

    def _conditions(self) -> Iterator[str]:
        """Conditions that the arguments have to meet."""
        for argument, shape in self.lowered.shapes.items():
            for at, size in enumerate(shape):
                name = self._python(size.node.expr if isinstance(size, torch.SymInt) else size)
                if name != f"{argument}_{at}":
                    yield f"{argument}.shape[{at}] == {name}"
        environment = self.lowered.graph.sizevars.shape_env
        ranges = {symbol: environment.var_to_range[symbol] for symbol in self.names}
        for symbol, name in self.names.items():
            if ranges[symbol].lower > 0:
                yield f"{name} >= {ranges[symbol].lower}"
            if ranges[symbol].upper < sys.maxsize - 1:
                yield f"{name} <= {ranges[symbol].upper}"
        for guard in environment.guards:
            condition = tidy(guard.expr)
            is_of_sizes = condition.free_symbols <= self.names.keys()
            if is_of_sizes and bound_sympy(condition, ranges).lower != sympy.true:
                yield self._python(condition)

    def _counts(self, passes: Sequence[Pass]) -> Iterator[str]:
        """The numbers of elements of the tensors and of the nests, as far as these number their own."""
        counts = [V.graph.get_numel(tensor.name) for one in passes for tensor in one.tensors]
        for one in passes:
            counts.append(one.kept)
            if one.reduced is not None:
                counts.append(one.kept * one.reduced if one.is_numbered else one.reduced)
        for count in counts:
            yield self._renamed(cpp(tidy(count)))


def _is_in_rows(layout: ir.Layout) -> bool:
    return bool(layout.is_contiguous())


def _is_in_columns(layout: ir.Layout) -> bool:
    """Whether a layout's matrices are contiguous when they are transposed."""
    size, stride = ([*numbers[:-2], numbers[-1], numbers[-2]] for numbers in (layout.size, layout.stride))
    return bool(ir.FixedLayout(layout.device, layout.dtype, size, stride).is_contiguous())


def _step(
    nests: Sequence[Nest | Product], at: int, main: torch.dtype, kinds: Mapping[str, str], results: Set[str]
) -> Pass | Product:
    """The pass of a nest, which leaves in memory what results are in and other nests read; or a product."""
    nest = nests[at]
    if isinstance(nest, Product):
        return nest
    others = [one for place, one in enumerate(nests) if place != at]
    return nest_pass(f"pass_{at + 1}", nest, main, set(results).union(*map(reads, others)), kinds)


def source_of(programs: Sequence[Program], *, is_alone: bool = True) -> str:
    """Return the CUDA source of programs, in which each entry point is of one of them.

    Args:
        is_alone: whether nothing stands before it, which would know `fast_math`.
    """
    passes = [one for program in programs for one in program.passes]
    if not passes:
        return "// There are no passes: views need none, and products have sources of their own.\n"
    sizes = dict.fromkeys(f"{one} < limit" for program in programs for one in program.counts)
    texts = "\n".join(f"// {', '.join(one.does)}\n{one.text}" for one in passes)
    names = "\n".join(f"using functions::{name};" for one in passes for name in one.entries)
    head = fast_math_line([texts]) if is_alone else ""
    return f"""{head}#include "loops.cuh"

namespace functions {{

// Places fit 32 bits up to here, those of threads behind the last element too.
constexpr long long limit = (1ll << 31) - (1 << 20);
using index_t = Index<{" && ".join(sizes)}>::type;

{texts}
}}  // namespace functions

{names}
"""
