"""First use on a GPU: the reference answers at once, then the kernel; a bundle needs no compiler."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import NoReturn

import pytest
import torch

import tunebench
from tunebench.kernels.runtime import decision
from tunebench.kernels.runtime.policy import Policy, set_policy
from tunebench.kernels.runtime.registry import load_model
from tunebench.kernels.runtime.selection import Tier
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.device import find_device
from tunebench.tuner.errors import CompilerMissingError

pytestmark = pytest.mark.gpu

SIZES = {"batch_size": 64, "in_features": 256, "out_features": 256}


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEBENCH_CACHE", str(tmp_path / "builds"))
    set_policy(Policy.RECORDED, wait=False)


def pair() -> tuple[torch.nn.Module, TunedModule, torch.Tensor]:
    factory = load_model("gemm_scale_bn")
    reference = factory.kernel.reference(SIZES)
    place = torch.device("cuda")
    model, tuned = reference.make_model(0, place).eval(), reference.make_model(0, place, factory).eval()
    assert isinstance(tuned, TunedModule)
    return model, tuned, reference.make_inputs(1, place)[0]


def finish_builds() -> None:
    for thread in threading.enumerate():
        if thread.name == "compile":
            thread.join(60)


def test_the_reference_answers_at_once_and_the_kernel_later() -> None:
    model, tuned, x = pair()
    with torch.no_grad():
        expected = model(x)
        assert torch.equal(tuned(x), expected)
        (choice,) = tuned.choices.values()
        assert choice.being_built and choice.tier is Tier.REFERENCE
        finish_builds()
        torch.testing.assert_close(tuned(x), expected, rtol=1e-4, atol=1e-4)
        (choice,) = tuned.choices.values()
        assert choice.configuration is not None


def test_nothing_is_built_inside_a_capture() -> None:
    model, tuned, x = pair()
    with torch.no_grad():
        expected = model(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = tuned(x)
        graph.replay()
        torch.testing.assert_close(output, expected)
        (choice,) = tuned.choices.values()
        assert choice.tier is Tier.REFERENCE and "call the model once before" in choice.reason
        assert not [thread for thread in threading.enumerate() if thread.name == "compile"]
        with tunebench.use_policy(wait=True):
            tuned(x)
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            tuned(x)
        (choice,) = tuned.choices.values()
        assert choice.configuration is not None


def test_a_bundle_serves_the_first_call_without_nvrtc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tuned, x = pair()
    problem = tuned.problem(x)
    assert problem is not None
    problems = tmp_path / "problems.json"
    entry = {"kernel": "gemm_scale_bn", "axes": dict(problem.axes), "dtype": problem.dtype, "options": problem.options}
    problems.write_text(json.dumps([{**entry, "options": dict(problem.options)}]), encoding="utf-8")
    architecture = find_device("cuda").architecture
    tunebench.bundle(tmp_path / "bundle", problems=problems, architectures=[architecture])

    def missing(_: NvrtcCompiler) -> NoReturn:
        raise CompilerMissingError("there is no NVRTC")

    monkeypatch.setattr(NvrtcCompiler, "version", missing)
    monkeypatch.setenv("TUNEBENCH_CACHE", str(tmp_path / "empty"))
    monkeypatch.setenv("TUNEBENCH_BUNDLE", str(tmp_path / "bundle"))
    decision.forget_plans()
    with torch.no_grad():
        torch.testing.assert_close(tuned(x), model(x), rtol=1e-4, atol=1e-4)
    (choice,) = tuned.choices.values()
    assert choice.configuration is not None
