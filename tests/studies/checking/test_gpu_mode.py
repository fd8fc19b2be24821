"""GPU MODE's submissions, judged by the gate: `custom_kernel` in one file, and the task's folder."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from command_line import CommandLine

from tunebench import UserError
from tunebench.studies.checking.gpu_mode import in_kernelbench_form, is_gpu_mode
from tunebench.tuner.reference import Reference, load_candidate, load_reference

REFERENCE = """\
import torch
from task import input_t, output_t
from utils import make_match_reference, Deterministic


def generate_input(size: int, columns: int, biased: bool, seed: int, scale=2.0) -> input_t:
    stream = torch.Generator().manual_seed(seed)
    x, bias = (torch.randn(shape, generator=stream) for shape in ((size, columns), (columns,)))
    return x * scale, bias if biased else torch.zeros(columns), torch.empty(size, columns)


def ref_kernel(data: input_t) -> output_t:
    x, bias, out = data
    with Deterministic():
        out[...] = torch.relu(x + bias)
    return out


check_implementation = make_match_reference(ref_kernel, rtol=1e-3)
"""
TASK = """\
lang: "py"
description: |
  tests: none of them here
tests:
  # the smallest first
  - {"size": 24, columns: 20, "biased": True, "seed": 4242}
  - {"size": 1024, "columns": 1024, "biased": false, "seed": 1}
benchmarks:
  - {"size": 4096, "columns": 4096, "biased": true, "seed": 2}
"""
RIGHT = """\
#!POPCORN leaderboard relu
import torch; from task import input_t, output_t


def custom_kernel(data: input_t) -> output_t:
    x, bias, out = data
    torch.add(x, bias, out=out)
    return out.clamp_(min=0)
"""
WITHOUT_OUTPUT = "import torch\n\ndef custom_kernel(data):\n    return torch.relu(data[0] + data[1])\n"
WRONG = RIGHT.replace("min=0", "min=-0.01")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A task's folder, with the module that tasks share one folder above."""
    folder = tmp_path / "problems" / "relu_py"
    folder.mkdir(parents=True)
    (folder / "reference.py").write_text(REFERENCE, encoding="utf-8")
    (folder / "task.yml").write_text(TASK, encoding="utf-8")
    (folder / "task.py").write_text("input_t = output_t = tuple\n", encoding="utf-8")
    (folder.parent / "utils.py").write_text(
        textwrap.dedent(
            """\
            import contextlib

            Deterministic = contextlib.nullcontext

            def make_match_reference(reference, **_):
                return lambda data, output: (True, "")
            """
        ),
        encoding="utf-8",
    )
    return folder


def loaded(folder: Path, submission: str = RIGHT, **sizes: int) -> tuple[Reference, str]:
    files = (folder / "reference.py", REFERENCE), (folder / "submission.py", submission)
    (path, text), (_, new) = in_kernelbench_form(*files, sizes)
    return load_reference(path, text=text), new


def test_a_task_is_a_reference_with_the_arguments_of_its_first_test_as_sizes(folder: Path) -> None:
    import torch

    reference, new = loaded(folder)
    cpu = torch.device("cpu")
    assert reference.sizes == {"size": 24, "columns": 20}
    (data,) = reference.make_inputs(1, cpu)
    assert [tuple(one.shape) for one in data] == [(24, 20), (20,), (24, 20)] and data[1].any()
    (again,), (another,) = reference.make_inputs(1, cpu), reference.make_inputs(2, cpu)
    assert torch.equal(again[0], data[0]) and not torch.equal(another[0], data[0])
    model = load_candidate(folder / "submission.py", new)()
    assert torch.equal(model(data), reference.model()(again))
    (smaller,) = reference.resized({"size": 3}).make_inputs(1, cpu)
    assert smaller[0].shape == (3, 20)


def test_sizes_that_are_given_stand_in_place_of_the_tests(folder: Path) -> None:
    assert loaded(folder, size=7)[0].sizes == {"size": 7, "columns": 20}
    (folder / "task.yml").unlink()
    with pytest.raises(UserError, match=r"generate_input takes 'columns'.*give --size columns=NUMBER"):
        loaded(folder, size=7)
    assert loaded(folder, size=7, columns=5, biased=0)[0].sizes == {"size": 7, "columns": 5, "biased": 0}


def test_modules_that_are_not_there_are_done_without(folder: Path) -> None:
    import torch

    (folder / "task.py").unlink()
    (folder.parent / "utils.py").unlink()
    reference, _ = loaded(folder)
    (data,) = reference.make_inputs(1, torch.device("cpu"))
    assert (reference.model()(data) >= 0).all()


def test_lines_keep_their_numbers(folder: Path) -> None:
    files = (folder / "reference.py", REFERENCE), (folder / "submission.py", RIGHT)
    for (_, before), (_, after) in zip(files, in_kernelbench_form(*files, {}), strict=True):
        lines, more = before.splitlines(), after.splitlines()
        assert [one == other for one, other in zip(lines, more, strict=False)].count(False) == 1
        assert len(more) > len(lines)


def test_what_is_a_submission_to_gpu_mode() -> None:
    assert is_gpu_mode(RIGHT) and is_gpu_mode("custom_kernel = print")
    assert not is_gpu_mode("custom_kernel(")
    assert not is_gpu_mode("def f():\n    custom_kernel = 1")
    assert not is_gpu_mode("class ModelNew:\n    pass\ndef custom_kernel(data):\n    pass\n")


def test_what_cannot_be_judged_is_one_line(folder: Path, run: CommandLine) -> None:
    submission = folder / "submission.py"
    submission.write_text(RIGHT, encoding="utf-8")
    done = run("check", submission)
    assert (done.code, done.err.count("\n")) == (2, 1) and "name the task's reference.py with --reference" in done.err
    done = run("check", submission, "--reference", submission)
    assert (done.code, done.err.count("\n")) == (2, 1) and "no generate_input and no ref_kernel" in done.err
    (folder / "task.yml").write_text("tests:\n  - {size: [}\n", encoding="utf-8")
    done = run("check", submission, "--reference", folder / "reference.py")
    assert (done.code, done.err.count("\n")) == (2, 1) and "cannot read its first test" in done.err


@pytest.mark.slow
@pytest.mark.parametrize(("text", "passes"), [(RIGHT, True), (WITHOUT_OUTPUT, True), (WRONG, False)])
def test_the_gate_judges_a_submission(folder: Path, run: CommandLine, text: str, passes: bool) -> None:
    submission = folder / "submission.py"
    submission.write_text(text, encoding="utf-8")
    done = run("check", submission, "--reference", folder / "reference.py", "--device", "cpu", "--json")
    (report,) = json.loads(done.out)
    assert report["right_for_problem"] is passes, report["reason"]
    assert done.code == (not passes)
    if not passes:
        shown = report["refusals"][0]["reproduction"]
        assert report["refusals"][0]["stage"] == "values, draw 1"
        assert shown["shapes"] == ["tuple of (24, 20) float32, (20,) float32, (24, 20) float32"]


@pytest.mark.slow
def test_a_submission_is_timed_against_its_reference(folder: Path, run: CommandLine) -> None:
    submission = folder / "submission.py"
    submission.write_text(RIGHT, encoding="utf-8")
    done = run("compare", submission, folder / "reference.py", "--device", "cpu", "--size", "size=8", "--json")
    compared = json.loads(done.out)
    assert compared["refusal"] == "" and compared["ratio"]["value"] > 0 and "8×20" in compared["problem"]
