"""Whole models by our back end beside eager and torch.compile: `python -m tests.benchmarks.models --json FILE`.

Each of `whole_models.py`, in fp32 with TF32 permitted and in bf16: a forward without gradients in eval mode, and a
training step (forward, and the parameters' gradients) in train mode. The regions are tuned first, and the whole model
is compared, as `optimize` does; results and kernels go where TUNEBENCH_DB says, and what is known there is not tuned
again. Each side has every `--mode` of `torch.compile`; regions are those of the first. A row's ratio is the fastest of
theirs over the fastest of ours, timed in the same rounds; its error the largest against float64, of outputs and
gradients, as a multiple of what the gate allows. It is right with one at most, or no more than torch.compile's own,
whose code most of the model still has. The file is written row by row: the same command goes on after a cut-off, and
makes rows that failed once more.
"""

from __future__ import annotations

import gc
import math
import statistics
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import torch
import typer
from tests.benchmarks.rows import Row, Rows
from tests.benchmarks.steps import SETTINGS, under
from tests.benchmarks.whole_models import MODELS
from torch import nn
from torch.utils._pytree import tree_leaves

from tunebench.db.connection.database import open_database
from tunebench.studies.inductor.backend import tunebench
from tunebench.studies.inductor.optimize import optimize_regions, print_report, values_of_report
from tunebench.studies.inductor.whole import faster_model
from tunebench.tuner.device import Device, find_device
from tunebench.tuner.gate.case import expect
from tunebench.tuner.gate.float64 import in_float64, widened
from tunebench.tuner.gate.gradients import Backward, gradients_of
from tunebench.tuner.gate.values import in_type, mapped
from tunebench.tuner.problem import Work
from tunebench.tuner.timing.confirm import confirm
from tunebench.tuner.timing.measure import Call, Control, clocks_for
from tunebench.tuner.timing.statistics import control_ratio, medians_of, speedup
from tunebench.tuner.timing.torch_compile import without_reports

EAGER = "eager"
KINDS = ("forward", "step")
_OURS = "tunebench "
_WARMING = 4
"""Calls that compile, and record a CUDA graph."""


def made(name: str, kind: str, dtype: torch.dtype, device: torch.device, *, small: bool) -> tuple[nn.Module, Any]:
    """Make a model and its inputs, the same in every process."""
    torch.manual_seed(0)
    model, inputs = MODELS[name](small)
    change = in_type(dtype)
    return (
        model.to(device, dtype).train(kind == "step"),
        tuple(mapped(one, lambda tensor: change(tensor.to(device))) for one in inputs),
    )


def answers(model: nn.Module, inputs: Sequence[Any], kind: str) -> dict[str, torch.Tensor]:
    """Return a model's outputs, and in a step the gradients of its parameters, by name."""
    torch.compiler.cudagraph_mark_step_begin()
    found = gradients_of(model, inputs, Backward(inputs=False, course="fb" if kind == "step" else "n")).found
    return {name.replace("_orig_mod.", ""): tensor.clone() for name, tensor in found.items()}


def errors_of(models: Mapping[str, nn.Module], inputs: Sequence[Any], kind: str) -> dict[str, float]:
    """Return each model's largest error against the first in float64, as a multiple of what the gate allows."""
    reference = models[EAGER]
    with in_float64(reference, inputs):
        exact = answers(reference, [*map(widened, inputs)], kind)
    expected = {name: expect(own, exact[name]) for name, own in answers(reference, inputs, kind).items()}
    size = max(float(one.scale.max()) for one in expected.values())
    for name, one in expected.items():
        if float(one.values.abs().max()) <= torch.finfo(torch.float32).eps * size:
            expected[name] = one.relative_to(size)  # rounding alone, as of a bias in front of a normalisation
    errors = {}
    for model_name, model in models.items():
        found = answers(model, inputs, kind)
        assert found.keys() == expected.keys()
        errors[model_name] = max(one.errors_of(found[name]).max_relative / one.bound for name, one in expected.items())
    return errors


def call_of(model: nn.Module, inputs: Sequence[Any], kind: str) -> Call:
    """Return a call as a program makes it, warmed up."""
    parameters = [*model.parameters()]
    incoming: list[torch.Tensor] = []

    def forward() -> list[torch.Tensor]:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.set_grad_enabled(kind == "step"):
            return cast(list[torch.Tensor], tree_leaves(model(*inputs)))

    def step() -> object:
        return torch.autograd.grad(forward(), parameters, incoming)

    if kind == "step":
        incoming += map(torch.randn_like, forward())
    call = step if kind == "step" else forward
    for _ in range(_WARMING):
        call()
    return call


def milliseconds_and_ratio(calls: Mapping[str, Call], twin: Call, size: int, device: Device) -> Row:
    """Time calls in rounds, and compare the fastest of ours with the fastest of theirs."""
    clock = clocks_for(device, Work(size, 1 << 62))[-1]
    samples = confirm(calls, EAGER, twin, clock, Control(device, clock))
    medians = medians_of(samples)
    theirs, ours = (
        min((one for one in calls if one.startswith(_OURS) is is_ours), key=medians.__getitem__)
        for is_ours in (False, True)
    )
    ratio = speedup(samples[ours], samples[theirs])
    return {
        "ms": medians,
        "theirs": theirs,
        "ours": ours,
        "ratio": [ratio.value, ratio.low, ratio.high],
        "unsteady": control_ratio(samples, EAGER).differs,
    }


