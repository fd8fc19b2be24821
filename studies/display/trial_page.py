"""Everything about one trial, printed for people and as plain values for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from tunebench.db.queries.one_trial import TrialDetails, WonComparison
from tunebench.kernels.runtime.registry import kernel_names, load_model
from tunebench.studies.display.tables import row_values, speedup_values, values_of
from tunebench.studies.display.terminal import print_facts, print_line, print_table, printable
from tunebench.tuner.build import BuildRecord
from tunebench.tuner.result import Conditions, Decision, Measurement, Verdict
from tunebench.tuner.settings import described


@dataclass(frozen=True)
class CurrentSource:
    """The shipped kernel's source, where it is the one that a trial ran.

    Attributes:
        text: None where it is another one now, or the kernel does not ship with this tunebench.
        reason: in one line, which of these it is.
    """

    text: str | None
    reason: str


def current_source(details: TrialDetails) -> CurrentSource:
    """The source of a trial. A database has its digest only, so the text must be here and unchanged."""
    name, digest = details.row.kernel, details.row.source_digest
    if name not in kernel_names():
        return CurrentSource(None, f"the source of '{name}' is not here: it does not ship with this tunebench")
    kernel = load_model(name).kernel
    if kernel.digest != digest:
        return CurrentSource(
            None, f"'{name}' ships with another source now ({kernel.digest[:12]}): its text is not shown"
        )
    return CurrentSource(kernel.source.text, f"'{name}' ships with this very source")


def detail_values(details: TrialDetails, *, source: CurrentSource | None = None) -> dict[str, object]:
    """A trial as plain values for `--json`.

    Args:
        source: None to leave it out.
    """
    trial, build, verdict = details.trial, details.trial.build, details.verdict
    values: dict[str, object] = {
        **row_values(details.row),
        "study_begun_at": details.study.begun_at.isoformat(),
        "space_digest": details.study.space_digest,
        "origin": details.study.origin.uid,
        "device_facts": {name: value for name, value in asdict(details.study.device).items() if name != "index"},
        "environment": asdict(trial.environment),
        "build": asdict(build) | {"cached": trial.build_cached} if build else None,
        "verdict": asdict(verdict) if verdict else None,
        "warm_start_from": details.warm_start_from,
        "counters": [asdict(one) for one in trial.counters],
        "comparisons": [_comparison_values(one) for one in details.comparisons],
    }
    # Whatever else a result has.
    values |= {name: value for name, value in asdict(trial.result).items() if name not in values}
    if source is not None:
        values["source"] = {"text": source.text, "reason": source.reason}
    return values


def _comparison_values(won: WonComparison) -> dict[str, object]:
    comparison = won.comparison
    speedups = speedup_values(comparison)
    names = ("medians_ms", "samples_ms", "control", "conclusive", "conditions", "missing", "energies_mj", "unasked")
    return values_of(won, "concluded_at", "environment") | values_of(comparison, *names, speedups=speedups)


def print_details(details: TrialDetails, *, log: bool = False, source: CurrentSource | None = None) -> None:
    """A trial for people, section by section.

    Args:
        log: the compiler's full output as well.
        source: None to leave it out.
    """
    row, trial = details.row, details.trial
    title = f"trial {row.trial_id}: {row.kernel} ({row.problem}), trial {row.number} of study {row.study_id}"
    print_facts(title, _facts(details))
    print_facts("configuration", [(name, str(value)) for name, value in row.configuration.items()])
    device = asdict(details.study.device).items()
    print_facts("device", [(name, str(value)) for name, value in device if name != "index"])
    print_facts("environment", [(name, str(value)) for name, value in asdict(trial.environment).items()])
    if trial.build is not None:
        _print_build(trial.build, trial.build_cached, log=log)
    if details.verdict is not None:
        _print_verdict(details.verdict)
    if trial.result.measurement is not None:
        _print_measurement(trial.result.measurement)
    for won in details.comparisons:
        _print_comparison(won)
    if source is not None:
        _text(source.reason, source.text or "")


def _facts(details: TrialDetails) -> list[tuple[str, str]]:
    row = details.row
    facts = [
        ("status", row.status.value),
        ("message", row.message),
        ("warm start from", details.warm_start_from or ""),
        ("recorded", row.recorded_at.isoformat(timespec="seconds")),
        ("seconds", ", ".join(f"{phase} {seconds:.3g}" for phase, seconds in details.trial.result.seconds.items())),
        ("eager", described(row.problem.options)),
        ("sampler", f"{row.sampler}, seed {row.seed}"),
        ("compiler", row.compiler),
        ("source", row.source_digest),
        ("space", details.study.space_digest),
        ("study began", f"{details.study.begun_at.isoformat(timespec='seconds')}, database {details.study.origin.uid}"),
    ]
    return [(name, value) for name, value in facts if value]


def _print_build(build: BuildRecord, cached: bool | None, *, log: bool) -> None:
    facts = [
        ("compiler", f"{build.compiler}, {build.compiler_version}"),
        ("binary", f"{build.code_bytes:,} bytes, SHA-256 {build.code_sha256}"),
        ("variant", build.variant_digest),
        ("compiling took", f"{build.seconds:.3g} s" + (", here from the cache" if cached else "")),
        ("log", f"{len(build.log.splitlines())} lines" + ("" if log else ": see --log")),
    ]
    print_facts("build", facts)
    if build.figures:
        rows = [
            (entry_point, *("" if value is None else str(value) for value in asdict(figures).values()))
            for entry_point, figures in build.figures.items()
        ]
        units = ("registers", "spill stores, B", "spill loads, B", "stack, B", "shared, B")
        print_table(("entry point", *units), rows)
    if log:
        _text("compiler's log", build.log)


def _print_verdict(verdict: Verdict) -> None:
    outcome = "passed" if verdict.passed else f"refused: {verdict.reason}"
    print_facts("verdict", [("outcome", outcome), ("tolerance", f"{verdict.tolerance:.3g}")])
    rows = [
        (stage.name, "yes" if stage.passed else "NO", f"{stage.seconds:.3g} s", stage.detail)
        for stage in verdict.stages
    ]
    print_table(("stage", "passed", "took", "found"), rows)
    if verdict.errors is not None:
        figures = asdict(verdict.errors).items()
        print_facts("error figures", [(name.replace("_", " "), _figure(value)) for name, value in figures])


def _figure(value: float | None) -> str:
    return "none" if value is None else f"{value:.6g}" if isinstance(value, float) else f"{value:,}"


def _print_measurement(measurement: Measurement) -> None:
    samples = measurement.samples_ms
    facts = [
        ("median", f"{measurement.median_ms:.6g} ms [{measurement.low_ms:.6g}, {measurement.high_ms:.6g}]"),
        ("caches", measurement.regime.value),
        ("clock", measurement.clock),
        *([] if measurement.energy_mj is None else [("energy of a call", f"{measurement.energy_mj:.4g} mJ")]),
        (f"{len(samples)} samples, ms", " ".join(f"{sample:.5g}" for sample in samples)),
        *_conditions(measurement.conditions),
    ]
    print_facts("measurement", facts)


def _conditions(conditions: Conditions) -> list[tuple[str, str]]:
    """Return what is known of the device's state, as pairs of name and text."""
    units = {"control_ms": ("control call", "ms"), "sm_clock_mhz": ("SM clock", "MHz")} | {
        "memory_clock_mhz": ("memory clock", "MHz"),
        "temperature_c": ("temperature", "°C"),
        "throttle_reasons": ("throttled by", ""),
        "foreign_processes": ("other processes", ""),
    }
    values = ((*units[name], value) for name, value in vars(conditions).items() if value not in (None, ""))
    return [(name, f"{value:.5g} {unit}".strip() if unit else str(value)) for name, unit, value in values]


