"""The linear kernels at every batch from 1 to 16384: `python -m tests.benchmarks.batches --json FILE`, on a GPU.

Prints and writes, row by row, how many times faster than eager are torch.compile (its own mode, for that shape alone),
the tuned model and the frozen one, on the device, in the same rounds, without gradients, and what serves. Batches that
nobody measured have their duel in the first call. The same command goes on after a cut-off.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import torch
from tests.benchmarks.problems import device_ratios
from tests.benchmarks.rows import Row, Rows, require_gpu

from tunebench.kernels.runtime.policy import set_policy
from tunebench.kernels.runtime.registry import load_model
from tunebench.studies.display.report.style import COLOURS, OTHER_COLOUR
from tunebench.tuner.kernel import Mode

KERNELS = ("gemm_sigmoid_residual", "gemm_scale_bn")
BATCHES = tuple(1 << power for power in range(15))
_MODELS = {"frozen": "tuned, frozen", "eval": "tuned", "compiled": "torch.compile"}
_COLOURS = {"frozen": COLOURS["best"], "eval": "#7a9e3c", "compiled": OTHER_COLOUR}
_DASHES = {"gemm_sigmoid_residual": "solid", "gemm_scale_bn": "dot"}


def measured(name: str, batch: int) -> Row:
    """One batch of one kernel."""
    device = torch.device("cuda")
    factory = load_model(name)
    source = factory.kernel.reference({"batch_size": batch})
    torch._dynamo.reset()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference, inputs = Mode.EVAL.put(source.make_model(0, device)), source.make_inputs(1, device)
        models: dict[str, Any] = {
            "reference": reference,
            "compiled": torch.compile(reference, dynamic=False),
            **{mode.value: mode.put(source.make_model(0, device, factory)) for mode in (Mode.EVAL, Mode.FROZEN)},
        }
        for model in models.values():
            model(*inputs)
        ratios = device_ratios({key: partial(model, *inputs) for key, model in models.items()})
    served = {
        mode.value: str(next(iter(models[mode.value].choices.values())).reason) for mode in (Mode.EVAL, Mode.FROZEN)
    }
    return {
        "kernel": name,
        "batch": batch,
        **{key: [one.value, one.low, one.high] for key, one in ratios.items()},
        "served": served,
    }


def picture(rows: Sequence[Mapping[str, Any]], device: str) -> go.Figure:
    """One line a kernel and model."""
    plot = go.Figure()
    for model, label in _MODELS.items():
        for kernel in KERNELS:
            own = sorted((row for row in rows if row["kernel"] == kernel), key=lambda row: row["batch"])
            plot.add_scatter(
                x=[row["batch"] for row in own],
                y=[row[model][0] for row in own],
                error_y={
                    "type": "data",
                    "array": [row[model][2] - row[model][0] for row in own],
                    "arrayminus": [row[model][0] - row[model][1] for row in own],
                    "thickness": 1,
                    "width": 2,
                },
                name=f"{kernel}, {label}",
                mode="lines+markers",
                line={"color": _COLOURS[model], "dash": _DASHES[kernel]},
                marker={"size": 5},
            )
    ticks = [1, 1.5, 2, 3, 4, 5, 6, 7]
    plot.update_xaxes(
        type="log",
        tickvals=BATCHES,
        ticktext=[str(batch) for batch in BATCHES],
        title=f"rows, of 8192 → 8192 features, on one {device}",
    )
    plot.update_yaxes(
        type="log",
        tickvals=ticks,
        ticktext=[f"{tick}×" for tick in ticks],
        gridcolor="#e3e6ea",
        title="times as fast as eager",
    )
    plot.update_layout(
        width=960,
        height=520,
        template="none",
        paper_bgcolor="white",
        plot_bgcolor="white",
        font={"size": 14, "family": "DejaVu Sans, sans-serif", "color": "#1d2329"},
        margin={"l": 80, "r": 20, "t": 20, "b": 150},
        legend={"orientation": "h", "y": -0.2, "yanchor": "top", "x": 0},
    )
    plot.add_hline(y=1, line={"color": "#59636e", "width": 1.5})
    return plot


def _line(row: Row) -> str:
    shown = "".join(
        f"  {_MODELS[key]} {f'{row[key][0]:.3f}× [{row[key][1]:.3f}, {row[key][2]:.3f}]':24}" for key in _MODELS
    )
    return f"{row['kernel']:22}{row['batch']:6}{shown}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    require_gpu()
    set_policy(wait=True)
    with Rows(asked.json, ("kernel", "batch"), _line) as rows:
        for batch in BATCHES:
            for name in KERNELS:
                if not rows.has(name, batch):
                    rows.add(measured(name, batch))


if __name__ == "__main__":
    main()
