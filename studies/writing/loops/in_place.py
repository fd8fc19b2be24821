"""Nests read and write buffers; what a call makes of the module's statistics is written where these are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from torch._inductor.scheduler import SchedulerNode
from torch._inductor.virtualized import V

from tunebench.studies.writing.loops.lower import Lowered, Nest, Product, group_of
from tunebench.studies.writing.loops.passes import Pass


def written_in_place(
    lowered: Lowered,
    nests: Sequence[Nest | Product],
    kinds: Mapping[str, str],
    changes: Mapping[str, tuple[str, str]],
    results: Set[str],
) -> dict[str, str]:
    """Return the tensors of the module that a pass writes into, by the names of what it makes of them.

    Nothing else is to become what it becomes, or what it was, and nothing reads it but the node that makes it anew,
    each element in its place. Where all threads of a row compute what only its first one stores, no element of the row
    is made of it.

    Args:
        kinds: of the elements of all buffers.
        changes: the buffers of what tensors of the module become, and these as Python, by the tensors' paths.
        results: the buffers of what the model returns.
    """
    given = {place.text: name for name, place in lowered.places.items()}
    nodes = [node for nest in nests if not isinstance(nest, Product) for node in nest]
    others = set(results).union(*(reads(one) | writes(one) for one in nests if isinstance(one, Product)))
    found: dict[str, str] = {}
    for path, (name, text) in changes.items():
        old = given.get(path, "")
        needed = others.union(own for place, (own, _) in changes.items() if place != path)
        if not old or text != name or {name, old} & needed or kinds[name] != kinds[old]:
            continue
        layouts = [V.graph.get_buffer(name).get_layout(), V.graph.graph_inputs[old].get_layout()]
        is_alike = layouts[0].size == layouts[1].size and all(one.is_contiguous() for one in layouts)
        (writer,) = (node for node in nodes if name in node.get_buffer_names())
        readers = [node for node in nodes if old in reads((node,))]
        own = {dep.rename({name: old}) for dep in writer.read_writes.writes}
        is_alone = readers in ([], [writer]) and {d for d in writer.read_writes.reads if d.name == old} <= own
        if is_alike and is_alone and _is_written_once(name, writer, nests):
            found[name] = old
    return found


def in_their_place(one: Pass, places: Mapping[str, str]) -> Pass:
    """Return a pass that writes what tensors of the module become into these, by the names of the one and the other."""
    own = {tensor.name: places[tensor.name] for tensor in one.tensors if tensor.name in places}
    text = one.text
    for name, place in own.items():
        text = re.sub(rf"const [\w ]+\* __restrict__ {place}, ", "", text)
        text = re.sub(rf"\b{name}\b", place, text)
    kept = [tensor for tensor in one.tensors if tensor.name not in own.values()]
    return replace(one, text=text, tensors=tuple(replace(each, name=own.get(each.name, each.name)) for each in kept))


def reads(nest: Sequence[SchedulerNode] | Product) -> set[str]:
    """Return the names of the buffers that a nest or a product reads."""
    if isinstance(nest, Product):
        return {one.get_name() for one in nest.inputs}
    return {dep.name for node in nest for dep in node.read_writes.reads}


def writes(nest: Sequence[SchedulerNode] | Product) -> set[str]:
    """Return the names of the buffers that a nest or a product makes."""
    if isinstance(nest, Product):
        return {nest.name}
    return {name for node in nest for name in node.get_buffer_names()}


def _is_written_once(name: str, writer: SchedulerNode, nests: Sequence[Nest | Product]) -> bool:
    """Whether one thread alone computes each element of a buffer or needs it, once: behind the sums of its row."""
    nest = next(one for one in nests if not isinstance(one, Product) and writer in one)
    sums = [node for node in nest if node.is_reduction()]
    if not sums:
        return True
    is_behind = writer in sums or not reads((writer,)).isdisjoint(writes(sums))
    is_of_rows = group_of(writer)[0] == group_of(sums[0])[0]
    return is_behind and is_of_rows and name not in reads([node for node in nest if node is not writer])
