"""Remembers the graphs that are faster by Inductor's own code alone, until there are other results of their regions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx

from tunebench.studies.inductor.known import regions_folder, state_of_regions
from tunebench.tuner.device import device_of
from tunebench.tuner.files import whole_file


@dataclass
class CompiledGraph:
    """A graph that the back end has compiled.

    Attributes:
        key: see `key_of`.
        regions: the names of those whose kernels its code calls.
    """

    key: str
    regions: set[str] = field(default_factory=set)


_watching: list[list[CompiledGraph]] = []


@contextmanager
def compiled_graphs() -> Iterator[list[CompiledGraph]]:
    """Give the graphs that are compiled meanwhile."""
    graphs: list[CompiledGraph] = []
    _watching.append(graphs)
    try:
        yield graphs
    finally:
        _watching.remove(graphs)


def note(graph: CompiledGraph) -> None:
    """Tell who is watching of a graph."""
    for graphs in _watching:
        graphs.append(graph)


def key_of(graph: fx.GraphModule, inputs: Sequence[Any], patches: Mapping[str, Any]) -> str:
    """Return a key of graphs that are compiled alike, for one kind of device, and with gradients or without."""
    tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
    given = [(*one.shape, *one.stride(), one.dtype, device_of(one.device).name) for one in tensors]
    text = repr((torch.__version__, graph.code, str(given), sorted(patches.items()), torch.is_grad_enabled()))
    return hashlib.sha256(text.encode()).hexdigest()


def remember_slower(graphs: Collection[CompiledGraph]) -> None:
    """Have graphs compiled by Inductor alone from now on, while what is known of their regions stays as it is."""
    for graph in graphs:
        if graph.regions:
            names = sorted(graph.regions)
            _file(graph.key).parent.mkdir(exist_ok=True)
            with whole_file(_file(graph.key)) as file:
                file.write(json.dumps({"regions": names, "state": state_of_regions(*names)}).encode())


def is_slower(key: str) -> bool:
    """Whether a graph is one of those."""
    try:
        found = json.loads(_file(key).read_text(encoding="utf-8"))
        return bool(found["state"] == state_of_regions(*found["regions"]))
    except (OSError, ValueError, KeyError, TypeError):  # there is none, or none that was written to its end
        return False


def _file(key: str) -> Path:
    return regions_folder() / "slower" / f"{key}.json"
