"""`bench`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tunebench.studies.faces.cli import options
from tunebench.studies.faces.cli.command import options_of
from tunebench.studies.faces.cli.output import print_csv, print_json, require_one_form

if TYPE_CHECKING:
    from tunebench.studies.checking.bench import Bench, Result
    from tunebench.tuner.result import Ratio


@options_of("request.measure:BenchRequest")
def bench(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET]...", help="Kernels' names or folders, study files, or trials' numbers. Default: shipped."
        ),
    ] = None,
    given: options.Given = options.NOTHING,
    db: options.DatabaseOption = None,
    as_json: options.JsonOption = False,
    as_csv: options.CsvOption = False,
) -> None:
    """Time tuned models against eager, torch.compile and the hand-picked default, all in the same rounds.

    Each model runs as its users run it, choosing its configuration from the database and the shipped results. Speed-ups
    are medians of per-round ratios with 99 % intervals; errors are against float64, as multiples of eager's own.
    """
    import os

    from tunebench.kernels.runtime.registry import kernel_names
    from tunebench.studies.checking.bench import bench as run
    from tunebench.studies.checking.bench import cases_of
    from tunebench.studies.display.terminal import print_line
    from tunebench.studies.request.measure import BenchRequest
    from tunebench.studies.request.options import make

    require_one_form(as_json=as_json, as_csv=as_csv)
    options.require_database(db)
    if db is not None:
        os.environ["TUNEBENCH_DB"] = db  # where the models themselves look
    request = make(BenchRequest, {**given, "database": db}, "bench")
    outcome = run(cases_of(targets or kernel_names(), request), partial(print_line, error=True))
    if as_json:
        print_json(_values(outcome))
    elif as_csv:
        rows = [_flat(result) for result in outcome.results]
        columns = list(dict.fromkeys(name for row in rows for name in row))
        print_csv(columns, [[row.get(name, "") for name in columns] for row in rows])
    else:
        _print(outcome)
    if outcome.failures or not all(result.right for result in outcome.results):
        raise typer.Exit(1)


def _print(outcome: Bench) -> None:
    """Print what explains the table, then the table."""
    from tunebench.studies.checking.bench import COMPILED_DEFAULT
    from tunebench.studies.display.tables import Columns, eager_had, print_listing
    from tunebench.studies.display.terminal import printable
    from tunebench.tuner.result import Baseline

    def say(text: str) -> None:
        print(printable(text))

    for result in outcome.results:
        name = f"{result.kernel} ({result.problem})"
        say(f"{name}: {result.configuration or 'the reference itself'}; {result.reason}")
        for note in result.notes:
            say(f"  {note}")
    for failure in outcome.failures:
        say(f"{failure.case}: failed: {failure.message}")
    environment = outcome.environment
    driver = f", driver {environment.driver}" if environment.driver else ""
    say(f"{outcome.device}, torch {environment.torch}{driver}")
    if outcome.ceilings is not None:
        ceilings = outcome.ceilings
        rates = ", ".join(f"{name} {rate:.3g} TFLOP/s" for name, rate in ceilings.gemm_tflops.items())
        say(f"ceilings: copy {ceilings.copy_gbs:.4g} GB/s, read {ceilings.read_gbs:.4g} GB/s, products {rates}")
    columns: Columns[Result] = {
        "kernel": lambda result: result.kernel,
        "problem": None,
        "eager": lambda result: _milliseconds(result, Baseline.REFERENCE),
        "tuned": lambda result: _milliseconds(result, "tuned"),
        "over eager": lambda result: _ratio(result, Baseline.REFERENCE),
        "over compiled": lambda result: _ratio(result, COMPILED_DEFAULT),
        "over max-autotune": lambda result: _ratio(result, Baseline.COMPILED),
        "over default": lambda result: _ratio(result, Baseline.DEFAULT),
        "of copy": lambda result: _percent(result.speedups.get(Baseline.COPY)),
        "of roofline": lambda result: "" if result.share is None else f"{result.share:.1%} ({result.bound})",
        "error": _error,
        "from": lambda result: result.tier,
    }
    title = "Speed-ups: medians of per-round ratios, 99 % intervals; error: largest, RMS, as multiples of eager's own; "
    title += eager_had(result.problem.options for result in outcome.results)
    print_listing(outcome.results, columns, title)


def _milliseconds(result: Result, name: str) -> str:
    timing = result.timings[name]
    return f"{timing.median_ms:.4g} ms [{timing.low_ms:.4g}, {timing.high_ms:.4g}]"


def _error(result: Result) -> str:
    errors = result.errors["tuned"]
    figures = f"{errors.multiple_of_reference:.2g}×, {errors.rms_multiple_of_reference:.2g}×"
    return figures if result.right else f"{figures} REFUSED"


def _ratio(result: Result, baseline: str) -> str:
    return str(result.speedups.get(baseline, ""))


def _percent(ratio: Ratio | None) -> str:
    return "" if ratio is None else f"{ratio.value:.1%}"


def _values(outcome: Bench) -> dict[str, Any]:
    from tunebench.studies.display.tables import values_of

    return values_of(
        outcome,
        *("environment", "ceilings"),
        device=outcome.device.name,
        architecture=outcome.device.architecture,
        results=[_result_values(result) for result in outcome.results],
        failures=[values_of(failure, "message", case=str(failure.case)) for failure in outcome.failures],
    )


def _result_values(result: Result) -> dict[str, Any]:
    from tunebench.studies.display.tables import values_of
    from tunebench.tuner.settings import described

    figures = ("max_relative", "relative_norm", "multiple_of_reference", "rms_multiple_of_reference")
    return values_of(
        result,
        *("kernel", "problem", "timings", "speedups", "right", "tier", "configuration", "reason", "floor_ms", "bound"),
        *("wrong", "spent", "notes"),
        accuracy=result.problem.accuracy,
        eager=described(result.problem.options),
        errors={str(name): values_of(error, *figures) for name, error in result.errors.items()},
        share_of_roofline=result.share,
    )


def _flat(result: Result) -> dict[str, str]:
    """One row of CSV: figures in milliseconds, and plain ratios."""
    from tunebench.tuner.settings import described

    problem = result.problem
    values: dict[str, object] = {"kernel": result.kernel, "accuracy": problem.accuracy.value, "problem": problem.key}
    values["eager"] = described(problem.options)
    for name, timing in result.timings.items():
        values |= {f"{name}_ms": timing.median_ms, f"{name}_low_ms": timing.low_ms, f"{name}_high_ms": timing.high_ms}
    for baseline, ratio in result.speedups.items():
        over = f"over_{baseline}"
        values |= {over: ratio.value, f"{over}_low": ratio.low, f"{over}_high": ratio.high}
    values |= {
        "share_of_roofline": "" if result.share is None else result.share,
        "bound": result.bound,
        "error_multiple": result.errors["tuned"].multiple_of_reference,
        "rms_error_multiple": result.errors["tuned"].rms_multiple_of_reference,
        "right": str(result.right).lower(),
        "tier": result.tier,
        "configuration": result.configuration.key if result.configuration else "",
    }
    return {name: str(value) for name, value in values.items()}
