"""A convolution and what follows it by cuDNN's graph API: halves in, halves or single precision out, in one kernel.

Needs the package `nvidia-cudnn-frontend`; the cuDNN it drives is the one that torch brings. Images are channels-last:
a graph that writes NCHW gets plans a hundred times as slow. The epilogue is always part of the graph: without one,
cuDNN has a single plan for halves to single precision, half as slow again, and none for odd numbers of channels.

A graph is built once for a device, its shapes and types and its plan. Building takes up to a second and
cannot be captured in a CUDA graph: call a model once before capturing it, as PyTorch asks of any. Running is a launch
on torch's current stream with a workspace from torch's allocator, and can be captured. The function's scalars go by
value with each call and are no part of the graph.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tunebench.kernels.shared.alignment import aligned
from tunebench.kernels.shared.graph_function import Step, add_to, numbers_of
from tunebench.kernels.shared.images import Geometry
from tunebench.tuner.errors import CaptureError, LaunchError

LISTS = ("ranked", "fallback")
"""cuDNN's lists of plans for a graph: what its heuristics rank for these sizes, and its engines as they are by default,
which were the faster ones on an H200."""
PLANS = 3
"""Number of plans of either list that are worth trying: those behind are of slower engines."""

_MOST_GRAPHS = 64

_IMAGE, _WEIGHT, _OUTPUT, _FIRST_OPERAND = 1, 2, 3, 4
"""The identifiers of a graph's tensors, for it and for those who bind memory to them."""


@functools.cache
def is_installed() -> bool:
    """Return whether `nvidia-cudnn-frontend` is installed; found without importing it."""
    found = importlib.util.find_spec("cudnn")
    return found is not None and found.origin is not None


@dataclass(frozen=True)
class Function:
    """The function that follows a convolution; `value` in its steps is the convolution with its bias.

    Attributes:
        channels: names of tensors with a value for each output channel.
        elements: of tensors like the output.
        scalars: of numbers.
    """

    steps: Step
    channels: tuple[str, ...]
    elements: tuple[str, ...]
    scalars: tuple[str, ...]


@dataclass(frozen=True)
class Convolution:
    """The convolution that a graph is built for.

    Attributes:
        device: CUDA device index.
        image: (samples, in_channels, height, width).
        filters: (out_channels, in_channels, kernel_height, kernel_width).
        geometry: of one group.
        stored: dtype of image and filters: float16 or bfloat16, or float32, which cuDNN may round to TF32.
        written: dtype of the output and of the function's tensors: the same, or float32.
        plans: which of cuDNN's lists of plans, of `LISTS`.
        plan: rank in that list, from 0.
    """

    device: int
    image: tuple[int, int, int, int]
    filters: tuple[int, int, int, int]
    geometry: Geometry
    function: Function
    stored: str
    written: str
    plans: str
    plan: int

    @property
    def scales(self) -> bool:
        """Whether the filters have been scaled into the range of halves, which comes undone before all else."""
        return self.stored != self.written

    @property
    def output(self) -> tuple[int, ...]:
        """(samples, out_channels, height', width')."""
        samples, _, height, width = self.image
        return samples, self.filters[0], *self.geometry.output(height, width)


@dataclass(frozen=True)
class Operands:
    """The arguments of a convolution's function, each in the order of its names.

    Attributes:
        factors: float32, of each output channel; there where the convolution `scales`, and None else.
        bias: of the layer; like `channels` in the output's type.
        elements: like the output, channels-last.
        scalars: no NaN.
    """

    factors: torch.Tensor | None
    bias: torch.Tensor
    channels: Sequence[torch.Tensor]
    elements: Sequence[torch.Tensor]
    scalars: Sequence[float]


def prepare(convolution: Convolution) -> None:
    """Build the graph of a convolution, where it is not built yet.

    Raises:
        LaunchError: cuDNN has no such plan, or cannot build it; or the package is missing.
    """
    with _running, torch.cuda.device(convolution.device):
        _graphs.get(convolution)


def convolve(convolution: Convolution, image: torch.Tensor, weight: torch.Tensor, operands: Operands) -> torch.Tensor:
    """Compute the convolution with its function, channels-last, on torch's current stream.

    A NaN comes out wherever torch's operations give one.

    Args:
        image, weight: dense and channels-last, of the convolution's shapes and types.

    Raises:
        CaptureError: a CUDA graph is being captured, and cuDNN's is not built yet.
        LaunchError: cuDNN has no such plan, cannot build it or refuses to run it; or the package is missing.
    """
    dtype = getattr(torch, convolution.written)
    output = torch.empty(convolution.output, dtype=dtype, device=image.device, memory_format=torch.channels_last)
    factors = () if operands.factors is None else (operands.factors,)
    read = map(_aligned, (*factors, operands.bias, *operands.channels, *operands.elements))
    numbers = map(_by_value, (*operands.scalars, *numbers_of(convolution.function.steps)))
    tensors = [_aligned(image), _aligned(weight), output, *read, *numbers]  # in the order of their names
    # One handle serves a device: cuDNN allows it to any thread, but to one at a time.
    with _running, torch.cuda.device(convolution.device):
        _graphs.get(convolution).execute(tensors)
    return output


