"""Tuning the problems that programs have met: on first sight, and from what was counted."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest
import torch
from command_line import CommandLine
from sample_kernel import SLOW_REFERENCE, WriteKernel

import tunebench
from tunebench.db.connection.database import open_database
from tunebench.db.queries.misses import add_misses
from tunebench.db.queries.rows import Missed
from tunebench.kernels.runtime import on_sight
from tunebench.kernels.runtime.registry import import_model, load_model
from tunebench.kernels.runtime.selection import Tier
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.tuning.for_problem import UnfitProblemError, sizes_for
from tunebench.tuner.device import Device, find_device
from tunebench.tuner.errors import UserError
from tunebench.tuner.kernel import Kernel, Mode
from tunebench.tuner.problem import Problem

pytestmark = pytest.mark.usefixtures("short_studies")

CPU = find_device("cpu")
CONV = {"batch": 2, "in_channels": 3, "height": 30, "width": 17, "out_channels": 5, "kernel_height": 5}


@pytest.mark.parametrize(
    ("name", "axes", "mode", "sizes"),
    [
        ("scalar_mul", {"elements": 12345}, "eval", {"M": 12345, "N": 1}),
        ("scalar_mul", {"elements": 3 * 16384}, "eval", {"M": 3, "N": 16384}),
        (
            "gemm_scale_bn",
            {"rows": 7, "in_features": 333, "out_features": 129},
            "frozen",
            {"batch_size": 7, "in_features": 333, "out_features": 129},
        ),
        (
            "gemm_div_sum_scale",
            {"rows": 1, "in_features": 333, "hidden": 333},
            "eval",
            {"batch_size": 1, "input_size": 333, "hidden_size": 333},
        ),
        (
            "conv_min_add_mul",
            CONV | {"kernel_width": 5},
            "eval",
            {"batch_size": 2, "in_channels": 3, "out_channels": 5, "height": 30, "width": 17, "kernel_size": 5},
        ),
    ],
)
def test_sizes_that_make_a_problem_are_found(
    name: str, axes: Mapping[str, int], mode: str, sizes: Mapping[str, int]
) -> None:
    assert sizes_for(load_model(name), Problem(axes, "float32", {"mode": mode}), Mode(mode)) == sizes


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("conv_min_add_mul", CONV | {"kernel_width": 3}),  # one constant makes both
        ("scalar_mul", {"elements": 5, "more": 5}),
        ("scalar_mul", {"rows": 5}),
    ],
)
def test_a_problem_that_no_sizes_make_is_refused(name: str, axes: Mapping[str, int]) -> None:
    with pytest.raises(UnfitProblemError, match=f"no sizes of {name}'s reference make"):
        sizes_for(load_model(name), Problem(axes, "float32"), Mode.EVAL)


def test_dimensions_without_a_name_are_sizes_too() -> None:
    model = load_model("scalar_mul")
    problem = model().identify(torch.rand(6, 50), 2.0)
    assert problem is not None and problem.axes == {"elements": 300}
    assert sizes_for(model, problem, Mode.EVAL) == {"M": 6, "N": 50}
    with pytest.raises(UnfitProblemError, match="no sizes of scalar_mul's reference make elements=300"):
        sizes_for(model, cast(Problem, model().identify(torch.rand(300), 2.0)), Mode.EVAL)


def run(model: TunedModule, n: int) -> None:
    x = torch.rand(n, 1)
    with torch.no_grad():
        assert torch.equal(model(x), x * model.weight)


@pytest.mark.slow
def test_a_problem_is_tuned_on_first_sight(write_kernel: WriteKernel) -> None:
    model = write_kernel(reference=SLOW_REFERENCE)()
    with tunebench.use_policy("tune", seconds=8):
        run(model, 100)
    (choice,) = model.choices.values()
    (row,) = tunebench.best(model.kernel.name, any_source=True)
    assert row.problem.named == Problem({"n": 100})
    assert choice.tier is Tier.EXACT or not row.confirmed  # a busy machine may leave it open
    assert choice.measured == row.confirmed


def test_it_is_tried_once_and_what_cannot_be_tuned_is_served_all_the_same(
    write_kernel: WriteKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Problem, Device, float]] = []

    def refuse(_: Kernel, problem: Problem, device: Device, seconds: float) -> None:
        asked.append((problem.named, device, seconds))
        raise UserError("not here")

    monkeypatch.setattr(on_sight, "_tune_problem", refuse)
    factory = write_kernel()
    with tunebench.use_policy("tune", seconds=7):
        with pytest.warns(RuntimeWarning, match="weigh was not tuned for n=150 float32 x=150x1: not here"):
            run(factory(), 150)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run(factory(), 150)
    assert asked == [(Problem({"n": 150}), CPU, 7)]
    for seconds in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="give a positive number"):
            tunebench.set_policy("tune", seconds=seconds)


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Commands on an empty database."""
    open_database().close()
    return CommandLine(monkeypatch, capsys)


