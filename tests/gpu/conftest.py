"""The GPU of these tests."""

from __future__ import annotations

import pytest

from tunebench.tuner.device import Device, find_device


@pytest.fixture(scope="session")
def cuda() -> Device:
    """The first GPU."""
    return find_device("cuda")
