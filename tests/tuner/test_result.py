"""Results keep their invariants from the moment they are built."""

import math
from dataclasses import replace

import pytest

from tunebench.tuner.configuration import Configuration
from tunebench.tuner.result import CacheRegime, ErrorFigures, Measurement, Stage, TrialResult, TrialStatus, Verdict

CONFIGURATION = Configuration({"block": 64})
PASSED = Verdict(True, (Stage("values", True, 0.1),), 1e-4)
REFUSED = Verdict(False, (Stage("values", False, 0.1, "off"),), 1e-4, reason="off")
MEASUREMENT = Measurement((1.0, 2.0, 3.0), 2.0, 1.0, 3.0, CacheRegime.COLD, "cuda-event")


@pytest.mark.parametrize("sample", [0.0, -1.0, math.inf, math.nan])
def test_a_sample_is_a_positive_number(sample: float) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        replace(MEASUREMENT, samples_ms=(1.0, sample))


def test_a_median_lies_in_its_interval() -> None:
    with pytest.raises(ValueError, match="inside its interval"):
        replace(MEASUREMENT, low_ms=2.5)


def test_a_verdict_passes_exactly_when_its_stages_do() -> None:
    with pytest.raises(ValueError, match="exactly when"):
        Verdict(True, (Stage("values", False, 0.1),), 1e-4)
    with pytest.raises(ValueError, match="has a reason"):
        Verdict(False, (Stage("values", False, 0.1),), 1e-4)


@pytest.mark.parametrize("status", TrialStatus)
def test_a_measurement_exists_exactly_for_what_was_timed(status: TrialStatus) -> None:
    verdict = PASSED if status.timed else REFUSED if status is TrialStatus.CORRECTNESS else None
    measurement = MEASUREMENT if status.timed else None
    TrialResult(CONFIGURATION, status, verdict=verdict, measurement=measurement, message="why")
    with pytest.raises(ValueError, match="measurement"):
        wrong = None if status.timed else MEASUREMENT
        TrialResult(CONFIGURATION, status, verdict=verdict, measurement=wrong, message="why")


def test_a_correct_trial_was_proven_and_a_failure_says_why() -> None:
    with pytest.raises(ValueError, match="verdict that passed"):
        TrialResult(CONFIGURATION, TrialStatus.CORRECT, measurement=MEASUREMENT)
    with pytest.raises(ValueError, match="refused for correctness"):
        TrialResult(CONFIGURATION, TrialStatus.COMPILE, verdict=REFUSED, message="why")
    with pytest.raises(ValueError, match="says why"):
        TrialResult(CONFIGURATION, TrialStatus.COMPILE)


@pytest.mark.parametrize(
    ("largest", "own", "is_rounding"),
    [
        (1.5e-3, 1e-6, True),
        (1.05e-4, 1e-6, False),  # hardly beyond the bound: another order of sums may pass
        (2.03e-3, 9.9e-4, False),  # the reference rounds as far
        (0.5, 1e-6, False),  # no rounding does that
    ],
)
def test_what_rounds_too_far_is_known_by_its_error(largest: float, own: float, *, is_rounding: bool) -> None:
    figures = ErrorFigures(1.0, largest, largest / 5, own, own / 5, first_wrong_index=7)
    assert replace(REFUSED, errors=figures).rounds_too_far == is_rounding
    assert not REFUSED.rounds_too_far and not replace(PASSED, errors=figures).rounds_too_far
    for other in (replace(figures, first_wrong_index=None), replace(figures, untouched=3)):
        assert not replace(REFUSED, errors=other).rounds_too_far


def test_the_multiple_of_the_reference() -> None:
    figures = ErrorFigures(1.0, 4e-6, 0.0, reference_max_relative=2e-6, reference_relative_norm=0.0)
    assert figures.multiple_of_reference == pytest.approx(2.0)
    assert replace(figures, max_relative=0.0).multiple_of_reference == 0.0
    assert replace(figures, reference_max_relative=0.0).multiple_of_reference == math.inf
