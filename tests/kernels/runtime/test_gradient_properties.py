"""Over random modules with dropout, noise, moved buffers and several results: what a tuned model gives, trains and
leaves behind is its reference's, under every policy."""

from __future__ import annotations

import pytest
import torch
from random_modules import check_random_module
from sample_kernel import WriteKernel
from sampling import slow_but

from tunebench.kernels.runtime import dispatch

FIRST = range(10)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds", slow_but([FIRST], [FIRST, range(10, 20), *(range(n, n + 20) for n in range(20, 120, 20))])
)
def test_gradients_are_the_references(write_kernel: WriteKernel, seeds: range) -> None:
    for seed in seeds:
        assert check_random_module(write_kernel, seed, torch.device("cpu")) == ""


@pytest.mark.slow
@pytest.mark.parametrize("first", slow_but([0], range(0, 40, 10)))
def test_so_are_those_of_calls_that_are_watched_instead_of_traced(
    write_kernel: WriteKernel, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "is_quick_to_trace", lambda: False)
    for seed in range(first, first + 10):
        assert check_random_module(write_kernel, seed, torch.device("cpu"), wait=False) == ""
