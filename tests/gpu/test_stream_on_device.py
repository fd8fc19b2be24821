"""The product of few rows on CUDA: what the CPU promises too."""

import pytest
from stream_contract import StreamContract

pytestmark = pytest.mark.gpu


class TestStreamOnDevice(StreamContract):
    device = "cuda"