def measure(
    name: str, setting: str, kind: str, device: Device, *, seconds: float, modes: Sequence[str], small: bool
) -> Row:
    """Tune a model's regions, compile it in every way, and judge and time what comes of it."""
    dtype, permits_tf32 = SETTINGS[setting]
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()
    model, inputs = made(name, kind, dtype, device.torch_device, small=small)
    with under(permits_tf32), torch.set_grad_enabled(kind == "step"):
        with open_database() as database:
            report = optimize_regions(model, inputs, seconds, database, lambda _: lambda _: None, modes[0])
        faster_model(report, model, inputs, modes[0])
        print_report(report)
        models: dict[str, Any] = {EAGER: model}
        for mode in modes:
            models[mode] = torch.compile(model, mode=mode, dynamic=False)
            models[_OURS + mode] = torch.compile(model, backend=tunebench, mode=mode, dynamic=False)
        with without_reports():
            calls = {one: call_of(each, inputs, kind) for one, each in models.items()}
        errors = errors_of(models, inputs, kind)
        size = sum(one.nbytes for one in (*inputs, *model.parameters()))
        times = milliseconds_and_ratio(calls, call_of(model, inputs, kind), size, device)
    served = [one for one in report.regions if one.evidence is not None and one.evidence.is_faster]
    return {
        "model": name,
        "setting": setting,
        "kind": kind,
        **times,
        "errors": errors,
        "right": all(errors[_OURS + mode] <= max(1.0, errors[mode]) for mode in modes),
        "served": len(served),
        "share": sum(one.found.share for one in served),
        "share_of_regions": sum(one.found.share for one in report.regions),
        "regions": values_of_report(report),
    }


def line(row: Row) -> str:
    """Say a row in one line."""
    value, low, high = row["ratio"]
    found = len(row["regions"])
    ours = [name for name in row["errors"] if name.startswith(_OURS)]
    error = max(row["errors"][name] for name in ours)
    theirs = max(one for name, one in row["errors"].items() if name not in (EAGER, *ours))
    times = ", ".join(f"{name} {taken:.4g}" for name, taken in row["ms"].items() if name != "control")
    return (
        f"{row['model']:17} {row['setting']:5} {row['kind']:8} {value:.3f}× [{low:.3f}, {high:.3f}]"
        f"{' unsteady' if row['unsteady'] else ''}  {'right' if row['right'] else 'WRONG'} ({error:.2g} of the bound,"
        f" torch.compile's {theirs:.2g})"
        f"  served {row['served']} of {found} regions, {row['share']:.0%} of {row['share_of_regions']:.0%} of the time"
        f"  ms: {times}"
    )


def summary(rows: Sequence[Row]) -> str:
    """Say what the rows of each setting and kind come to."""
    told = []
    for setting, kind in dict.fromkeys((row["setting"], row["kind"]) for row in rows):
        these = [row for row in rows if (row["setting"], row["kind"]) == (setting, kind)]
        lowest = min(these, key=lambda row: row["ratio"][0])
        mean = math.exp(statistics.fmean(math.log(row["ratio"][0]) for row in these))
        right = sum(row["right"] for row in these)
        told.append(
            f"{setting} {kind}: geometric mean {mean:.3f}×, lowest {lowest['ratio'][0]:.3f}× ({lowest['model']}),"
            f" {right} of {len(these)} right"
        )
    return "\n".join(told)


def main(
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help=f"Of {', '.join(MODELS)}.")] = None,
    setting: Annotated[list[str] | None, typer.Option(help="tf32 or bf16; both by default.")] = None,
    kind: Annotated[list[str], typer.Option(help="forward or step.")] = list(KINDS),  # noqa: B006
    mode: Annotated[list[str], typer.Option(help="Of torch.compile.")] = ["max-autotune-no-cudagraphs", "max-autotune"],  # noqa: B006
    seconds: Annotated[float, typer.Option(min=0, help="Of tuning a model's regions.")] = 60,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    small: Annotated[bool, typer.Option("--small", help="Small sizes, for a CPU.")] = False,
    json: Annotated[Path | None, typer.Option(help="Where the rows go.")] = None,
) -> None:
    """Print a line for each model, setting and kind, and what they come to."""
    found, failed = find_device(device), []
    torch._dynamo.config.recompile_limit = 256
    head = {"seconds": f"{seconds:g}", "modes": " ".join(mode), "sizes": "small" if small else "full"}
    with Rows(json, ("model", "setting", "kind"), line, **head) as rows:
        for key in [(n, s, k) for n in only or MODELS for s in setting or ("tf32", "bf16") for k in kind]:
            if not rows.has(*key):
                try:
                    rows.add(measure(*key, found, seconds=seconds, modes=mode, small=small))
                except Exception:  # noqa: BLE001 - the other rows do not wait for this one to be mended
                    traceback.print_exc()
                    failed.append(" ".join(key))
        print("", *map(line, rows), summary([*rows]), sep="\n")
        if failed:
            raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    typer.run(main)
