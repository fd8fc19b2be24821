"""The operator by which a compiled graph calls the kernel of a product's or a convolution's region.

It is defined for every device at once: what `torch.library.custom_op` puts around a function, such as autograd, which
no compiled graph needs any more, costs a call three times as long.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import torch
from torch import fx

from tunebench.studies.inductor.known import RegionCall, call_of, model_in
from tunebench.studies.inductor.region import Region, laid_out
from tunebench.studies.inductor.serve import AS_IN_GRAPH, Write

_NAME = "tunebench_inductor::region"
_library = torch.library.Library("tunebench_inductor", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(  # type: ignore[no-untyped-call]
    "region(str folder, str configuration, str accuracy, Tensor[] inputs, str images) -> Tensor", tags=AS_IN_GRAPH
)


@torch.library.impl(_NAME, "CompositeExplicitAutograd", lib=_library)
def region(folder: str, configuration: str, accuracy: str, inputs: list[torch.Tensor], images: str) -> torch.Tensor:
    """Run a region's kernel; images of torch's memory format with that name come of it, if any."""
    return laid_out(_call(folder, configuration, accuracy)(*inputs), images)


@torch.library.register_fake(_NAME, lib=_library)  # type: ignore[untyped-decorator]
def _(folder: str, _configuration: str, _accuracy: str, inputs: list[torch.Tensor], images: str) -> torch.Tensor:
    return laid_out(model_in(Path(folder))().reference_forward(*inputs), images)


@cache
def _call(folder: str, configuration: str, accuracy: str) -> RegionCall:
    return RegionCall(folder, json.loads(configuration), accuracy)


def written_if_faster(known: Region) -> Write | None:
    """Return how a region's call is written that has a kernel which results say is faster; None for another."""
    call = call_of(known)
    if call is None:
        return None
    text = json.dumps(dict(call.configuration))

    def write(graph: fx.Graph, inputs: list[fx.Node]) -> fx.Node:
        given = (call.folder, text, call.accuracy, inputs, known.outputs[0].images)
        return graph.call_function(torch.ops.tunebench_inductor.region.default, given)

    return write
