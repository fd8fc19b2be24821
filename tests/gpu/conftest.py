"""The GPU of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tunebench.tuner.device import Device, find_device


@pytest.fixture(scope="session")
def cuda() -> Device:
    """The first GPU."""
    return find_device("cuda")


@pytest.fixture(scope="module", autouse=True)
def _memory_given_back() -> Iterator[None]:
    """Leave the GPU's memory to other workers: one file's largest tensors are half of it."""
    yield
    torch.cuda.empty_cache()
