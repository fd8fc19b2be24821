"""Finds the regions of a model, and measures them while the model runs by Inductor's own code."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch._inductor.virtualized import V
from torch.utils._pytree import tree_leaves

from tunebench.studies.inductor.backend import compile_with, modes_options, region_or_none
from tunebench.studies.inductor.known import is_lost
from tunebench.studies.inductor.region import Region, laid_out
from tunebench.studies.inductor.serve import AS_IN_GRAPH, Write
from tunebench.tuner.timing.torch_compile import apart, use_torchs_assembler, without_reports

_FORWARDS = 3
_HELD_CYCLES = 100_000_000
"""Cycles that a GPU waits before a timed forward, so that the host has queued its kernels by then."""


@dataclass
class RegionInModel:
    """A region of a model.

    Attributes:
        ranges: of its inputs' values.
        calls: in a run of the model.
        seconds: that all of these take by Inductor's own code.
        share: of the model's time.
    """

    region: Region
    ranges: tuple[tuple[float, float], ...]
    calls: int = 0
    seconds: float = 0.0
    share: float = 0.0


class Probe:
    """Measures the regions of a model that runs by Inductor's own code; compiled graphs call it around each region."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self.ranges: dict[int, tuple[tuple[float, float], ...]] = {}
        self._marks: list[tuple[int, Any]] = []
        self._compiled: dict[Hashable, Callable[..., torch.Tensor]] = {}

    def begin(self, number: int, *tensors: torch.Tensor) -> None:
        """Note the ranges of a region's inputs in its first call, and the time."""
        if number not in self.ranges:
            self.ranges[number] = tuple(map(_range_of, tensors))
        self._mark(number)

    def end(self, number: int) -> None:
        """Note the time."""
        self._mark(number)

    def run(self, number: int, inputs: list[torch.Tensor]) -> torch.Tensor:
        """Run a region of a product by Inductor's own code, and note the times.

        It is the code of the default mode: max-autotune's search would build dozens of kernels for each region, and
        which regions take longest can be told without it. A region's study has that search in its comparison.
        """
        region = self.regions[number]
        if region.key not in self._compiled:
            names: dict[str, Any] = {}
            exec(region.text, names)
            self._compiled[region.key] = torch.compile(names["Model"](), dynamic=False)
            self._compiled[region.key](*inputs)
        self.begin(number, *inputs)
        (output,) = region.outputs
        result = laid_out(self._compiled[region.key](*inputs), output.images)
        self.end(number)
        return result if output.images else result.contiguous()  # Inductor's own may have gaps behind its rows

    def _mark(self, number: int) -> None:
        self._marks.append((number, _now(self.regions[number].device)))

    def seconds_of(self, run: Callable[[], object]) -> list[tuple[int, float]]:
        """Return the calls of regions in a run, in order, and what each took."""
        self._marks.clear()
        for region in self.regions[:1]:
            _hold(region.device)
        run()
        marks, self._marks = self._marks, []
        return [
            (number, _between(one, other)) for (number, one), (_, other) in zip(marks[::2], marks[1::2], strict=True)
        ]


_probe = Probe()
"""The one that is at work; compiled graphs find it by this name."""


def probe() -> Probe:
    """Return the probe that is at work."""
    return _probe


def _hold(device: torch.device) -> None:
    """Have a GPU wait while the host queues what comes next."""
    if device.type == "cuda":
        torch.cuda._sleep(_HELD_CYCLES)  # type: ignore[no-untyped-call]


def _now(device: torch.device) -> Any:
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _between(one: Any, other: Any) -> float:
    """Return the seconds from one moment of `_now` to another."""
    if isinstance(one, float):
        return float(other - one)
    other.synchronize()
    return float(one.elapsed_time(other)) / 1000


def _range_of(tensor: torch.Tensor) -> tuple[float, float]:
    if tensor.numel() == 0:
        return 0.0, 0.0
    low, high = tensor.aminmax() if tensor.dtype is not torch.bool else (torch.tensor(0), torch.tensor(1))
    return float(low), float(high)


