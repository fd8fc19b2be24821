"""`tunebench export` and `tunebench.export`: which result becomes a file."""

from pathlib import Path

import pytest
from command_line import CommandLine
from recorded_winners import FAST, SLOW, record
from sample_kernel import WriteKernel
from sample_results import H100, H200

import tunebench as package
from tunebench.tuner.device import find_device


@pytest.mark.slow
def test_the_best_result_or_a_trial_becomes_a_file(write_kernel: WriteKernel, tmp_path: Path, run: CommandLine) -> None:
    kernel, place, file = write_kernel().kernel, tmp_path / "results.db", tmp_path / "weigh.py"
    record(kernel, place, H100, SLOW)
    record(kernel, place, H200, FAST)
    done = run("export", kernel.folder, "--db", place, "--device", H200.name, "-o", file)
    assert done.code == 0 and "2.000x [1.980, 2.020] over eager, on NVIDIA H200 (trial 2 of" in done.out, done
    text = file.read_text(encoding="utf-8")
    assert 'CONFIGURATION = {"block_size": 32, "blocks": 4, "variety": 1}' in text
    assert f"# kernel         weigh, digest {kernel.digest[:16]}" in text and "class _Model(nn.Module):" in text
    assert "exists" in run("export", kernel.folder, "--db", place, "-o", file).error
    assert run("export", kernel.folder, "--db", place, "-o", file, "--force", "--trial", 1).code == 0
    assert '"block_size": 256' in file.read_text(encoding="utf-8")
    assert run("export", kernel.folder, "--db", place, "-o", "-", "--trial", 2).out == text
    assert package.export(str(kernel.folder), trial=2, db=place) == text


@pytest.mark.slow
def test_what_cannot_be_exported_is_one_line(write_kernel: WriteKernel, tmp_path: Path, run: CommandLine) -> None:
    kernel, place = write_kernel().kernel, tmp_path / "results.db"
    record(kernel, place, H200, FAST)
    record(kernel, place, find_device("cpu"), SLOW)
    export = ("export", kernel.folder, "--db", place, "-o", tmp_path / "none.py")
    assert "there is no result for n=2145 float32" in run(*export, "--size", "rows=65").error
    assert "trial 1 is of n=2112 float32" in run(*export, "--size", "rows=65", "--trial", 1).error
    assert "a file is exported for a GPU" in run(*export, "--trial", 2).error
    assert "has no trial 9" in run(*export, "--trial", 9).error
    assert "trial 1 is of the kernel weigh" in run("export", "scalar_mul", "--db", place, "--trial", 1).error
    assert "keeps nothing between calls" in run(*export, "--mode", "frozen").error
    assert "weigh has no mode train: its modes are eval" in run(*export, "--mode", "train").error
    changed = write_kernel(source={"y[i] = x[i]": "y[i] = 1 * x[i]"}).kernel
    again = ("export", changed.folder, "--db", place, "-o", tmp_path / "none.py", "--trial", 1)
    assert "another version of weigh" in run(*again).error
    assert not (tmp_path / "none.py").exists()
    assert run(*again, "--any-source").code == 0
