"""`torch.compile(model, backend="tunebench")`: Inductor, with tuned kernels for the regions where they are faster.

Inductor decomposes, lowers and fuses as always, and its scheduler asks the back end of a device for the code of each
fused node. Here it is asked through `_emit`: a node whose region has a kernel that was measured to be faster than
torch.compile's own code becomes a call of that kernel, and Inductor writes all others itself. Products of matrices are
regions with what is computed behind them (`products.py`). So guards, dynamic shapes, several graphs, CUDA graphs and
training are Inductor's own.

What is known of regions is part of the key of PyTorch's caches of compiled graphs: after a region was tuned, a graph
is compiled anew.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._inductor import config
from torch._inductor.codegen import common
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch.compiler import config as torch_config

from tunebench.studies.inductor.known import call_of, state_of_regions
from tunebench.studies.inductor.operators import written_if_faster
from tunebench.studies.inductor.region import NotRegionError, Region, region_of
from tunebench.studies.inductor.serve import Serve, ServeRegions
from tunebench.studies.inductor.verdicts import is_inductors, key_of

_log = logging.getLogger(__name__)

Emit = Callable[[Any, Callable[[Any], None], Any], None]
"""Writes the code of a node: given the back end of its device, Inductor's own way to write it, and the node."""


def tunebench(
    graph: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph, as a back end of Dynamo's.

    Args:
        mode, options: of `torch.compile`, as Inductor has them.
    """
    patches = {**modes_options(mode), **(options or {})}
    if is_inductors(key_of(graph, inputs, patches)):
        alone: Any = compile_fx(graph, inputs, config_patches=patches)
        return alone  # type: ignore[no-any-return]
    return compile_with(_emit, written_if_faster, state_of_regions(), graph, inputs, patches)


def modes_options(mode: str | None) -> dict[str, Any]:
    """Return Inductor's options of a mode of `torch.compile`."""
    return torch._inductor.list_mode_options(mode) if mode else {}


def compile_with(
    emit: Emit, serve: Serve, tag: str, graph: fx.GraphModule, inputs: Sequence[Any], patches: Mapping[str, Any]
) -> Callable[..., Any]:
    """Compile a graph by Inductor, whose nodes' code another function writes.

    Args:
        serve: decides about the regions of products and of attention; where the user has a pass of their own, Inductor
            has them.
        tag: is part of the key of PyTorch's caches.
    """

    @functools.wraps(compile_fx_inner)
    def inner(graph: fx.GraphModule, *arguments: Any, **named: Any) -> Any:
        """Compile a forward, or later its backward."""
        # Inductor decides by the convolutions that it sees, which those of regions are none of.
        last = GraphLowering.decide_layout_opt(graph, is_inference=named.get("is_inference", False))
        ours = ServeRegions(serve, tag, images_channels_last=last)
        own = {"post_grad_custom_pre_pass": config.post_grad_custom_pre_pass or ours}
        with _emitting(emit), torch_config.patch(cache_key_tag=tag), config.patch(own):  # type: ignore[attr-defined]
            return compile_fx_inner(graph, *arguments, **{"layout_opt": last, **named})

    with torch_config.patch(cache_key_tag=tag):  # type: ignore[attr-defined]
        compiled: Any = compile_fx(graph, inputs, inner_compile=inner, config_patches=dict(patches))
    return compiled  # type: ignore[no-any-return]


@contextmanager
def _emitting(emit: Emit) -> Iterator[None]:
    """Have a function write the code of nodes."""
    common.init_backend_registration()
    usual = dict(common.device_codegens)

    def made_by(make: Callable[[Any], Any], scheduler: Any) -> Any:
        backend = make(scheduler)
        backend.codegen_node = functools.partial(emit, backend, backend.codegen_node)
        return backend

    for kind in usual.keys() & {"cpu", "cuda"}:
        made = functools.partial(made_by, usual[kind].scheduling)
        common.device_codegens[kind] = dataclasses.replace(usual[kind], scheduling=made)
    try:
        yield
    finally:
        common.device_codegens.update(usual)


def _emit(backend: Any, own: Callable[[Any], None], node: Any) -> None:
    """Write a call of the region's kernel where that is known to be faster, and else Inductor's own code."""
    region = None if _writes_cpp() else region_or_none(node)
    call = None if region is None else call_of(region)
    if region is None or call is None:
        own(node)
        return
    backend.flush()  # what is in front of it, and not written yet
    wrapper: Any = V.graph.wrapper_code
    wrapper.add_import_once(f"from {call.__module__} import RegionCall")
    name = f"{region.name}_{wrapper.next_kernel_suffix()}"
    wrapper.header.writeline(f"{name} = {call!r}")
    V.graph.removed_buffers.update(region.inner)
    made = [one.buffer for one in region.outputs]
    wrapper.allocated.update(made)  # by the call
    wrapper.writeline(f"{', '.join(made)} = {name}({', '.join(one.as_read for one in region.inputs)})")
    for one in region.outputs:
        if not one.is_plain:
            wrapper.writeline(f"{one.buffer} = {one.as_made}")
    backend.scheduler.free_buffers()


def _writes_cpp() -> bool:
    """Whether the program is one in C++, which cannot call a kernel of tunebench."""
    return bool(V.graph.cpp_wrapper or V.graph.aot_mode or config.memory_planning)


def region_or_none(node: Any) -> Region | None:
    """Return the region that a node is; None where it is none, or Inductor is another than this code knows."""
    try:
        return region_of(node)
    except NotRegionError:
        return None
    except Exception:  # noqa: BLE001 - these are internals of PyTorch's, which may change: no program fails for that
        _log.debug("a node is left to Inductor", exc_info=True)
        return None