def missed(kernel: Kernel, n: int, calls: int) -> Missed:
    problem = import_model(str(kernel.folder))().identify(torch.rand(n, 1))
    assert problem is not None
    return Missed(kernel.name, kernel.digest, str(kernel.folder), problem, CPU.name, CPU.architecture, calls)


@pytest.mark.slow
def test_what_is_used_most_is_tuned_and_then_no_miss_any_more(
    write_kernel: WriteKernel, tmp_path: Path, ask: CommandLine
) -> None:
    kernel = write_kernel().kernel
    other = write_kernel(source={"y[i] = x[i]": "y[i] = 1 * x[i]"}).kernel
    gone = Missed("gone", "digest", str(tmp_path / "gone"), Problem({"n": 5}), CPU.name, CPU.architecture, 90)
    edited = Missed("weigh", "edited", str(kernel.folder), Problem({"n": 5}), CPU.name, CPU.architecture, 80)
    elsewhere = Missed("weigh", kernel.digest, str(kernel.folder), Problem({"n": 5}), "NVIDIA H200", "sm_90", 70)
    with open_database() as database:
        add_misses(database, [missed(kernel, 100, 3), missed(kernel, 200, 9), missed(other, 300, 1)])
        add_misses(database, [gone, edited, elsewhere])
    assert [row["calls"] for row in ask("misses", "--json").json] == [90, 80, 70, 9, 3, 1]
    assert "n=200 float32" in ask("misses", "weigh", "--device", CPU.name).out
    done = ask("tune", "--from-misses", "--limit", "1", "--trials", "2", "--device", "cpu", "--json")
    assert [report["problem"]["axes"] for report in done.json] == [{"n": 200}]
    assert "gone' (known:" in done.err and "another version" in done.err
    rest = ask("misses", "--device", CPU.name, "--json").json
    assert [row["problem"]["axes"]["n"] for row in rest] == [5, 5, 100, 300]
    everything = ask("misses", "weigh", "--all", "--json").json
    assert [row["problem"]["axes"]["n"] for row in everything if row["tuned"]] == [200]
    assert "true" in ask("misses", "--all", "--csv").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tune"], "nothing to tune: name a kernel, a study file or a folder, or give --from-misses"),
        (["tune", "--from-misses", "--size", "n=3"], "--from-misses takes sizes from the problems that were missed"),
        (["tune", "--from-misses", "--mode", "eval", "--dtype", "float16"], "takes dtype, modes from the problems"),
        (["tune", "weigh", "--limit", "3"], "--limit says how many of the misses to tune: give --from-misses too"),
        (["misses", "nothing"], "kernel 'nothing'"),
    ],
)
def test_what_makes_no_sense_is_one_line(ask: CommandLine, arguments: list[str], said: str) -> None:
    assert said in ask(*arguments).error


def test_where_nothing_was_missed_the_answer_is_no(ask: CommandLine) -> None:
    assert (ask("misses").code, ask("misses", "--json").json) == (1, [])
    done = ask("tune", "--from-misses", "--device", "cpu")
    assert done.code == 1 and "no problem to tune was served without evidence" in done.err
