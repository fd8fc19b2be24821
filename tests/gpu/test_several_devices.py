"""Models on two GPUs of one process, whichever is the current one. Skips with fewer."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from five_models import KERNELS, pair, ran_a_kernel, with_gradient
from test_gate_on_device import verdict_of

import tunebench
from tunebench.kernels.gemm_scale_bn.model import ModelNew as GemmScaleBn
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.kernels.scalar_mul.model import ModelNew as ScalarMul
from tunebench.tuner.device import find_device
from tunebench.tuner.result import TrialStatus

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="needs two GPUs"),
]
DEVICES = ("cuda:0", "cuda:1")
each_kernel = pytest.mark.parametrize("name", KERNELS)


def moved(inputs: tuple[Any, ...], device: str) -> tuple[Any, ...]:
    return tuple(one.to(device) if isinstance(one, torch.Tensor) else one for one in inputs)


def close(found: torch.Tensor, wanted: torch.Tensor, device: str) -> None:
    assert str(found.device) == device
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)


@each_kernel
@pytest.mark.parametrize("current", [0, 1])
def test_each_model_runs_where_it_is(name: str, current: int) -> None:
    pairs = [pair(name, device=device) for device in DEVICES]
    with torch.no_grad(), torch.cuda.device(current):
        for _ in range(2):
            for device, (model, tuned, inputs) in zip(DEVICES, pairs, strict=True):
                close(tuned(*inputs), model(*inputs), device)
    assert all(ran_a_kernel(tuned) for _, tuned, _ in pairs)


@each_kernel
@pytest.mark.parametrize("frozen", [False, True])
def test_a_model_that_is_moved_runs_there(name: str, frozen: bool) -> None:
    model, tuned, inputs = pair(name, device=DEVICES[0])
    if frozen:
        tuned.freeze()
    with torch.no_grad():
        for device in (DEVICES[0], DEVICES[1], DEVICES[0]):
            given = moved(inputs, device)
            model.to(device), tuned.to(device)
            for _ in range(2):
                close(tuned(*given), model(*given), device)


@each_kernel
def test_gradients_on_the_device_that_is_not_the_current_one(name: str) -> None:
    model, tuned, inputs = pair(name, device=DEVICES[1])
    mine, theirs = with_gradient(inputs), with_gradient(inputs)
    for one, given in ((tuned, mine), (model, theirs)):
        one(*given).square().mean().backward()
    close(mine[0].grad, theirs[0].grad, DEVICES[1])


@each_kernel
def test_threads_on_two_devices(name: str) -> None:
    pairs = [pair(name, device=device) for device in DEVICES]

    def run(number: int) -> None:
        model, tuned, inputs = pairs[number % 2]
        with torch.no_grad():
            for _ in range(20):
                close(tuned(*inputs), model(*inputs), DEVICES[number % 2])

    with ThreadPoolExecutor(4) as executor:
        list(executor.map(run, range(8)))


def test_a_study_on_both_has_trials_of_each(tmp_path: Path) -> None:
    file, sizes = tmp_path / "results.db", {"M": 1024, "N": 1024}
    (report,) = tunebench.tune(
        "scalar_mul", devices=DEVICES, trials=24, compile=False, sizes=sizes, fresh=True, db=file
    )
    rows = tunebench.trials(db=file)
    assert report.outcome.lost == ()
    assert len({row.configuration for row in rows}) == len(rows) == 24
    sound = [row for row in rows if row.status in (TrialStatus.CORRECT, TrialStatus.PRUNED)]
    assert {row.device_uuid for row in sound} == {find_device(name).uuid for name in DEVICES}
    assert len(sound) == len(rows)


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("model", [ScalarMul, GemmScaleBn])
def test_the_gate_passes_on_each(name: str, current: int, model: type[TunedModule]) -> None:
    with torch.cuda.device(current):
        verdict = verdict_of(model, find_device(name))
    assert verdict.passed, verdict.reason
    assert {"graphs", "devices"} <= {stage.name for stage in verdict.stages}


@each_kernel
def test_a_copy_on_another_device_is_a_model_of_its_own(name: str) -> None:
    model, tuned, inputs = pair(name, device=DEVICES[0])
    with torch.no_grad():
        tuned(*inputs)
        other = copy.deepcopy(tuned).to(DEVICES[1])
        close(
            other(*moved(inputs, DEVICES[1])),
            copy.deepcopy(model).to(DEVICES[1])(*moved(inputs, DEVICES[1])),
            DEVICES[1],
        )
        close(tuned(*inputs), model(*inputs), DEVICES[0])
