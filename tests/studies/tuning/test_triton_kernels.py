"""Kernels whose source is Triton, by the commands: tuned, checked, bundled, side by side with CUDA C++, and refused."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command_line import CommandLine
from sample_results import ENVIRONMENT, H200, STUDY, comparison, correct
from triton_kernels import SOFTMAX, TWO_SOURCES, write

import tunebench
from tunebench.db.connection.database import open_database
from tunebench.db.entries.study_log import open_study
from tunebench.db.queries.trials import trials
from tunebench.kernels.runtime.registry import import_model
from tunebench.studies.tuning.ahead import bundle
from tunebench.tuner.compile.bundle import VARIABLE
from tunebench.tuner.compile.triton import compiler as triton_compiler
from tunebench.tuner.compile.triton.compiler import TritonCompiler
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.errors import CompilerMissingError
from tunebench.tuner.problem import Problem


@pytest.fixture
def no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a machine without Triton says."""

    def missing() -> str:
        raise CompilerMissingError("compiler 'triton' is not here: pip install 'tunebench[triton]'")

    monkeypatch.setattr(triton_compiler, "_version", missing)


@pytest.mark.slow
def test_a_triton_kernel_is_tuned_recorded_and_served(tmp_path: Path, run: CommandLine) -> None:
    file = write(tmp_path / "softmax.py", SOFTMAX, {'("width", (128, 512))': '("width", (128,))'})
    ran = run("tune", file, "--device", "cpu", "--trials", 2, "--json")
    assert ran.code == 0, ran
    with open_database(read_only=True) as database:
        rows = trials(database)
    assert [(row.status.timed, row.compiler) for row in rows] == [(True, "triton")] * 2
    (facts,) = {run("show", row.trial_id, "--json").json["build"]["compiler_version"] for row in rows}
    assert facts.startswith("Triton ")
    model, x = tunebench.load(str(file))(), torch.rand(4, 80)
    assert torch.allclose(model(x), torch.softmax(x, 1))
    (choice,) = model.choices.values()
    assert choice.tier == "exact"


@pytest.mark.slow
def test_the_whole_gate_passes_in_the_interpreter(tmp_path: Path, run: CommandLine) -> None:
    ran = run("check", write(tmp_path / "softmax.py", SOFTMAX), "-v", "--device", "cpu", "--dtype", "bfloat16")
    assert ran.code == 0, ran
    assert "it builds for sm_90" in ran.out


@pytest.mark.slow
def test_a_wrong_function_is_refused_by_the_gate(tmp_path: Path, run: CommandLine) -> None:
    file = write(tmp_path / "softmax.py", SOFTMAX, {"mask=inside)\n\n": "mask=at < columns - 1)\n\n"})
    ran = run("check", file, "--device", "cpu")
    assert ran.code == 1
    assert "4 of 320 elements were never written" in ran.out


@pytest.mark.slow
def test_what_passes_in_the_interpreter_is_refused_for_a_gpu(tmp_path: Path, run: CommandLine) -> None:
    """Python runs what is no device code."""
    changes = {"    inside = at <": "    [None for _ in range(2)]\n    inside = at <"}
    ran = run("check", write(tmp_path / "softmax.py", SOFTMAX, changes), "--device", "cpu", "--arch", "sm_90")
    assert ran.code == 1
    assert "for sm_90: Triton refused softmax.py:18: " in " ".join(ran.out.split())


@pytest.mark.slow
def test_two_sources_are_searched_together(tmp_path: Path, run: CommandLine) -> None:
    file = write(tmp_path / "twice.py", TWO_SOURCES)
    ran = run("tune", file, "--device", "cpu", "--trials", 6, "--sampler", "exhaustive")
    assert ran.code == 0, ran
    with open_database(read_only=True) as database:
        rows = trials(database)
    timed = [row for row in rows if row.status.timed]
    assert sorted(str(row.configuration["source"]) for row in timed) == ["cuda"] * 2 + ["triton"] * 4
    built = {
        (row.configuration["source"], run("show", row.trial_id, "--json").json["build"]["compiler"]) for row in rows
    }
    assert built == {("cuda", "cpu"), ("triton", "triton")}


@pytest.mark.slow
def test_a_bundle_serves_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, problems = write(tmp_path / "softmax.py", SOFTMAX), tmp_path / "problems.json"
    problems.write_text(json.dumps([{"kernel": "softmax", "axes": {"rows": 4, "columns": 80}}]), encoding="utf-8")
    made = bundle(tmp_path / "bundle", [str(file)], problems=problems, architectures=["cpu", "sm_90"])
    assert {(one.compiler, one.architecture) for one in made} == {("triton", "sm_90"), ("triton", platform.machine())}
    monkeypatch.setenv(VARIABLE, str(tmp_path / "bundle"))
    monkeypatch.setattr(TritonCompiler, "compile", None)
    monkeypatch.setenv("TUNEBENCH_CACHE", str(tmp_path / "empty"))
    model, x = import_model(str(file))(), torch.rand(4, 80)
    assert torch.allclose(model(x), torch.softmax(x, 1))
    (choice,) = model.choices.values()
    assert choice.tier == "default"


