"""`tunebench doctor`: of a machine, and of a kernel's folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import CommandLine
from sample_kernel import WriteKernel

from tunebench.kernels.runtime.registry import kernel_names
from tunebench.studies.checking.doctor import Diagnosis, examine_kernel


def test_what_needs_no_torch_is_said_first_and_a_broken_torch_is_a_line() -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "sys.argv = ['tunebench', 'doctor']\n"
        "from tunebench.__main__ import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True, env=os.environ)
    subjects = [line[5:].split("  ")[0] for line in done.stdout.splitlines() if line[:5].strip()]
    assert subjects == ["tunebench", "packages", "build cache", "database", "torch"]
    assert "NO   torch" in done.stdout and "does not import: " in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", kernel_names())
def test_what_ships_is_well(name: str) -> None:
    assert all(diagnosis.works for diagnosis in examine_kernel(name))


SERVED = "    def problem(self, x):\n"
ANOTHER = "    def __init__(self):\n        super().__init__()\n        self.scale = self._parameters.pop('weight')\n\n"
BROKEN = {
    "reference": ({"reference": {"def get_inputs": "def inputs"}}, "no get_inputs"),
    "model": ({"model": {"class ModelNew": "class ModelOld"}}, "has no ModelNew"),
    "parameters": ({"model": {SERVED: f"{ANOTHER}{SERVED}"}}, "scale (1,), weight (1,)"),
    "problem": ({"model": {"x.is_contiguous()": "x.is_sparse"}}, "x has holes"),
    "default": (
        {"model": {"lambda block_size, blocks: block_size * blocks <= 512": "lambda block_size: False"}},
        "few_threads",
    ),
    "build": ({"source": {"* weight[0]": "* wieght[0]"}}, "wieght"),
}


@pytest.mark.slow
@pytest.mark.parametrize("part", BROKEN)
def test_the_part_that_is_wrong_is_named_and_the_parts_before_it_are_well(write_kernel: WriteKernel, part: str) -> None:
    folder = write_kernel().kernel.folder
    changes, message = BROKEN[part]
    for file, replaced in changes.items():
        path = folder / ("weigh.cu" if file == "source" else f"{file}.py")
        text = path.read_text(encoding="utf-8")
        for old, new in replaced.items():
            assert old in text
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")
    found = list(examine_kernel(str(folder)))
    wrong = [diagnosis for diagnosis in found if not diagnosis.works]
    assert wrong[0].subject == part and message in f"{wrong[0].detail}\n{wrong[0].remedy}", wrong
    assert all(diagnosis.works for diagnosis in found[: found.index(wrong[0])])


def test_files_that_are_missing_are_named(tmp_path: Path) -> None:
    (found,) = examine_kernel(str(tmp_path))
    names = "reference.py, model.py"
    assert found == Diagnosis("files", False, names, "write what is missing")


@pytest.mark.slow
def test_the_command_says_no_where_something_is_wrong(run: CommandLine, write_kernel: WriteKernel) -> None:
    folder = write_kernel().kernel.folder
    assert (run("doctor", folder).code, run("doctor", "scalar_mul").code) == (0, 0)
    (folder / "weigh.cu").unlink()
    ran = run("doctor", folder)
    assert ran.code == 1 and "NO   model" in ran.out and "no weigh.cu" in ran.out
    assert not run("doctor", folder, "--json").json[-1]["works"]
    assert "unknown kernel 'scalar_mull'; did you mean scalar_mul" in run("doctor", "scalar_mull").error
