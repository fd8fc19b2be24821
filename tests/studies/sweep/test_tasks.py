"""Study files with many studies, and the order in which a sweep takes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunebench.studies.sweep.tasks import Swept, next_of, requests_of, studies_of
from tunebench.studies.tuning.study_file import read_study_file, read_study_files
from tunebench.tuner.errors import StudyFileError, UnknownNameError, UserError

MANY = """
trials = 20
device = "cpu"
modes = ["eval"]

[[studies]]
kernel = ["gemm_scale_bn", "gemm_sigmoid_residual"]
dtype = ["float32", "float16"]

[[studies]]
kernel = "scalar_mul"
trials = 5
sizes = [{M = [64, 256, 1024], N = 64}, {M = 8, N = 8}]
tunables = {block_size = [128, 256]}
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "many.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_file_is_every_combination_of_its_lists(tmp_path: Path) -> None:
    requests = read_study_files(write(tmp_path, MANY))
    assert [(one.kernel, one.dtype) for one in requests[:4]] == [
        (kernel, dtype) for kernel in ("gemm_scale_bn", "gemm_sigmoid_residual") for dtype in ("float32", "float16")
    ]
    assert [dict(one.sizes) for one in requests[4:]] == [
        {"M": 64, "N": 64},
        {"M": 256, "N": 64},
        {"M": 1024, "N": 64},
        {"M": 8, "N": 8},
    ]
    assert [one.trials for one in requests] == [20] * 4 + [5] * 4
    assert all(one.tunables == {"block_size": [128, 256]} for one in requests[4:])


def test_a_file_of_one_study_is_what_it_was(tmp_path: Path) -> None:
    file = write(tmp_path, 'kernel = "scalar_mul"\nmodes = ["eval"]\n[sizes]\nM = 4\n')
    assert [read_study_file(file)] == read_study_files(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('kernel = "scalar_mul"\nseed = [1, 2]', "it has 2 studies: 'tunebench sweep"),
        ('kernel = "scalar_mul"\nseed = []', "'seed' is an empty list"),
        ('studies = 3\nkernel = "scalar_mul"', r"write tables, each below a line \[\[studies\]\]"),
        ("studies = []", r"write tables, each below a line \[\[studies\]\]"),
        (f"kernel = 'scalar_mul'\nseed = {list(range(200))}\ntrials = {list(range(1, 200))}", "make several files"),
        ('[[studies]]\nkernel = "scalar_mul"\nseed = [1, "x"]', "'seed' is not legal"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(StudyFileError, match=message):
        read_study_file(write(tmp_path, text))


def test_a_key_that_is_none_is_refused_in_a_table_too(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="'kernl'"):
        read_study_files(write(tmp_path, '[[studies]]\nkernl = "scalar_mul"'))


def tasks(folder: Path, text: str) -> list[Swept]:
    return studies_of(requests_of([write(folder, text)], {}))


SIZES = """
device = "cpu"
[[studies]]
kernel = "scalar_mul"
sizes = {M = [64, 4096, 256, 1024, 16384], N = 64}
[[studies]]
kernel = "gemm_sigmoid_residual"
modes = ["eval"]
sizes = {batch_size = [64, 128], input_size = 64, hidden_size = 64}
"""


@pytest.mark.slow
def test_a_task_is_a_study_with_its_problem_and_none_is_there_twice(tmp_path: Path) -> None:
    found = tasks(tmp_path, 'device = "cpu"\nkernel = "scalar_mul"\nsizes = {M = [64, 64, 16], N = [16, 64]}')
    shapes = ((1024, "64x16"), (4096, "64x64"), (256, "16x16"), (1024, "16x64"))
    assert [one.about for one in found] == [f"elements={size} float32 A={shape}" for size, shape in shapes]
    modes = tasks(tmp_path, 'device = "cpu"\nkernel = "gemm_scale_bn"\nsizes = {batch_size = 16}')
    assert sorted(one.resolved.modes[0] for one in modes) == ["eval", "frozen", "train"]
    assert all(one.problem and one.problem.options["mode"] == one.resolved.modes[0] for one in modes)


@pytest.mark.slow
def test_the_middle_of_a_kernel_comes_first_and_then_what_is_nearest(tmp_path: Path) -> None:
    waiting = tasks(tmp_path, SIZES)
    finished: list[Swept] = []
    while waiting:
        finished.append(next_of(waiting, finished, []))
        waiting.remove(finished[-1])
    rows = [one.problem.axes["elements"] // 64 for one in finished[:5] if one.problem]
    assert rows[0] == 1024 and sorted(rows[1:3]) == [256, 4096] and len(set(rows)) == 5
    assert {one.kernel for one in finished[5:]} == {"gemm_sigmoid_residual"}


@pytest.mark.slow
def test_a_second_device_takes_another_kernel(tmp_path: Path) -> None:
    waiting = tasks(tmp_path, SIZES)
    first = next_of(waiting, [], [])
    second = next_of([one for one in waiting if one is not first], [], [first])
    third = next_of([one for one in waiting if one not in (first, second)], [], [first, second])
    assert [one.kernel for one in (first, second, third)] == ["scalar_mul", "gemm_sigmoid_residual", "scalar_mul"]


def test_a_sweep_has_one_place_to_run(tmp_path: Path) -> None:
    file = write(tmp_path, 'kernel = "scalar_mul"\n[[studies]]\ndevice = "cpu"\n[[studies]]\ndevice = "cuda"\n')
    with pytest.raises(UserError, match="'device' is cpu and cuda in its studies"):
        requests_of([file], {})
    assert {one.device for one in requests_of([file], {"device": "cpu"})} == {"cpu"}
