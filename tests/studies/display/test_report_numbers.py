"""What the report computes and how it writes numbers, on trials made for the purpose."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import pytest

from tunebench.db.queries.rows import TrialRow
from tunebench.studies.display.report.analysis import (
    INACTIVE,
    best_so_far,
    grid,
    importances,
    marginals,
    pareto_front,
    refusals,
    values_of,
)
from tunebench.studies.display.report.comparison_figures import roofline
from tunebench.studies.display.report.figures import plot_limits
from tunebench.studies.display.report.rates import ceilings, share_words
from tunebench.studies.display.report.style import (
    Scale,
    decimal_unit,
    fixed,
    log_ticks,
    number,
    percent,
    plain,
    ratio_text,
    share_text,
    telling_digits,
    thinned,
    time_unit,
    verdict_text,
)
from tunebench.tuner.ceilings import Occupancy, occupancy
from tunebench.tuner.configuration import Configuration, Value
from tunebench.tuner.device import any_gpu, find_device
from tunebench.tuner.problem import Work
from tunebench.tuner.result import Comparison, Ratio, TrialStatus
from tunebench.tuner.space import SearchSpace, Tunable


def trial(
    position: int,
    median: float | None,
    values: dict[str, Value],
    status: TrialStatus = TrialStatus.CORRECT,
    message: str = "",
) -> TrialRow:
    """A trial of which only these parts matter."""
    parts: dict[str, Any] = {field.name: None for field in fields(TrialRow)}
    parts |= {"number": position, "configuration": Configuration(values), "status": status, "message": message}
    parts |= {"median_ms": median, "low_ms": median, "high_ms": median}
    return TrialRow(**parts)


def test_best_so_far_counts_correct_trials_only() -> None:
    found = [
        trial(0, 3.0, {}),
        trial(1, 1.0, {}, TrialStatus.PRUNED),
        trial(2, None, {}, TrialStatus.COMPILE, "no"),
        trial(3, 4.0, {}),
        trial(4, 2.0, {}),
        trial(5, 2.0, {}),
    ]
    assert best_so_far(found) == [(0, 3.0), (4, 2.0)]
    assert best_so_far(found[1:3]) == []


def test_values_keep_the_order_of_the_space_and_else_their_own() -> None:
    found = [trial(0, 1.0, {"a": 10, "b": "y"}), trial(1, 1.0, {"a": 9, "b": "x"}), trial(2, 1.0, {"a": 100})]
    assert values_of(found) == {"a": ["9", "10", "100"], "b": ["x", "y", INACTIVE]}
    space = SearchSpace((Tunable("b", ("y", "x")), Tunable("a", (100, 9, 10))))
    assert list(values_of(found, space).items()) == [("b", ["y", "x", INACTIVE]), ("a", ["100", "9", "10"])]


def test_marginals_and_grids_are_of_timed_trials() -> None:
    found = [
        trial(0, 3.0, {"a": 1, "b": 1, "c": 7}),
        trial(1, 2.0, {"a": 1, "b": 2, "c": 7}),
        trial(2, 1.0, {"a": 2, "b": 1, "c": 7}),
        trial(3, 5.0, {"a": 1, "b": 1, "c": 7}),
    ]
    by_name = {marginal.tunable: marginal for marginal in marginals(found)}
    assert set(by_name) == {"a", "b"}
    assert by_name["a"].values == ("1", "2")
    assert by_name["a"].times_ms == ((3.0, 2.0, 5.0), (1.0,))
    assert grid(found, across="a", down="b").best_ms == ((3.0, 1.0), (2.0, None))


def test_the_tunable_that_decides_is_the_most_important() -> None:
    found = [
        trial(20 * a + 4 * b + c, 1.0 + a + 0.01 * b, {"a": a, "b": b, "c": c, "always": True})
        for a in range(5)
        for b in range(5)
        for c in range(4)
    ]
    shares = importances(found)
    assert next(iter(shares)) == "a" and shares["a"] > 0.5
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["c"] < 0.1 and "always" not in shares
    assert importances(found[:9]) == {}
    assert importances([trial(position, 1.0 + position, {"always": 1}) for position in range(20)]) == {}


def test_a_tunable_that_is_rarely_active_has_an_importance() -> None:
    found = [
        trial(position, 1.0 + position % 7, {"a": position % 3} | ({"b": position % 2} if position % 3 == 0 else {}))
        for position in range(30)
    ]
    assert set(importances(found)) == {"a", "b"}


def test_refusals_that_differ_in_numbers_only_are_one() -> None:
    found = [
        trial(0, None, {}, TrialStatus.CORRECTNESS, "seed 1: error 2.5e-3 at 17\nmore"),
        trial(1, None, {}, TrialStatus.CORRECTNESS, "seed 2: error 9 at 3"),
        trial(2, None, {}, TrialStatus.RUNTIME, "seed 2: error 9 at 3"),
        trial(3, None, {}, TrialStatus.COMPILE, "\n  \n"),
        trial(4, 1.0, {}),
    ]
    seen = [(refusal.status, refusal.count, refusal.reason, refusal.trial) for refusal in refusals(found)]
    assert seen == [
        (TrialStatus.CORRECTNESS, 2, "seed 1: error 2.5e-3 at 17", 0),
        (TrialStatus.RUNTIME, 1, "seed 2: error 9 at 3", 2),
        (TrialStatus.COMPILE, 1, "no reason given", 3),
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.0, "1"),
        (0.41883, "0.4188"),
        (12345.6, "12,350"),
        (1999.6, "2,000"),
        (2.70581, "2.706"),
        (1e-7, "1.000e-07"),
        (3.2e9, "3.200e+09"),
        (-2.5, "-2.5"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_numbers_that_stand_beside_each_other_keep_their_zeros() -> None:
    assert fixed(2.7, 4) == "2.700"
    assert ratio_text(Ratio(1.01, 1.0, 1.02, 40, 0.95)) == "1.010× [1.000, 1.020]"
    assert share_text(Ratio(0.9, 0.8, 0.95, 40, 0.95)) == "90.0 % [80.0, 95.0]"
    assert telling_digits([2.701, 2.706]) == 5
    assert telling_digits([1.0, 2.0]) == telling_digits([1.0, 1.0]) == 3
    assert percent(0.4) == "40.0 %" and percent(0.0001) == "< 0.1 %" and percent(0.0) == "0.0 %"


H200 = replace(any_gpu("sm_90"), name="NVIDIA H200", multiprocessors=132)
WORK = Work(bytes=4_000_000_000, operations=8_000_000_000)


def compared(best_ms: float, copy_ms: float = 1.0) -> Comparison:
    """A comparison of which only the medians matter."""
    medians = {"best": best_ms, "reference": 2.0, "copy": copy_ms}
    return Comparison(Configuration({}), medians, {name: (time,) for name, time in medians.items()}, {})


def test_a_rate_is_a_share_of_the_lowest_ceiling_above_it() -> None:
    known = ceilings(H200, compared(1.25), WORK, 1980)
    assert known.bytes_per_second == pytest.approx(4e12)
    assert known.roofs == pytest.approx({"fp32": 66.9e12, "half tensor cores": 1070.5e12}, rel=1e-3)
    figure = roofline(compared(1.25), WORK, known, "")
    assert figure is not None and "best 80 % of memory, reference 50 % of memory" in figure.label
    assert share_words(60e12, 100.0, known) == "89.7 % of fp32"
    assert share_words(100e12, 100.0, known) == "25 % of memory"
    assert share_words(100e12, 1000.0, known) == "9.34 % of half tensor cores"
    for rate, intensity in ((5.1e12, 1.0), (1100e12, 1000.0)):
        assert share_words(rate, intensity, known).startswith("beyond the ceilings")


def test_where_no_ceiling_is_known_none_is_drawn() -> None:
    for device, copy in ((find_device("cpu"), "copy"), (H200, "none")):
        comparison = compared(1.25)
        comparison = replace(
            comparison, medians_ms={copy if n == "copy" else n: t for n, t in comparison.medians_ms.items()}
        )
        known = ceilings(device, comparison, WORK, 1980)
        assert known.bytes_per_second is None and known.account
        assert roofline(comparison, WORK, known, "") is None
    assert ceilings(H200, compared(1.0), WORK, None).roofs == {}, "no clock was recorded"


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks", "share", "bound"),
    [
        (256, 32, 0, 8, 1.0, "threads"),
        (256, 64, 0, 4, 0.5, "registers"),
        (256, 255, 0, 1, 0.125, "registers"),
        (128, 32, 100 * 1024, 2, 0.125, "shared memory"),
        (32, 16, 0, 32, 0.5, "blocks"),
        (384, 168, 200 * 1024, 1, 0.1875, "registers"),
    ],
)
def test_occupancy(threads: int, registers: int, shared: int, blocks: int, share: float, bound: str) -> None:
    assert occupancy(H200, threads, registers, shared) == Occupancy(blocks, share, bound)
    assert occupancy(find_device("cpu"), threads, registers, shared) is None


def test_nothing_on_the_front_is_beaten_in_both() -> None:
    points = [(3.0, 1.0), (1.0, 5.0), (2.0, 2.0), (2.0, 3.0), (4.0, 1.0), (3.5, 0.5)]
    assert pareto_front(points) == [(1.0, 5.0), (2.0, 2.0), (3.0, 1.0), (3.5, 0.5)]
    assert pareto_front([]) == []


def test_units() -> None:
    assert time_unit(0.1).text(0.1) == "100 µs"
    assert time_unit(3.0).text(3.0) == "3 ms"
    assert time_unit(9000.0).text(9000.0) == "9 s"
    assert decimal_unit(4.2e12, "B/s").text(4.2e12) == "4.2 TB/s"
    assert decimal_unit(10.0, "op/s").text(10.0) == "10 op/s"


def test_a_verdict_takes_the_interval_seriously() -> None:
    assert verdict_text(Ratio(1.1, 1.05, 1.2, 40, 0.95).decision) == "faster"
    assert verdict_text(Ratio(1.1, 0.99, 1.2, 40, 0.95).decision) == "inconclusive"
    assert verdict_text(Ratio(1.01, 0.99, 1.02, 40, 0.95).decision) == "a tie"
    assert verdict_text(Ratio(0.5, 0.4, 0.6, 40, 0.95).decision) == "slower"


@pytest.mark.parametrize(("low", "high"), [(1.0, 4.0), (0.3, 30.0), (1e-3, 1e4), (2.1, 8.7), (1.0, 1e30)])
def test_logarithmic_axes_have_a_few_round_ticks(low: float, high: float) -> None:
    ticks = log_ticks(low, high)
    assert 2 <= len(ticks) <= 10
    assert all(low <= tick <= high for tick in ticks)


def test_scales_are_logarithmic_where_values_lie_far_apart() -> None:
    assert not Scale.over([1.0, 2.9]).logarithmic
    assert Scale.over([1.0, 4.0]).logarithmic
    alone = Scale.over([5.0])
    assert alone.low < 5.0 < alone.high


def test_text_of_a_plot_is_harmless_and_short() -> None:
    assert plain("<b>&</b>") == "&lt;b&gt;&amp;&lt;/b&gt;"
    assert len(plain("x" * 1000, 10)) == 10


def test_thinning_keeps_both_ends() -> None:
    assert thinned(range(5), 10) == [0, 1, 2, 3, 4]
    kept = thinned(range(1000), 11)
    assert len(kept) == 11 and kept[0] == 0 and kept[-1] == 999


def test_hopeless_trials_do_not_set_the_range() -> None:
    assert plot_limits([1.0, 1.1, 1.2, 500.0], bests=[1.0, 1.2]) == (1.0, pytest.approx(1.3 * 1.2))
    assert plot_limits([1.0, 1.1], bests=[1.0, 1.1]) == (1.0, 1.1)
    assert not math.isnan(plot_limits([2.0], bests=[2.0])[1])
