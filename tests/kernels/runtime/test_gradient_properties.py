"""Over random modules with dropout, noise, moved buffers and several results: what a tuned model gives, trains and
leaves behind is its reference's, under every policy."""

from __future__ import annotations

import pytest
import torch
from random_modules import check_random_module
from sample_kernel import WriteKernel

from tunebench.kernels.runtime import dispatch


@pytest.mark.parametrize(
    "first", [*range(0, 20, 10), *(pytest.param(n, marks=pytest.mark.slow) for n in range(20, 200, 20))]
)
def test_gradients_are_the_references(write_kernel: WriteKernel, first: int) -> None:
    for seed in range(first, first + (10 if first < 20 else 20)):
        assert check_random_module(write_kernel, seed, torch.device("cpu")) == ""


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (10, 20, 30))])
def test_so_are_those_of_calls_that_are_watched_instead_of_traced(
    write_kernel: WriteKernel, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "is_quick_to_trace", lambda: False)
    for seed in range(first, first + 10):
        assert check_random_module(write_kernel, seed, torch.device("cpu"), wait=False) == ""
