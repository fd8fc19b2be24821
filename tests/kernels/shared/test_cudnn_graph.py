"""What can be known of cuDNN's graphs without a GPU: what they are made of, and where they are no choice."""

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tunebench.kernels.conv_min_add_mul.model import ModelNew
from tunebench.kernels.runtime.selection import choose_shipped, shipped_offers
from tunebench.kernels.runtime.shipped import ShippedFile, ShippedResult
from tunebench.kernels.shared import cudnn_graph
from tunebench.kernels.shared.cudnn_graph import Convolution, Function
from tunebench.kernels.shared.images import geometry_of_axes
from tunebench.studies.checking.doctor import examine
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device, DeviceKind, find_device
from tunebench.tuner.problem import Problem
from tunebench.tuner.space import ValidSpace

SPACE = ModelNew.kernel.space
HOPPER = Device(DeviceKind.CUDA, 0, "a Hopper card", "sm_90", "GPU-0", 132, 141 << 30, 60 << 20)
AXES = {
    "batch": 2,
    "in_channels": 8,
    "height": 9,
    "width": 10,
    "out_channels": 16,
    "kernel_height": 3,
    "kernel_width": 3,
}
GRAPHS = {"graph_fp16", "graph_tf32"}


def problem_of(given: str = "nchw", output: str = "nchw", precision: str = "tf32") -> Problem:
    return Problem(AXES, "float32", {"input": given, "output": output, "precision": precision})


def graphs_of(space: ValidSpace) -> list[Configuration]:
    return [member for member in space if member["convolution"] in GRAPHS]


@pytest.fixture
def installed() -> None:
    pytest.importorskip("cudnn", reason="needs nvidia-cudnn-frontend")


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """As on a machine without the package: a folder that has it is looked into by links to all else in it."""

    def without(number: int, folder: str) -> str:
        if not (Path(folder) / "cudnn").exists():
            return folder
        others = tmp_path / f"packages{number}"
        others.mkdir()
        for entry in Path(folder).iterdir():
            if entry.name != "cudnn":
                (others / entry.name).symlink_to(entry)
        return str(others)

    monkeypatch.setattr(sys, "path", [without(number, folder) for number, folder in enumerate(sys.path)])
    monkeypatch.delitem(sys.modules, "cudnn", raising=False)
    cudnn_graph.is_installed.cache_clear()
    yield
    cudnn_graph.is_installed.cache_clear()


@pytest.mark.usefixtures("installed")
def test_graphs_are_a_choice_for_a_gpu_in_less_precision() -> None:
    assert cudnn_graph.is_installed()
    for given in ("nchw", "channels_last"):
        found = graphs_of(SPACE.enumerate(problem_of(given, "channels_last"), HOPPER))
        assert {member["convolution"] for member in found} == GRAPHS
        assert {member["convolution_layout"] for member in found} == {"channels_last"}
        plans = {(member["graph_list"], member["graph_plan"]) for member in found}
        assert plans == set(itertools.product(cudnn_graph.LISTS, range(cudnn_graph.PLANS)))
        # The graph does everything: no pass of ours behind it is to be tuned.
        assert not any(name.startswith("output_") or name == "in_place" for member in found for name in member)
    assert all("output_tile" in member for member in graphs_of(SPACE.enumerate(problem_of(), HOPPER)))
    assert not graphs_of(SPACE.enumerate(problem_of(precision="strict"), HOPPER))
    assert not graphs_of(SPACE.enumerate(problem_of(), find_device("cpu")))


@pytest.mark.usefixtures("missing")
def test_graphs_are_no_choice_without_the_package() -> None:
    assert not cudnn_graph.is_installed()
    space = SPACE.enumerate(problem_of(), HOPPER)
    assert len(space) > 0 and not graphs_of(space)


@pytest.mark.usefixtures("missing")
def test_the_doctor_says_how_to_get_the_package() -> None:
    (finding,) = [finding for finding in examine(None) if finding.subject == "cuDNN's graph API"]
    assert (finding.works, finding.remedy) == (False, "pip install 'tunebench[cudnn]'")


