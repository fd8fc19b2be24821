"""Documents as the database keeps them, and the columns that stand beside them: each is taken from its document here.

A fact that SQL should have in a column is a line here, one in `schema.tables` and one in `schema.views`; any other is
in the document as soon as its dataclass has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from tunebench.tuner.result import Baseline, Ratio, TrialStatus, is_conclusive, late_message
from tunebench.tuner.timing.statistics import control_of

Document: TypeAlias = dict[str, Any]


def build_columns(document: Mapping[str, Any]) -> Document:
    """The columns of a build: the largest figures over its entry points."""
    figures = list(document["figures"].values())
    return {
        "registers": _largest(figures, lambda one: one["registers"]),
        "spill_bytes": _largest(figures, lambda one: one["spill_stores"] + one["spill_loads"]),
        "shared_bytes": _largest(figures, lambda one: one["shared"]),
        "seconds": document["seconds"],
    }


def _largest(figures: list[Document], figure: Callable[[Document], int]) -> int | None:
    """The largest where the compiler says it of any entry point."""
    found = []
    for one in figures:
        try:
            found.append(figure(one))
        except TypeError:  # None and None
            continue
    return max((number for number in found if number is not None), default=None)


def trial_columns(document: Mapping[str, Any]) -> Document:
    """The columns of a trial, as it stands: one that was refused after it was recorded as correct has no time."""
    refusal, verdict = document["late_refusal"], document["verdict"] or {}
    measured = (None if refusal else document["measurement"]) or {}
    samples = measured.get("samples_ms")
    return {
        "status": TrialStatus.CORRECTNESS.value if refusal else document["status"],
        **{name: measured.get(name) for name in ("median_ms", "low_ms", "high_ms", "regime", "clock")},
        "sample_count": None if samples is None else len(samples),
        "max_relative_error": _number(verdict.get("max_relative")),
        "tolerance": _number(verdict.get("tolerance")),
        "message": late_message(refusal["stage"], refusal["detail"]) if refusal else document["message"],
    }


def comparison_columns(document: Mapping[str, Any]) -> Document:
    """The columns of a comparison: the best's median, its speed-ups with their intervals, and whether they decide."""
    contenders, ratios = document["contenders"], document["speed_ups"]
    columns: Document = {"best_ms": contenders.get("best", {}).get("median_ms")}
    for baseline in Baseline:
        for part, ending in (("ratio", ""), ("low", "_low"), ("high", "_high")):
            columns[f"over_{baseline.value}{ending}"] = _number(ratios.get(baseline.value, {}).get(part))
    control = control_of({name: tuple(one["samples_ms"]) for name, one in contenders.items()})
    return columns | {"conclusive": is_conclusive(control, ratio_of(ratios, Baseline.REFERENCE))}


def ratio_of(speed_ups: Mapping[str, Any], baseline: Baseline) -> Ratio | None:
    """A comparison's speed-up over a baseline; None where that one took no part."""
    one = speed_ups.get(baseline.value)
    if one is None:
        return None
    return Ratio(float(one["ratio"]), float(one["low"]), float(one["high"]), one["rounds"], one["confidence"])


def _number(figure: float | str | None) -> float | None:
    """JSON has no infinity, so that a document has it as text."""
    return None if figure is None else float(figure)
