"""Whatever is taken for "unchanged" is proven on this interpreter, and what fails the proof is replaced."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sample_kernel import WriteKernel

from tunebench.kernels.runtime import guards, ordinary
from tunebench.kernels.runtime.guards import (
    Content,
    _proven,
    _sees_attributes,
    _sees_tables,
    _sees_tensors,
    _unseen,
    same_tensors_in_python,
)

BLIND: dict[str, Callable[[dict[Any, Any]], object]] = {
    "to attributes": lambda table: None if "training" in table else Content(table),
    "to what is replaced": tuple,
    "to what is the same": lambda table: object(),  # noqa: ARG005
}


def test_what_is_relied_upon_here_passes_its_proof() -> None:
    assert _sees_tables(guards.version_of) and _sees_tables(Content)
    assert _sees_attributes(guards.version_of_attributes) and _sees_attributes(Content)
    assert _sees_tensors(guards.same_tensors) and _sees_tensors(same_tensors_in_python)
    assert _unseen() == "" and ordinary.blind == ""


@pytest.mark.parametrize("to", BLIND)
def test_versions_that_miss_a_change_are_replaced(to: str) -> None:
    doubts: list[str] = []
    assert not _sees_attributes(BLIND[to])
    assert _proven([("versions", BLIND[to]), ("", Content)], _sees_attributes, doubts) is Content
    assert doubts == ["versions misses changes on this interpreter"]


@pytest.mark.parametrize("missed", range(5))
def test_a_check_of_tensors_that_misses_one_property_is_replaced(missed: int) -> None:
    def facts(one: torch.Tensor) -> list[object]:
        told: list[object] = [one.dtype, one.device, one.shape, one.requires_grad, type(one)]
        return told[:missed] + told[missed + 1 :]

    def same(*tensors: torch.Tensor) -> guards.SameTensors:
        expected = [*map(facts, tensors)]
        return lambda *others: [*map(facts, others)] == expected

    assert not _sees_tensors(same)


def test_private_code_that_raises_is_replaced() -> None:
    def moved(_: dict[Any, Any]) -> object:
        raise AttributeError("it has another name now")

    doubts: list[str] = []
    assert _proven([("versions", moved), ("", Content)], _sees_tables, doubts) is Content
    assert doubts == ["versions fails on this interpreter (AttributeError)"]


def test_where_operations_cannot_be_watched_no_kernel_runs(
    write_kernel: WriteKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = write_kernel()(), torch.rand(3, 5)
    monkeypatch.setattr(ordinary, "blind", "nothing is known of this PyTorch")
    assert torch.equal(model(x), model.reference_forward(x))
    assert model.choices[None, None].reason == "nothing is known of this PyTorch"


@pytest.mark.slow
def test_the_proof_imports_no_compiler() -> None:
    code = "import sys, torch; import tunebench.kernels.runtime.guards; print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