def shipped(convolution: str, batch: int) -> ShippedResult:
    """A result for a batch like ours: the nearer, the sooner it is served."""
    configuration = {"convolution": convolution, "convolution_layout": "channels_last"}
    if convolution == "graph_fp16":
        configuration |= {
            "graph_list": "fallback",
            "graph_plan": 1,
            "input_block_size": 256,
            "input_vector_bytes": 16,
            "input_tile": 64,
        }  # type: ignore[dict-item]
    else:
        configuration |= {"benchmark": True, "input_block_size": 256, "input_vector_bytes": 16, "input_tile": 64}  # type: ignore[dict-item]
        configuration |= {"output_block_size": 256, "output_vector_bytes": 16, "output_items": 1, "in_place": False}  # type: ignore[dict-item]
    options = {"input": "nchw", "output": "channels_last", "precision": "tf32"}
    return ShippedResult({**AXES, "batch": batch}, "float32", options, configuration, {}, 0.5, 1.0, {})  # type: ignore[arg-type]


def served() -> object:
    """The convolution of what ships for a problem, the best of which needs a graph."""
    problem = problem_of(output="channels_last")
    kernel = ModelNew.kernel
    results = [shipped("graph_fp16", AXES["batch"]), shipped("tf32", 64)]
    file = ShippedFile(kernel.name, kernel.digest, HOPPER.name, HOPPER.architecture, results)
    found = choose_shipped(shipped_offers([file]), SPACE, problem, HOPPER)
    return found and found.configuration and found.configuration["convolution"]


@pytest.mark.usefixtures("installed")
def test_a_shipped_graph_is_served() -> None:
    assert served() == "graph_fp16"


@pytest.mark.usefixtures("missing")
def test_the_next_result_is_served_without_the_package() -> None:
    assert served() == "tf32"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("stored", "written"),
    [("float16", "float32"), ("float32", "float32"), ("float16", "float16"), ("bfloat16", "bfloat16")],
)
def test_a_graph_is_channels_last_and_computes_in_single_precision(stored: str, written: str) -> None:
    assert ModelNew.steps is not None
    function = Function(ModelNew.steps, ("bias",), (), ("constant", "scaling_factor"))
    geometry = geometry_of_axes(AXES)
    wanted = Convolution(0, (2, 8, 9, 10), (16, 8, 3, 3), geometry, function, stored, written, "ranked", plan=0)
    scales = stored != written
    assert wanted.output == (2, 16, 7, 8)
    graph, count = cudnn_graph.describe(wanted)
    described = graph.inspect()
    assert count == 7 + scales
    bound = [tensor for tensor in described["tensors"].values() if not tensor["is_virtual"]]
    strides = {tuple(tensor["dim"]): tuple(tensor["stride"]) for tensor in bound}
    assert strides[(2, 8, 9, 10)] == (720, 1, 80, 8)
    assert strides[(16, 8, 3, 3)] == (72, 1, 24, 8)
    assert strides[(2, 16, 7, 8)] == (896, 1, 128, 16)
    assert sorted(tensor["uid"] for tensor in bound) == list(range(1, 8 + scales))
    # The image and the filters; the output and two biases; two constants, and factors where there are any.
    names = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BFLOAT16"}
    expected = [names[stored]] * 2 + [names[written]] * 3 + ["FLOAT"] * (2 + scales)
    assert sorted(str(tensor["dtype"]) for tensor in bound) == sorted(f"data_type.{name}" for name in expected)
    virtual = [tensor for tensor in described["tensors"].values() if tensor["is_virtual"]]
    # None: the graph's own for what is between, single precision.
    assert {str(tensor["dtype"]) for tensor in virtual} <= {"None", "data_type.FLOAT", "data_type.BOOLEAN"}
    modes = [node["params"].get("mode") for node in described["nodes"]]
    assert modes == [None, *(["mul"] if scales else []), "add", "cmp_gt", "binary_select", "add", "mul"]