def _emit_probed(backend: Any, own: Callable[[Any], None], node: Any) -> None:
    """Write Inductor's own code of a node, between two calls of the probe where it is a region."""
    region = region_or_none(node)
    if region is None:
        own(node)
        return
    number = len(_probe.regions)
    _probe.regions.append(region)
    wrapper: Any = V.graph.wrapper_code
    wrapper.add_import_once(f"from {__name__} import probe")
    backend.flush()
    wrapper.writeline(f"probe().begin({', '.join([str(number), *(one.buffer for one in region.inputs)])})")
    own(node)
    backend.flush()
    wrapper.writeline(f"probe().end({number})")


@torch.library.custom_op("tunebench_inductor::probed_region", mutates_args=(), tags=AS_IN_GRAPH)
def probed_region(number: int, inputs: list[torch.Tensor]) -> torch.Tensor:
    """Run a region by Inductor's own code while the probe watches."""
    return _probe.run(number, inputs)


@probed_region.register_fake
def _(number: int, inputs: list[torch.Tensor]) -> torch.Tensor:
    (output,) = _probe.regions[number].outputs
    return torch.empty_like(output.on_meta, device=inputs[0].device)


def _written_probed(region: Region) -> Write | None:
    """Return how the call of a product's region is written that is measured; None of one that is known to lose."""
    if is_lost(region):
        return None
    _probe.regions.append(region)
    number = len(_probe.regions) - 1
    return lambda graph, inputs: graph.call_function(probed_region._opoverload, (number, inputs))


def find_regions(model: Callable[..., Any], inputs: Sequence[Any], mode: str | None = None) -> list[RegionInModel]:
    """Return a model's regions, those that are equal at equal sizes once; the ones that take most of its time first.

    A product that is known to be faster by Inductor's own code is none, so that what is computed behind it is one.

    Args:
        mode: of `torch.compile`, which decides what is fused; without its CUDA graphs, in which nothing can be probed.
    """
    global _probe  # noqa: PLW0603 - compiled graphs find it by its name
    use_torchs_assembler()
    # Coordinate descent changes no region and little of its share, and takes most of the time of a compilation.
    without = dict.fromkeys(("coordinate_descent_tuning", "triton.cudagraphs", "fx_graph_cache"), False)
    patches = {**modes_options(mode), **without}
    _probe = Probe()

    def backend(graph: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        return compile_with(_emit_probed, _written_probed, "probe", graph, given, patches)

    compiled = torch.compile(apart(model), backend=backend)
    run = functools.partial(run_model, compiled, inputs)
    with without_reports():
        run()
    calls = min((_probe.seconds_of(run) for _ in range(_FORWARDS)), key=lambda one: sum(took for _, took in one))
    whole = min(_whole(run) for _ in range(_FORWARDS))
    found: dict[Hashable, RegionInModel] = {}
    for number, took in calls:
        region = _probe.regions[number]
        report = found.setdefault(region.key, RegionInModel(region, _probe.ranges[number]))
        report.calls += 1
        report.seconds += took
        report.share += took / max(whole, took)
    return sorted(found.values(), key=lambda report: -report.seconds)


def run_model(model: Callable[..., Any], inputs: Sequence[Any]) -> None:
    """Call a model, and take the gradients of its parameters where they are wanted."""
    output = model(*inputs)
    leaves = tree_leaves(output)
    wanted = [one.sum() for one in leaves if isinstance(one, torch.Tensor) and one.requires_grad]
    module = getattr(model, "_orig_mod", model)
    parameters = [one for one in module.parameters() if one.requires_grad] if isinstance(module, nn.Module) else []
    if wanted and parameters:
        torch.autograd.grad(wanted, parameters, allow_unused=True)


def _whole(run: Callable[[], object]) -> float:
    """Return the seconds of a run, without the host's where the device is a GPU."""
    device = _probe.regions[0].device if _probe.regions else torch.device("cpu")
    _hold(device)
    began = _now(device)
    run()
    return _between(began, _now(device))
