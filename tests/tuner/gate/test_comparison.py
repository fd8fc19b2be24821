"""Error figures against the float64 reference."""

import itertools

import pytest
import torch

from tunebench.tuner.gate.comparison import compare, scale_of
from tunebench.tuner.gate.memory import checksum


def test_error_figures_are_relative_to_the_row() -> None:
    expected = torch.ones(2, 64, dtype=torch.float64)
    expected[1] = 1000.0
    output = expected.clone()
    output[1, 7] += 0.5
    figures = compare(output, expected, scale_of(expected), bound=1e-4)
    assert figures.max_absolute == pytest.approx(0.5)
    assert figures.max_relative == pytest.approx(0.5 / 1000.0)
    assert figures.first_wrong_index == 64 + 7
    assert figures.relative_norm == pytest.approx(0.5 / float(torch.linalg.vector_norm(expected)))


def test_a_row_of_zeros_must_be_met_exactly() -> None:
    expected = torch.zeros(2, 64, dtype=torch.float64)
    expected[0] = 1.0
    output = expected.clone()
    assert compare(output, expected, scale_of(expected), 1e-4).max_relative == 0.0
    output[1, 0] = 1e-30
    assert compare(output, expected, scale_of(expected), 1e-4).max_relative > 1.0


@pytest.mark.parametrize(
    ("got", "wanted", "good"),
    [
        ("inf", "inf", True),
        ("nan", "nan", True),
        ("-inf", "inf", False),
        ("nan", "inf", False),
        ("inf", "nan", False),
        ("1.0", "nan", False),
        ("nan", "1.0", False),
        ("inf", "1.0", False),
    ],
)
def test_what_is_not_finite_must_be_of_the_same_kind(got: str, wanted: str, good: bool) -> None:
    expected = torch.ones(1, 64, dtype=torch.float64)
    expected[0, 9] = float(wanted)
    output = torch.ones(1, 64)
    output[0, 9] = float(got)
    figures = compare(output, expected, scale_of(expected), bound=1e-4)
    assert (figures.max_relative == 0.0) is good
    assert (figures.first_wrong_index is None) is good
    if not good:
        assert figures.max_relative == float("inf")
        assert figures.first_wrong_index == 9


def test_long_outputs_are_compared_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = torch.rand(37, 64, dtype=torch.float64) + 0.5
    output = (expected * (1 + 1e-6)).float()
    output[35, 1] = 9.0
    whole = compare(output, expected, scale_of(expected), 1e-4)
    monkeypatch.setattr("tunebench.tuner.gate.comparison._CHUNK_ELEMENTS", 64 * 5)
    pieces = compare(output, expected, scale_of(expected), 1e-4)
    assert pieces.first_wrong_index == whole.first_wrong_index == 35 * 64 + 1
    assert pieces.max_relative == whole.max_relative
    assert pieces.relative_norm == pytest.approx(whole.relative_norm)


def test_what_stands_beside_a_fill_is_judged_by_its_own_size() -> None:
    expected = torch.rand(2, 64, dtype=torch.float64) + 0.5
    expected[:, ::3] = -1e9
    expected[1] = 1e9 * torch.rand(64, dtype=torch.float64)  # large, and not filled
    assert compare(expected.float(), expected, scale_of(expected), 1e-4).max_relative < 1e-6
    wrong = expected.clone()
    wrong[0, 1] *= 1.01
    figures = compare(wrong, expected, scale_of(expected), 1e-4)
    assert figures.first_wrong_index == 1 and figures.max_relative > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_no_two_elements_change_places_unseen(dtype: torch.dtype) -> None:
    tensor = torch.arange(45).to(dtype)
    before = checksum(tensor)
    for one, other in itertools.combinations(range(45), 2):
        changed = tensor.clone()
        changed[[one, other]] = tensor[[other, one]]
        assert not torch.equal(checksum(changed), before), (one, other)