def _print_comparison(won: WonComparison) -> None:
    comparison, environment = won.comparison, won.environment
    speedups = {
        baseline.value: (str(ratio), str(comparison.decision(baseline)))
        for baseline, ratio in comparison.speedups.items()
    }
    rows = [
        (name, f"{median_ms:.6g} ms", str(len(comparison.samples_ms[name])), *speedups.get(name, ("", "")))
        for name, median_ms in comparison.medians_ms.items()
    ]
    rows += [(baseline.value, "", "", f"missing: {reason}", "") for baseline, reason in comparison.missing.items()]
    deed = "won a comparison" if comparison.conclusive else "led in an inconclusive comparison"
    title = f"{deed} at {won.concluded_at.isoformat(timespec='seconds')}, torch {environment.torch}"
    title += f", driver {environment.driver}" if environment.driver else ""
    print_table(("contender", "median", "rounds", "times slower than the best", "the best is"), rows, title)
    if comparison.unasked:
        print_line(f"not asked: no time was left for {'; '.join(comparison.unasked)}")
    if comparison.control is not None:
        said = {Decision.TIE: "a tie, as it must", Decision.INCONCLUSIVE: "too wide to tell"}.get(
            comparison.control.decision, f"{comparison.control.decision}: these rounds decide nothing"
        )
        control = [("second copy of a baseline over the first", f"{comparison.control}, {said}")]
        print_facts("control", control + _conditions(comparison.conditions))


def _text(title: str, text: str) -> None:
    """Text as it is: folded nowhere, nothing in it taken for markup."""
    print(printable(f"{title}:"))
    if text:
        print(printable(text))
