"""Exported files: what harnesses read in them, and what they do where there is no GPU."""

import ast
import builtins
import ctypes
import gc
import os
import pickle
import re
import shutil
import subprocess
import symtable
import sys
import weakref
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from between_passes import between_passes
from exported_files import BEST, HOPPER, exported, loaded
from five_models import KERNELS, SIZES
from torch.overrides import BaseTorchFunctionMode

from tunebench.kernels.runtime.registry import load_model
from tunebench.studies.writing.export.linker import CannotExportError
from tunebench.tuner.build import Within
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device, find_device
from tunebench.tuner.problem import Problem


@pytest.fixture(autouse=True)
def own_extensions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch builds, which a file may have it do on a machine with a GPU."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))


@pytest.fixture(scope="module")
def text_of() -> Callable[[str], str]:
    texts: dict[str, str] = {}

    def find(name: str) -> str:
        if name not in texts:
            options = {"precision": "tf32"} if name == "conv_min_add_mul" else {}
            texts[name] = exported(name, BEST[name], options=options)
        return texts[name]

    return find


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_a_file_needs_torch_alone_and_has_no_word_that_harnesses_refuse(
    name: str, text_of: Callable[[str], str]
) -> None:
    text = text_of(name)
    imported = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {alias.name for node in imported if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in imported if isinstance(node, ast.ImportFrom)}
    assert {module.split(".")[0] for module in modules} <= {"torch", *sys.stdlib_module_names}
    # As KernelBench strips comments.
    code = "\n".join(line.partition("#")[0].partition("//")[0] for line in text.splitlines())
    for refused in (
        r"\btry\s*:",
        r"\bexcept\b",
        r"\bpass\b",
        r"\bthreading\b",
        r"_make_subclass",
        r"\(torch\.Tensor\)",
    ):
        assert not re.search(refused, code), refused
    assert "load_inline" in code and "__global__" in code
    assert ("Two forms" in text) == (name == "gemm_div_sum_scale")


@pytest.mark.slow
def test_a_file_has_nothing_of_what_its_block_does_for_other_kernels(text_of: Callable[[str], str]) -> None:
    sigmoid, norm = text_of("gemm_sigmoid_residual"), text_of("gemm_scale_bn")
    assert "def own_output(" in sigmoid and "launch_rows" not in sigmoid and "batch_statistics" not in sigmoid
    assert "def own_output(" in norm and "launch_rows" not in norm and "batch_statistics" in norm


@pytest.mark.parametrize("name", KERNELS)
def test_all_that_a_file_s_code_asks_for_is_there(name: str, text_of: Callable[[str], str]) -> None:
    text = text_of(name)
    context, _, made, _ = loaded(name, text)
    scopes = [symtable.symtable(text, name, "exec")]
    targets = [one.target for one in ast.walk(ast.parse(text)) if isinstance(one, ast.comprehension)]
    # From Python 3.12 on the symbols of a module's comprehensions are the module's.
    of_comprehensions = {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    for scope in scopes:
        scopes += scope.get_children()
        for symbol in scope.get_symbols():
            if scope is scopes[0] and symbol.get_name() in of_comprehensions:
                continue
            if symbol.is_referenced() and symbol.is_global():
                assert symbol.get_name() in context or hasattr(builtins, symbol.get_name()), symbol.get_name()
    of_plan, of_device = _attributes(text, context["Plan"]), _attributes(text, context["Device"])
    host = ast.unparse(ast.parse(text))
    assert set(re.findall(r"\bplan\.(\w+)", host)) <= of_plan
    assert set(re.findall(r"\bplan\.device\.(\w+)", host)) <= of_device
    for one in ast.parse(text).body:
        if isinstance(one, ast.ClassDef) and one.name in ("TunedModule", "ModelNew"):
            assert all(hasattr(made, attribute) for attribute in re.findall(r"\bself\.(\w+)", ast.unparse(one)))


def _attributes(text: str, kind: type) -> set[str]:
    """What a class has, and what it gives its objects."""
    (found,) = [one for one in ast.parse(text).body if isinstance(one, ast.ClassDef) and one.name == kind.__name__]
    stores = [one for one in ast.walk(found) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)]
    return {one.attr for one in stores} | set(dir(kind))


