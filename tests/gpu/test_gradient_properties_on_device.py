"""Random modules with dropout, noise and moved buffers on a GPU: a tuned model does what its reference does."""

from __future__ import annotations

import pytest
import torch
from random_modules import check_random_module
from sample_kernel import WriteKernel

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_gradients_are_the_references(write_kernel: WriteKernel, first: int) -> None:
    for seed in range(first, first + 20):
        assert check_random_module(write_kernel, seed, torch.device("cuda")) == ""