@pytest.mark.slow
@pytest.mark.usefixtures("no_triton")
def test_without_triton_it_is_one_line(tmp_path: Path, run: CommandLine) -> None:
    softmax, twice = write(tmp_path / "softmax.py", SOFTMAX), write(tmp_path / "twice.py", TWO_SOURCES)
    ran = run("tune", softmax, "--device", "cpu", "--trials", 1)
    assert ran.error == "tunebench: compiler 'triton' is not here: pip install 'tunebench[triton]'"
    ran = run("tune", twice, "--device", "cpu", "--trials", 1)
    assert ran.error.endswith("; or tune the other source alone: --tunable source=cuda")
    ran = run("tune", twice, "--device", "cpu", "--trials", 1, "--tunable", "source=cuda")
    assert ran.code == 0, ran


def test_a_file_that_imports_what_is_not_here_says_how_to_get_it(tmp_path: Path, run: CommandLine) -> None:
    changes = {"import triton\n": "raise ModuleNotFoundError('No', name='triton')\n"}
    ran = run("tune", write(tmp_path / "softmax.py", SOFTMAX, changes), "--device", "cpu")
    assert ran.error.endswith("does not import: ModuleNotFoundError: No: pip install 'tunebench[triton]'")


WRONG = {
    "a constant without a value": (
        SOFTMAX,
        {
            'Tunable("width", (128, 512))': 'Tunable("wide", (128, 512))',
            'lambda width, problem: problem.axes["columns"] <= width': "lambda wide: wide > 0",
        },
        r"constexpr 'width' of softmax has no value",
    ),
    "a tunable that is no constant": (
        SOFTMAX,
        {'Tunable("num_warps", (1, 4), default=4)': 'Tunable("num_warp", (1, 4))'},
        "tunable 'num_warp': softmax.py has no constexpr of that name",
    ),
    "two sources and nothing to choose by": (
        TWO_SOURCES,
        {'Tunable("source"': 'Tunable("sources"', "lambda source: source": "lambda sources: sources"},
        'choose between them by a tunable Tunable("source", ("cuda", "triton"))',
    ),
    "no source": (SOFTMAX, {"@triton.jit\n": ""}, "no source= and no @triton.jit function"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_a_user_gets_wrong_is_one_line(tmp_path: Path, run: CommandLine, name: str) -> None:
    text, changes, message = WRONG[name]
    file = write(tmp_path / ("softmax.py" if text is SOFTMAX else "twice.py"), text, changes)
    assert message in run("tune", file, "--device", "cpu", "--trials", 1).error


def test_what_is_edited_is_another_kernel(tmp_path: Path) -> None:
    known = import_model(str(write(tmp_path / "softmax.py", SOFTMAX))).kernel.digest
    comment = {"    at = tl.arange": "    # every column\n    at = tl.arange"}
    assert import_model(str(write(tmp_path / "softmax.py", SOFTMAX, comment))).kernel.digest == known
    called = {"tl.exp(row - largest)": "tl.exp2(row - largest)"}
    assert import_model(str(write(tmp_path / "softmax.py", SOFTMAX, called))).kernel.digest != known


@pytest.mark.slow
def test_a_source_of_its_own_file_is_read_without_triton(tmp_path: Path) -> None:
    """A folder's `NAME.py` is not imported by the program that serves the model."""
    folder = tmp_path / "softmax"
    folder.mkdir()
    functions, model = SOFTMAX.split("class Model(nn.Module)")
    model, harness = model.split("rows = 4")
    reference, model_new = model.split("class ModelNew")
    imports = functions.split("@triton.jit")[0].replace("import triton\nimport triton.language as tl\n", "")
    write(folder / "softmax.py", functions)
    write(folder / "reference.py", f"{imports}class Model(nn.Module){reference}rows = 4{harness}")
    write(folder / "model.py", f"{imports}from .reference import Model\nclass ModelNew{model_new}")
    question = "import sys, tunebench; print(tunebench.load('softmax').kernel.source.file, 'triton' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", question]
    answer = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True)
    assert answer.stdout.split() == [b"softmax.py", b"False"]
    x = torch.rand(4, 80)
    assert torch.allclose(import_model(str(folder))()(x), torch.softmax(x, 1))


def test_doctor_builds_it(tmp_path: Path, run: CommandLine) -> None:
    ran = run("doctor", write(tmp_path / "softmax.py", SOFTMAX))
    assert ran.code == 0, ran
    assert "the default, by triton for" in " ".join(ran.out.split())


def test_an_export_is_refused_in_one_line(tmp_path: Path, run: CommandLine) -> None:
    file, place = write(tmp_path / "softmax.py", SOFTMAX), tmp_path / "results.db"
    kernel = import_model(str(file)).kernel
    problem, winner = Problem({"rows": 4, "columns": 80}, "float32"), Configuration({"width": 128, "num_warps": 4})
    study = replace(STUDY, kernel=kernel.name, source_digest=kernel.digest, problem=problem, device=H200)
    with open_database(place) as database:
        log = open_study(database, study, ENVIRONMENT)
        log.record(replace(correct(0), configuration=winner))
        log.conclude(replace(comparison(0), best=winner))
    ran = run("export", file, "--db", place, "-o", tmp_path / "out.py")
    assert "runs softmax.py, which is Triton, where an exported file holds CUDA C++" in ran.error
