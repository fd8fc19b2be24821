"""A project of Hugging Face's kernel-builder: built as its tools do, as far as that goes without a GPU, and loaded."""

from __future__ import annotations

import ast
import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from command_line import CommandLine
from exported_files import exported_project
from five_models import KERNELS
from hub_project import built
from processes import ended
from recorded_winners import FAST, record
from sample_kernel import WriteKernel
from sample_results import H200

import tunebench

STAND_INS = """
#include "torch_binding.h"
#include <cstring>
extern "C" int launch_pointwise(const long long* packed, int early) {
    double real;
    std::memcpy(&real, packed + 9, sizeof real);
    return packed[0] + packed[3] + packed[6] + packed[7] + packed[8] + real * 2 + early;
}
extern "C" const char* kinds_pointwise() {
    return "qd";
}
extern "C" int resident_pointwise(int* blocks, int threads, size_t shared) {
    *blocks = threads + shared;
    return 0;
}
"""
"""Stand-ins for the launchers where there is no nvcc and no GPU: they return sums of their arguments."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The smallest of the five kernels as a project, at a small size, of a result that any database may lack."""
    folder = tmp_path / "project"
    for name, text in exported_project("scalar_mul").items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.slow
def test_a_project_is_built_and_its_own_test_passes(project: Path, tmp_path: Path) -> None:
    stand_ins = tmp_path / "stand_ins.cpp"
    stand_ins.write_text(STAND_INS, encoding="utf-8")
    package = built(project, "scalar_mul", stand_ins)
    # As from the hub: outside of the path of imports, under a name of its own.
    code = f"""
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("kernel_of_the_hub", {str(package / "__init__.py")!r})
module = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module
spec.loader.exec_module(module)
assert not any(name.partition(".")[0] == "tunebench" for name in sys.modules)
model = module.ModelNew(*module.reference.get_init_inputs())
inputs = module.reference.get_inputs()
assert torch.equal(model(*inputs), module.reference.Model()(*inputs))
ops = torch.ops._scalar_mul_1a2b3c
print(ops.resident_blocks("pointwise", 5, 60))
torch._C._cuda_getCurrentRawStream = lambda device: 4000
try:
    module.tuned.Library().launch("pointwise", 0, [10, 1, 1, 20, 1, 1], 300, [50000, 300000.0], early=True)
except RuntimeError as error:
    print(error)
ops.launch("nothing", [1] * 8, False)
"""
    ran = ended(sys.executable, "-c", code, folder=tmp_path)
    assert ran.stdout.startswith("65\n") and "CUDA error 654331" in ran.stdout, ran.stderr
    assert "there is no kernel nothing" in ran.stderr, ran.stderr
    tested = ended(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", project / "tests"),
        folder=project,
        PYTHONPATH=str(project / "build"),
    )
    assert tested.returncode == 0 and "1 passed" in tested.stdout, tested.stdout


@pytest.mark.slow
def test_nvcc_compiles_a_project_s_kernels(project: Path, tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    kernel = tomllib.loads((project / "build.toml").read_text(encoding="utf-8"))["kernel"]["scalar_mul"]
    (capability,) = kernel["cuda-capabilities"]
    number = capability.replace(".", "")
    (source,) = kernel["src"]
    done = ended(
        *("nvcc", *kernel["cuda-flags"], f"-gencode=arch=compute_{number},code=sm_{number}", "-c", project / source),
        *("-o", tmp_path / "kernel.o"),
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_a_project_has_what_kernel_builder_reads(name: str) -> None:
    files = exported_project(name)
    build = tomllib.loads(files["build.toml"])
    assert (build["general"]["name"], build["general"]["backends"]) == (name, ["cuda"])
    sources = [*build["torch"]["src"], *build["kernel"][name]["src"]]
    assert {*sources, "flake.nix", f"torch-ext/{name}/__init__.py", f"tests/test_{name}.py"} <= set(files)
    assert build["kernel"][name]["cuda-capabilities"] == ["9.0a"]
    for path, text in files.items():
        if path.startswith("torch-ext/") and path.endswith(".py"):
            imported = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
            modules = {alias.name for node in imported if isinstance(node, ast.Import) for alias in node.names}
            modules |= {str(node.module) for node in imported if isinstance(node, ast.ImportFrom) and not node.level}
            assert {module.partition(".")[0] for module in modules} <= {"torch", *sys.stdlib_module_names}
    launched = set(re.findall(r"launch_(\w+)\(", files["torch-ext/torch_binding.h"]))
    assert launched == set(re.findall(r"extern \"C\" int launch_(\w+)", files[f"{name}_cuda/{name}.cu"])) and launched


@pytest.mark.slow
def test_a_project_is_written_into_a_folder_of_its_own(
    write_kernel: WriteKernel, tmp_path: Path, run: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kernel, place = write_kernel().kernel, tmp_path / "results.db"
    record(kernel, place, H200, FAST)
    export = ("export", kernel.folder, "--db", place, "--format", "hf-kernels")
    assert run(*export).code == 0
    folder = tmp_path / "weigh-hf-kernels"
    assert (folder / "torch-ext" / "weigh" / "tuned.py").exists()
    assert "exists: name another folder" in run(*export).error
    assert run(*export, "--force").code == 0
    assert "is a file: a project is written into a folder" in run(*export, "-o", place).error
    assert "unknown format" in run("export", kernel.folder, "--format", "wheel").error
    text = (folder / "torch-ext" / "weigh" / "tuned.py").read_text(encoding="utf-8")
    assert tunebench.export(kernel.folder, tmp_path / "again", db=place, form="hf-kernels") == text
    assert (tmp_path / "again" / "build.toml").exists()
