"""A convolution and what follows it by cuDNN's graph API: halves in, halves or single precision out, in one kernel.

Needs the package `nvidia-cudnn-frontend`; the cuDNN it drives is the one that torch brings. Images are channels-last:
a graph that writes NCHW gets plans a hundred times as slow. The epilogue is always part of the graph: without one,
cuDNN has a single plan for halves to single precision, half as slow again, and none for odd numbers of channels.

A graph is built once for a device, its shapes and types and its plan. Building takes up to a second and
cannot be captured in a CUDA graph: call a model once before capturing it, as PyTorch asks of any. Running is a launch
on torch's current stream with a workspace from torch's allocator, and can be captured. The epilogue's constants go by
value with each call and are no part of the graph.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch

from tunebench.tuner.errors import CaptureError, LaunchError

LISTS = ("ranked", "fallback")
"""cuDNN's lists of plans for a graph: what its heuristics rank for these sizes, and its engines as they are by default,
which were the faster ones on an H200."""
PLANS = 3
"""As many of either list are worth trying: those behind are of slower engines."""

_MOST_GRAPHS = 64
_ALIGNMENT_BYTES = 16

# What a graph's tensors are called, by it and by those who bind memory to them.
_IMAGE, _WEIGHT, _OUTPUT, _CONV_BIAS, _CONSTANT, _BIAS, _FACTOR, _FACTORS = range(1, 9)


@functools.cache
def is_installed() -> bool:
    """Whether `nvidia-cudnn-frontend` is here; asked without importing it."""
    found = importlib.util.find_spec("cudnn")
    return found is not None and found.origin is not None


@dataclass(frozen=True)
class Convolution:
    """What a graph is built for.

    Attributes:
        device: CUDA device index.
        image: (samples, in_channels, height, width).
        filters: (out_channels, in_channels, kernel_height, kernel_width).
        stored: dtype of image and filters: float16 or bfloat16, or float32, which cuDNN may round to TF32.
        written: dtype of the output and of the epilogue's biases: the same, or float32.
        plans: which of cuDNN's lists of plans, of `LISTS`.
        plan: rank in that list, from 0.
    """

    device: int
    image: tuple[int, int, int, int]
    filters: tuple[int, int, int, int]
    stored: str
    written: str
    plans: str
    plan: int

    @property
    def scales(self) -> bool:
        """Whether the filters have been scaled into the range of halves, which the epilogue undoes."""
        return self.stored != self.written

    @property
    def output(self) -> tuple[int, int, int, int]:
        """(samples, out_channels, height', width')."""
        samples, _, height, width = self.image
        out_channels, _, kernel_height, kernel_width = self.filters
        return samples, out_channels, height - kernel_height + 1, width - kernel_width + 1


@dataclass(frozen=True)
class Epilogue:
    """What follows the convolution: (min(conv · factors + conv_bias, constant) + bias) · factor.

    Attributes:
        factors: float32, of each output channel; there where the convolution `scales`, and None else.
        conv_bias, bias: of each output channel, in the output's type.
    """

    factors: torch.Tensor | None
    conv_bias: torch.Tensor
    bias: torch.Tensor
    constant: float
    factor: float


def prepare(convolution: Convolution) -> None:
    """Build the graph of a convolution, where it is not built yet.

    Raises:
        LaunchError: cuDNN has no such plan, or cannot build it; or the package is missing.
    """
    with _running, torch.cuda.device(convolution.device):
        _graphs.get(convolution)


def convolve(convolution: Convolution, image: torch.Tensor, weight: torch.Tensor, epilogue: Epilogue) -> torch.Tensor:
    """The convolution with its epilogue, channels-last, on torch's current stream.

    A NaN comes out wherever torch's operations give one.

    Args:
        image, weight: dense and channels-last, of the convolution's shapes and types.

    Raises:
        CaptureError: a CUDA graph is being captured, and cuDNN's is not built yet.
        LaunchError: cuDNN has no such plan, cannot build it or refuses to run it; or the package is missing.
    """
    # The graph takes values that are not above the constant, and none is above NaN.
    factor = math.nan if math.isnan(epilogue.constant) else epilogue.factor
    dtype = getattr(torch, convolution.written)
    output = torch.empty(convolution.output, dtype=dtype, device=image.device, memory_format=torch.channels_last)
    # In the order of their names.
    tensors = [_aligned(image), _aligned(weight), output, _aligned(epilogue.conv_bias), _by_value(epilogue.constant)]
    tensors += [_aligned(epilogue.bias), _by_value(factor)]
    if epilogue.factors is not None:
        tensors.append(_aligned(epilogue.factors))
    # One handle serves a device: cuDNN allows it to any thread, but to one at a time.
    with _running, torch.cuda.device(convolution.device):
        _graphs.get(convolution).execute(tensors)
    return output


def describe(convolution: Convolution, handle: object = None) -> Any:
    """The graph as the package's own object, not yet built."""
    import cudnn

    single = cudnn.data_type.FLOAT
    types = {"float32": single, "float16": cudnn.data_type.HALF, "bfloat16": cudnn.data_type.BFLOAT16}
    stored, written = types[convolution.stored], types[convolution.written]
    graph = cudnn.pygraph(io_data_type=stored, intermediate_data_type=single, compute_data_type=single, handle=handle)

    def tensor(name: int, shape: tuple[int, ...], data_type: object, *, by_value: bool = False) -> Any:
        strides = _channels_last(shape)
        return graph.tensor(list(shape), strides, data_type, is_pass_by_value=by_value, uid=name, name=f"tensor {name}")

    channels, one = (1, convolution.filters[0], 1, 1), (1, 1, 1, 1)
    image, weight = tensor(_IMAGE, convolution.image, stored), tensor(_WEIGHT, convolution.filters, stored)
    values = graph.conv_fprop(image, weight, padding=[0, 0], stride=[1, 1], dilation=[1, 1])
    if convolution.scales:
        values = graph.mul(values, tensor(_FACTORS, channels, single))
    values = graph.add(values, tensor(_CONV_BIAS, channels, written))
    # Not graph.min, which takes the constant where a value is NaN.
    constant = tensor(_CONSTANT, one, single, by_value=True)
    above = graph.cmp_gt(values, constant).set_data_type(cudnn.data_type.BOOLEAN)
    values = graph.binary_select(constant, values, above)
    values = graph.add(values, tensor(_BIAS, channels, written))
    values = graph.mul(values, tensor(_FACTOR, one, single, by_value=True))
    values.set_output(True).set_data_type(written).set_uid(_OUTPUT)
    values.set_dim(list(convolution.output)).set_stride(_channels_last(convolution.output))
    return graph


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
        self._names = list(range(_IMAGE, _FACTORS + convolution.scales))
        try:
            self._handle = _handle_of(convolution.device)
            self._graph = describe(convolution, self._handle)
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
        """The graph, built now where it is not here; its device is the current one."""
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
    """cuDNN's handle for a device, made once."""
    import cudnn

    with torch.cuda.device(device):
        return cudnn.create_handle()


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as others may see it, without a gradient, at an address that plans may read in vectors."""
    tensor = tensor.detach()
    return tensor if tensor.data_ptr() % _ALIGNMENT_BYTES == 0 else tensor.clone()


def _by_value(number: float) -> torch.Tensor:
    return torch.full((1, 1, 1, 1), number, dtype=torch.float32, device="cpu")


def _channels_last(shape: tuple[int, ...]) -> list[int]:
    _, channels, height, width = shape
    return [channels * height * width, 1, channels * width, channels]


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", maxsplit=1)[0] or type(error).__name__