@pytest.mark.parametrize("name", KERNELS)
def test_without_a_gpu_a_file_is_the_reference(name: str, text_of: Callable[[str], str]) -> None:
    context, model, made, inputs = loaded(name, text_of(name))
    problem = made.problem(*inputs)
    here = {"precision": "strict"} if name == "conv_min_add_mul" else {}
    assert (problem.axes, problem.options) == (context["AXES"], {**context["OPTIONS"], **here})
    assert made._has_measured_tensors(inputs, context["look_at"](made, inputs))
    assert list(made.state_dict()) == list(model.state_dict())
    for training in (True, False):
        model.train(training), made.train(training)
        wanted, found = model(*inputs), made(*inputs)
        assert torch.equal(found, wanted)
        if found.requires_grad:
            found.sum().backward(), wanted.sum().backward()
    for one, other in zip(made.parameters(), model.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None and torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("name", KERNELS)
def test_a_call_is_remembered_until_anything_of_it_changes(name: str, text_of: Callable[[str], str]) -> None:
    context, _, made, inputs = loaded(name, text_of(name))

    def is_as_before(*given: Any) -> bool:
        return made._by_precedent(given) is not None

    assert not is_as_before(*inputs)
    made._remember(inputs, context["look_at"](made, inputs))
    assert is_as_before(*inputs)
    first, *rest = inputs
    for other in (first[:-1], first.double(), first.clone().requires_grad_(), torch.stack([first, first], -1)[..., 0]):
        assert not is_as_before(other, *rest)
    for mode in (torch.inference_mode(), torch.autocast("cpu"), BaseTorchFunctionMode()):
        with mode:
            assert not is_as_before(*inputs)
    for one in made.parameters():
        one.requires_grad_(False)
        assert not is_as_before(*inputs)
        one.requires_grad_(True)
        assert is_as_before(*inputs)
    assert pickle.loads(pickle.dumps(made._precedent)) == deepcopy(made._precedent) == [None]
    input_of_call = first.clone()
    made._remember((input_of_call, *rest), context["look_at"](made, (input_of_call, *rest)))
    kept = weakref.ref(input_of_call)
    del input_of_call
    assert is_as_before(*inputs) and kept() is None
    made._replicate_for_data_parallel()  # which goes again
    assert is_as_before(*inputs)
    made.train(not made.training)
    assert not is_as_before(*inputs)


def test_a_files_tensors_go_with_the_last_name_for_it(text_of: Callable[[str], str]) -> None:
    context, _, made, inputs = loaded("gemm_scale_bn", text_of("gemm_scale_bn"))
    made._remember(inputs, context["look_at"](made, inputs))
    tensors = [weakref.ref(one) for one in made.parameters()]
    gc.collect()
    gc.disable()
    try:
        del made
        assert not any(one() is not None for one in tensors)
    finally:
        gc.enable()


def test_what_a_problem_depends_on_is_asked_again_when_it_changes(text_of: Callable[[str], str]) -> None:
    context, _, made, inputs = loaded("conv_min_add_mul", text_of("conv_min_add_mul"))
    context["OPTIONS"]["precision"] = "strict"  # as on a CPU
    asked: list[bool] = []
    problem = made.problem
    made.problem = lambda *given: asked.append(True) or problem(*given)

    def is_served(number: int) -> bool:
        """Whether calls are of the recorded problem, of which so many ask."""
        asked.clear()
        found = []
        for _ in range(3):
            call = made._by_precedent(inputs)
            found.append(call is not None)
            if call is None:
                call = context["look_at"](made, inputs)
                found[-1] = made._is_as_measured(inputs, call)
                if found[-1]:
                    made._remember(inputs, call)
        assert len(asked) == number and len({*found}) == 1
        return found[0]

    stride = made.conv.stride
    assert is_served(1) and is_served(0)
    made.conv.stride = (2, 2)
    assert not is_served(3)
    made.conv.stride = stride
    made.conv.eval()
    assert not is_served(0)
    made.eval()
    assert is_served(1)
    made.conv.dilation = [1, 1]  # which may change in place
    assert is_served(3)
    made.conv.dilation[0] = 2
    assert not is_served(3)


@pytest.mark.parametrize("has_gpu", [False, True])
def test_a_file_builds_nothing_without_a_gpu_or_without_nvcc(
    has_gpu: bool, text_of: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvcc = tmp_path / "toolkit" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    if not has_gpu:  # some have an nvcc all the same, as images for building do
        nvcc.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
        nvcc.chmod(0o755)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr("torch.utils.cpp_extension.CUDA_HOME", str(tmp_path / "toolkit"))
    context, model, made, inputs = loaded("scalar_mul", text_of("scalar_mul"))
    assert context["LIBRARY"] is None and not Path(os.environ["TORCH_EXTENSIONS_DIR"]).exists()
    assert torch.equal(made(*inputs), model(*inputs))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("scalar_mul", {"grid": "stride"}),
        ("conv_min_add_mul", {"convolution": "strict", "convolution_layout": "channels_last"}),
        pytest.param(
            "gemm_scale_bn",
            {"product": "parts", "pieces": 2, "normalisation": "folded"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_host_code_of_a_file_runs_its_kernels(name: str, values: dict[str, Any]) -> None:
    cpu = find_device("cpu")
    context, model, made, inputs = loaded(name, exported(name, values, cpu))
    stated = Problem(context["AXES"], context["DTYPE"], context["OPTIONS"])
    kernel = load_model(name).kernel
    built = build_plan(kernel, Configuration(context["CONFIGURATION"]), stated, cpu, compiler_for(cpu))

    class OnTheCpu:
        """In the place of what nvcc builds: the same source, by tunebench's compiler for the CPU."""

        def launch(
            self,
            entry_point: str,
            index: int,
            extents: list[int],
            shared: int,
            arguments: tuple[Any, ...],
            *,
            early: bool = False,  # noqa: ARG002
        ) -> None:
            assert index == 0
            arguments = tuple(Within(*one) if isinstance(one, tuple) else one for one in arguments)
            built.module.launch(entry_point, extents[:3], extents[3:], arguments, shared)

        def resident_blocks(self, entry_point: str, threads: int, shared: int = 0) -> int:
            return built.module.resident_blocks(entry_point, threads, shared)

    plan = plan_in(context, cpu, OnTheCpu())
    with torch.no_grad():
        assert torch.allclose(made.tuned_forward(plan, *inputs), model(*inputs), rtol=1e-4, atol=1e-4)
    for one, other in zip(made.buffers(), model.buffers(), strict=True):
        assert torch.allclose(one, other)


@pytest.mark.parametrize("name", KERNELS)
def test_a_file_s_launches_are_what_its_source_takes(
    name: str, text_of: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    context, model, made, inputs = loaded(name, text_of(name))
    declared = load_model(name).kernel.source.entry_points
    launched = []

    class Recorder:
        """In the place of a library for a GPU, whose kernels nothing runs here."""

        def launch(self, entry_point: str, *rest: Any, early: bool = False) -> None:  # noqa: ARG002
            index, extents, shared, arguments = rest
            assert index == 0 and len(extents) == 6 and shared <= HOPPER.max_shared_bytes
            assert len(arguments) == len(declared[entry_point].parameters)
            assert all(isinstance(one, int | float) for one in context["numbers"](arguments))
            launched.append(entry_point)

        def resident_blocks(self, *_: Any) -> int:
            return 2

    plan = plan_in(context, HOPPER, Recorder())
    with torch.no_grad():
        assert made.tuned_forward(plan, *inputs).shape == model(*inputs).shape
    assert launched


def plan_in(context: dict[str, Any], device: Device, module: object) -> Any:
    """A plan of a file's own, on a device that is not a GPU of this machine."""
    plan = context["Plan"].__new__(context["Plan"])
    plan.configuration = context["CONFIGURATION"]
    plan.problem = context["Problem"](context["AXES"], context["DTYPE"], context["OPTIONS"])
    plan.device, plan.module, plan._made = device, module, {}
    return plan


@pytest.mark.slow
def test_nvcc_builds_a_file_s_source(text_of: Callable[[str], str], tmp_path: Path) -> None:
    from torch.utils.cpp_extension import CUDA_HOME

    nvcc = shutil.which("nvcc", path=f"{CUDA_HOME}/bin") or shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("needs nvcc")
    statements = {
        statement.targets[0].id: ast.literal_eval(statement.value)
        for statement in ast.parse(text_of("scalar_mul")).body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and statement.targets[0].id in ("CUDA_SOURCE", "CUDA_FLAGS")
    }
    source, library = tmp_path / "source.cu", tmp_path / "library.so"
    source.write_text(statements["CUDA_SOURCE"], encoding="utf-8")
    command = [nvcc, *statements["CUDA_FLAGS"], "-shared", "-Xcompiler", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(command, check=True, capture_output=True)
    found = ctypes.CDLL(str(library))
    assert found.launch_pointwise and found.resident_pointwise


@pytest.mark.slow
def test_of_products_between_passes_the_library_s_alone_are_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    between_passes(tmp_path)
    name = str(tmp_path / "between")
    monkeypatch.setitem(SIZES, name, {})
    text = exported(name, {"products_by": "library", "product": "fused"})
    assert "def multiply(" in text and "product_kernel" not in text
    context, _, made, inputs = loaded(name, text, str(tmp_path))
    call = context["look_at"](made, inputs)
    assert made._is_as_measured(inputs, call)
    made.heads = 4  # the passes have it built in
    assert not made._is_as_measured(inputs, call)
    with pytest.raises(CannotExportError, match="export a trial with products_by=library by --trial"):
        exported(name, {"products_by": "exact", "product": "fused"})
