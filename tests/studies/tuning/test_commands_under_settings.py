"""PyTorch's settings as a user names them: each process that runs a model has them, and what is printed says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from command_line import CommandLine

import tunebench
from tunebench.kernels.runtime.registry import load_model
from tunebench.studies.display.tables import eager_had
from tunebench.studies.request.completion import complete_setting
from tunebench.studies.sweep.tasks import studies_of
from tunebench.studies.tuning.for_problem import resolve_problem
from tunebench.studies.tuning.resolved import resolve
from tunebench.studies.tuning.study_file import StudyRequest, read_study_files
from tunebench.tuner.problem import Accuracy
from tunebench.tuner.settings import under

pytestmark = pytest.mark.usefixtures("short_studies")

SIZES = {"batch_size": 16, "in_features": 32, "out_features": 24}
HIGH = {"matmul": "tf32"}

FILE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return x * 2

class ModelNew(nn.Module):
    def forward(self, x):
        assert torch.get_float32_matmul_precision() == "high", "the setting is not in force"
        return x * 2

def get_inputs():
    return [torch.rand(8, 4)]

def get_init_inputs():
    return []
"""


def test_a_study_has_the_settings_that_it_says_else_those_of_its_process() -> None:
    request = StudyRequest(kernel="gemm_scale_bn", device="cpu", sizes=SIZES)
    assert resolve(request).settings == {}
    with under(HIGH, "cpu"):
        assert resolve(request).settings == HIGH
        assert resolve(request.model_copy(update={"settings": {}})).settings == {}


def test_a_problem_is_tuned_under_the_settings_in_which_it_was_met() -> None:
    model = load_model("gemm_scale_bn")
    made = model(32, 24, (24,)).eval()
    with under(HIGH, "cpu"):
        problem = made.identify(torch.rand(16, 32))
    assert problem is not None and problem.options["matmul"] == "tf32"
    assert resolve_problem("gemm_scale_bn", problem, {"device": "cpu"}).settings == HIGH


def test_a_file_has_studies_under_several_settings(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(
        'kernel = "gemm_scale_bn"\ndevice = "cpu"\nmodes = ["eval"]\n'
        '[sizes]\nbatch_size = 16\nin_features = 32\nout_features = 24\n[settings]\nmatmul = ["ieee", "tf32"]\n'
    )
    problems = [task.problem for task in studies_of(read_study_files(file))]
    assert [one.options.get("matmul") for one in problems if one] == [None, "tf32"]
    assert eager_had(one.options for one in problems if one).startswith("eager: PyTorch's defaults, but")


@pytest.mark.parametrize("command", [["tune"], ["bench"], ["check"], ["compare", "default", "reference"]])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("matmul=high", "setting matmul=high: the legal values are ieee, tf32, bf16"),
        ("matmull=tf32", "unknown setting 'matmull'; did you mean matmul?"),
        ("matmul", "'matmul' is not of the form"),
        ("convolution=tf32", "setting convolution=tf32: PyTorch has no such convolution on a device of type 'cpu'"),
    ],
)
def test_what_is_no_setting_is_one_line(run: CommandLine, command: list[str], given: str, said: str) -> None:
    assert said in run(*command, "gemm_scale_bn", "--device", "cpu", "--setting", given).error


def test_the_shell_completes_settings_with_their_values() -> None:
    assert complete_setting("mat") == ["matmul=ieee", "matmul=tf32", "matmul=bf16"]


@pytest.mark.slow
def test_a_file_is_checked_under_a_setting(run: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FILE)
    asked = ("check", file, "--device", "cpu", "--mode", "eval", "--require", "problem", "--json")
    (report,) = run(*asked, "--setting", "matmul=tf32").json
    assert report["right_for_problem"] and report["eager"] == "matmul=tf32"
    (report,) = run(*asked).json
    assert not report["right_for_problem"] and "the setting is not in force" in json.dumps(report)


@pytest.mark.slow
def test_a_study_under_a_setting_is_evidence_for_that_setting_alone(run: CommandLine) -> None:
    sizes = [f"--size={name}={size}" for name, size in SIZES.items()]
    asked = ("gemm_scale_bn", "--device", "cpu", "--mode", "eval", *sizes)
    (report,) = run("tune", *asked, "--trials", "1", "--setting", "matmul=tf32", "--json").json
    assert report["eager"] == "matmul=tf32" and report["problem"]["options"]["matmul"] == "tf32"
    for command in ("best", "studies"):
        assert "eager: matmul=tf32" in run(command).out
    (row,) = tunebench.best("gemm_scale_bn")
    model = load_model("gemm_scale_bn")(32, 24, (24,)).eval()
    x = torch.rand(16, 32)
    with under(HIGH, "cpu"):
        assert model.identify(x).at(Accuracy.TF32) == row.problem
    assert model.identify(x) != row.problem
    compared = run("compare", row.trial_id, "reference", "--json").json
    assert compared["eager"] == "matmul=tf32"
