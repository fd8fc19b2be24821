"""NVML's answers in words; the card itself is asked in tests/gpu."""

import pynvml
import pytest

from tunebench.tuner.nvml import ask, words_of


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        (0x0, "none"),
        (0x1, "none"),
        (0x4, "sw_power_cap"),
        (0x60, "sw_thermal_slowdown,hw_thermal_slowdown"),
        (0x5, "sw_power_cap"),
        (0x8000_0008, "hw_slowdown,0x80000000"),
    ],
)
def test_reasons_in_words(reasons: int, words: str) -> None:
    assert words_of(reasons) == words


def test_what_nvml_refuses_is_none() -> None:
    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    assert ask(refuse) is None
    assert ask(lambda value: value + 1, 2) == 3