def describe(convolution: Convolution, handle: object = None) -> tuple[Any, int]:
    """Return the graph as the package's own object, not yet built, and the number of its tensors."""
    import cudnn

    single = cudnn.data_type.FLOAT
    types = {"float32": single, "float16": cudnn.data_type.HALF, "bfloat16": cudnn.data_type.BFLOAT16}
    stored, written = types[convolution.stored], types[convolution.written]
    graph = cudnn.pygraph(io_data_type=stored, intermediate_data_type=single, compute_data_type=single, handle=handle)
    names = itertools.count(_FIRST_OPERAND)

    def tensor(name: int, shape: tuple[int, ...], data_type: object, *, by_value: bool = False) -> Any:
        strides = _channels_last(shape)
        return graph.tensor(list(shape), strides, data_type, is_pass_by_value=by_value, uid=name, name=f"tensor {name}")

    channels, one = (1, convolution.filters[0], 1, 1), (1, 1, 1, 1)
    image, weight = tensor(_IMAGE, convolution.image, stored), tensor(_WEIGHT, convolution.filters, stored)
    geometry, function = convolution.geometry, convolution.function
    before, behind = ([(each + more) // 2 for each in geometry.padding] for more in (0, 1))
    padding = {"padding": before} if before == behind else {"pre_padding": before, "post_padding": behind}
    value = graph.conv_fprop(image, weight, **padding, stride=list(geometry.stride), dilation=list(geometry.dilation))
    if convolution.scales:
        value = graph.mul(value, tensor(next(names), channels, single))
    known: dict[str | float, Any] = {"value": graph.add(value, tensor(next(names), channels, written))}
    known |= {name: tensor(next(names), channels, written) for name in function.channels}
    known |= {name: tensor(next(names), convolution.output, written) for name in function.elements}
    numbers: tuple[str | float, ...] = (*function.scalars, *numbers_of(function.steps))
    known |= {number: tensor(next(names), one, single, by_value=True) for number in numbers}
    values = add_to(graph, cudnn, function.steps, known)
    values.set_output(True).set_data_type(written).set_uid(_OUTPUT)
    values.set_dim(list(convolution.output)).set_stride(_channels_last(convolution.output))
    return graph, next(names) - 1


class _Graph:
    """A built graph, and the device's handle that it runs on; the device is the current one wherever it is used."""

    def __init__(self, convolution: Convolution) -> None:
        try:
            import cudnn
        except ImportError as error:
            raise LaunchError(f"cuDNN's graph API needs the package nvidia-cudnn-frontend: {error}") from error
        self._cudnn = cudnn
        # ValueError: a plan that is not deterministic.
        self._errors = (cudnn.cudnnGraphNotSupportedError, RuntimeError, ValueError)
        self._what = f"cuDNN's graph, {convolution.plans} plan {convolution.plan}"
        try:
            self._handle = _handle_of(convolution.device)
            self._graph, tensors = describe(convolution, self._handle)
            self._names = list(range(_IMAGE, _IMAGE + tensors))
            self._graph.build_operation_graph()
            ranked = convolution.plans == "ranked"
            self._graph.create_execution_plans([cudnn.heur_mode.A if ranked else cudnn.heur_mode.FALLBACK])
            self._graph.deselect_numeric_notes([cudnn.numerical_note.NONDETERMINISTIC])
            # The list may hold engines of the package besides cuDNN's own, which have a place in cuDNN's own list.
            own = [position for position, plan in enumerate(self._graph.plans) if plan.cpp_index is not None]
            if convolution.plan >= len(own):
                raise LaunchError(f"{self._what}: cuDNN has {len(own)} for this convolution here")
            self._graph.build_plan_at_index(own[convolution.plan])
            self._workspace_bytes = self._graph.get_workspace_size()
        except self._errors as error:
            raise LaunchError(f"{self._what}: {_first_line(error)}") from error

    def execute(self, tensors: list[torch.Tensor]) -> None:
        """Launch on torch's current stream, with the tensors in the order of their names."""
        workspace = torch.empty(self._workspace_bytes, dtype=torch.uint8, device="cuda")
        try:
            self._cudnn.set_stream(self._handle, torch.cuda.current_stream().cuda_stream)
            self._graph.execute(tensors, workspace, self._handle, tensor_uids=self._names)
        except self._errors as error:
            raise LaunchError(f"{self._what}: {_first_line(error)}") from error


class _Graphs:
    """The graphs used last. Those that a CUDA graph has captured stay: it runs their code at each replay."""

    def __init__(self) -> None:
        self._recent: OrderedDict[Convolution, _Graph] = OrderedDict()
        self._captured: dict[Convolution, _Graph] = {}

    def get(self, convolution: Convolution) -> _Graph:
        """Return the graph, built now where it is not here; its device is the current one."""
        capturing = torch.cuda.is_current_stream_capturing()
        graph = self._captured.get(convolution) or self._recent.get(convolution)
        if graph is None:
            if capturing:
                raise CaptureError("cuDNN's graph is not built yet: call the model once before capturing it")
            graph = _Graph(convolution)
        if capturing:
            self._captured[convolution] = graph
        self._recent[convolution] = graph
        self._recent.move_to_end(convolution)
        if len(self._recent) > _MOST_GRAPHS and not capturing:
            oldest = next(iter(self._recent))
            torch.cuda.synchronize(oldest.device)  # its code may still be running
            del self._recent[oldest]
        return graph


_running = threading.Lock()
_graphs = _Graphs()


@functools.cache
def _handle_of(device: int) -> Any:
    """Return cuDNN's handle for a device, made once."""
    import cudnn

    with torch.cuda.device(device):
        return cudnn.create_handle()


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as others may see it, without a gradient, at an address that plans may read in vectors."""
    return aligned(tensor.detach())


def _by_value(number: float) -> torch.Tensor:
    return torch.full((1, 1, 1, 1), number, dtype=torch.float32, device="cpu")


def _channels_last(shape: tuple[int, ...]) -> list[int]:
    _, channels, height, width = shape
    return [channels * height * width, 1, channels * width, channels]


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", maxsplit=1)[0] or type(error).__name__
