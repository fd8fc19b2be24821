"""Remembers the graphs that are Inductor's alone, until something else is known of their regions.

They are those of a model that is slower with its regions, or has none that is faster. max-autotune decides by what it
measures, in every compilation anew: the code that it writes of the same graph for our back end may be slower by itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from tunebench.studies.inductor.known import regions_folder, state_of_regions
from tunebench.tuner.device import device_of
from tunebench.tuner.files import whole_file


def key_of(graph: fx.GraphModule, inputs: Sequence[Any], patches: Mapping[str, Any]) -> str:
    """Return a key of graphs that are compiled alike, for one kind of device, and with gradients or without."""
    given = dict(zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=True))
    used = dict.fromkeys(one for node in graph.graph.nodes for one in node.all_input_nodes if one in given)
    tensors = [one for one in map(given.__getitem__, used) if isinstance(one, torch.Tensor)]
    lie = [(*one.shape, *one.stride(), one.dtype, device_of(one.device).name) for one in tensors]
    graphs = [_without_names(one.graph) for one in graph.modules() if isinstance(one, fx.GraphModule)]
    text = repr((torch.__version__, graphs, str(lie), sorted(patches.items()), torch.is_grad_enabled()))
    return hashlib.sha256(text.encode()).hexdigest()


def _without_names(graph: fx.Graph) -> list[str]:
    """Return what a graph computes.

    Dynamo names and orders values by where it met them, which is elsewhere in a model that stands in another.
    """
    copied = fx.Graph()
    copied.output(copied.graph_copy(graph, {}))
    computed = [node for node in copied.nodes if node.op != "placeholder"]
    met = dict.fromkeys(one for node in computed for one in (*node.all_input_nodes, node))
    for place, one in enumerate(met):
        one.name = f"x{place}"
    return [str(node.format_node()) for node in computed]


def leave_to_inductor(keys: Collection[str], names: Collection[str]) -> None:
    """Have graphs compiled by Inductor alone from now on, while what is known of these regions stays as it is."""
    names = sorted(names)
    state = state_of_regions(*names)
    for key in keys:
        _file(key).parent.mkdir(parents=True, exist_ok=True)
        with whole_file(_file(key)) as file:
            file.write(json.dumps({"regions": names, "state": state}).encode())


def is_inductors(key: str) -> bool:
    """Whether a graph is one of those."""
    try:
        found = json.loads(_file(key).read_text(encoding="utf-8"))
        return bool(found["state"] == state_of_regions(*found["regions"]))
    except (OSError, ValueError, KeyError, TypeError):  # there is none, or none that was written to its end
        return False


def _file(key: str) -> Path:
    return regions_folder() / "inductor" / f"{key}.json"
