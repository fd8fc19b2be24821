"""Linear layers by what programs permit, tuned and beside what people use instead, on a GPU.

`python -m tests.benchmarks.linear_layers [--only PART …] [--seconds 40] [--json FILE]`: of each layer a study, then
eager, torch.compile in three modes, the library's product alone, the tuned model in each call and the frozen one in the
same rounds, without gradients. The first ratio of a row is over the best of eager and both kinds of max-autotune, the
second over the default mode, the third the tuned time over that of the library's product. The file is written row by
row: the same command goes on after a cut-off.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tests.benchmarks.rows import Row, Rows, require_gpu
from torch import nn

from tunebench.kernels.runtime.policy import set_policy
from tunebench.kernels.runtime.registry import load_model
from tunebench.tuner.device import find_device
from tunebench.tuner.isolation import run_isolated
from tunebench.tuner.kernel import Mode
from tunebench.tuner.settings import apply_settings
from tunebench.tuner.timing.confirm import confirm
from tunebench.tuner.timing.measure import Control, clocks_for, pick_clock
from tunebench.tuner.timing.statistics import Samples, speedup
from tunebench.tuner.timing.torch_compile import CompiledReferenceError, compile_reference, end_compilers

_SWIGLU = '''"""Gate and up of a Llama's feed-forward layer."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.gate_proj = nn.Linear(features, hidden, bias=False)
        self.up_proj = nn.Linear(features, hidden, bias=False)

    def forward(self, x):
        return nn.functional.silu(self.gate_proj(x)) * self.up_proj(x)


batch_size = 8192
features = 4096
hidden = 14336


def get_inputs():
    return [torch.rand(batch_size, features)]


def get_init_inputs():
    return [features, hidden]
'''
_NAMES = {
    "gemm_scale_bn": ("batch_size", "in_features", "out_features"),
    "gemm_sigmoid_residual": ("batch_size", "input_size", "hidden_size"),
    "swiglu": ("batch_size", "features", "hidden"),
}
_COMPILED = ("default", "max-autotune-no-cudagraphs", "max-autotune")
_TUNED = {Mode.EVAL: "each call", Mode.FROZEN: "frozen"}
_CASE_SECONDS = 300.0
_FEW_ROWS = 128


@dataclass(frozen=True)
class Case:
    """A layer under a setting: `tf32`, or the name of a half type."""

    setting: str
    kernel: str
    shape: tuple[int, int, int]

    @property
    def name(self) -> str:
        """Return the setting, the kernel and rows x inputs x outputs."""
        return f"{self.setting} {self.kernel} {'x'.join(map(str, self.shape))}"

    @property
    def sizes(self) -> dict[str, int | float]:
        """Return the constants of its reference."""
        return dict(zip(_NAMES[self.kernel], self.shape, strict=True))

    @property
    def dtype(self) -> str:
        """Return the type of model and inputs."""
        return "float32" if self.setting == "tf32" else self.setting

    @property
    def settings(self) -> dict[str, str]:
        """Return what PyTorch may do."""
        return {"matmul": "tf32"} if self.setting == "tf32" else {}

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Return the modes that differ: a frozen model keeps nothing of a weight in half types."""
        return (Mode.EVAL, Mode.FROZEN) if self.setting == "tf32" else (Mode.EVAL,)


_HALVES = (
    ("gemm_sigmoid_residual", (1024, 8192, 8192)),
    ("gemm_scale_bn", (4096, 4096, 14336)),
    ("gemm_sigmoid_residual", (8192, 2048, 8192)),
    ("gemm_sigmoid_residual", (2048, 5120, 13824)),
    ("gemm_scale_bn", (64, 4096, 4096)),
)
CASES = (
    Case("tf32", "gemm_scale_bn", (1024, 8192, 8192)),
    Case("tf32", "gemm_sigmoid_residual", (4096, 4096, 14336)),
    *(Case("tf32", "gemm_scale_bn", (rows, 8192, 8192)) for rows in (128, 64, 8, 1)),
    *(Case("bfloat16", *layer) for layer in _HALVES),
    Case("bfloat16", "swiglu", (8192, 4096, 14336)),
    *(Case("float16", *layer) for layer in _HALVES),
)


def tune(case: Case, kernel: str, seconds: float) -> str:
    """Run a study of a layer, from the fused product or that of few rows; return what it says where it fails."""
    product = "stream" if case.shape[0] <= _FEW_ROWS else "fused"
    function = "normalisation=folded" if case.kernel == "gemm_scale_bn" else "fast_math=True,fast_tanh=True"
    start = f"product={product},early_launches=True,{function}" if case.setting != "tf32" else ""
    command = [sys.executable, "-m", "tunebench", "tune", kernel, "--no-compile", "--seconds", str(seconds)]
    command += ["--dtype", case.dtype, *(["--start", start] if start else [])]
    command += [word for mode in case.modes for word in ("--mode", mode.value)]
    command += [word for name, value in case.sizes.items() for word in ("--size", f"{name}={value}")]
    command += [word for name, value in case.settings.items() for word in ("--setting", f"{name}={value}")]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    return "" if done.returncode == 0 else " ".join(lines[-2:])


def measure(case: Case, kernel: str, seconds: float) -> Row:
    """Time a layer in this process."""
    set_policy(wait=True)
    device = find_device("cuda")
    apply_settings(case.settings, device.torch_device.type)
    factory = load_model(kernel)
    source = factory.kernel.reference(case.sizes, case.dtype)
    reference, inputs = (
        Mode.EVAL.put(source.make_model(0, device.torch_device)),
        source.make_inputs(1, device.torch_device),
    )
    twin = Mode.EVAL.put(source.make_model(0, device.torch_device))
    tuned = {_TUNED[mode]: mode.put(source.make_model(0, device.torch_device, factory)) for mode in case.modes}
    models: dict[str, Any] = {"eager": reference}
    notes = []
    for mode in _COMPILED:
        torch._dynamo.reset()
        try:
            models[mode] = compile_reference(reference, inputs, mode)
        except CompiledReferenceError as error:
            notes.append(f"{mode}: {error}")
    end_compilers()
    models.update(tuned)
    calls = {name: partial(model, *inputs) for name, model in models.items()}
    layers = [one for one in reference.modules() if isinstance(one, nn.Linear)]
    calls["product"] = lambda: [layer(inputs[0]) for layer in layers]
    with torch.no_grad():
        for call in calls.values():
            call()
        choices = {name: next(iter(model.choices.values())) for name, model in tuned.items()}
        problem = next(iter(tuned.values())).problem(*inputs)
        clock = pick_clock(clocks_for(device, factory.kernel.work(problem)), [*calls.values()])
        samples = confirm(calls, "eager", partial(twin, *inputs), clock, Control(device, clock), seconds)
    return {
        "ms": {name: statistics.median(samples[name]) for name in calls},
        "best": best_of(samples),
        "ratios": {name: ratios_of(samples, name) for name in tuned},
        "served": {
            name: f"{choice.tier.value}: {choice.configuration or choice.reason}" for name, choice in choices.items()
        },
        "notes": notes,
    }


def best_of(samples: Samples) -> str:
    """Return who is fastest of eager and max-autotune."""
    rivals = [name for name in ("eager", *_COMPILED[1:]) if name in samples]
    return min(rivals, key=lambda name: statistics.median(samples[name]))


def ratios_of(samples: Samples, name: str) -> dict[str, list[float]]:
    """Return how a tuned model compares with each: median ratios with 99 % intervals."""
    over = {"best": best_of(samples), "default": "default"}
    found = {key: speedup(samples[name], samples[other]) for key, other in over.items() if other in samples}
    found["product"] = speedup(samples["product"], samples[name])
    return {key: [ratio.value, ratio.low, ratio.high] for key, ratio in found.items()}


def _line(row: Row) -> str:
    def shown(ratios: Mapping[str, list[float]]) -> str:
        return "  ".join(f"{key} {value:.3f} [{low:.3f}, {high:.3f}]" for key, (value, low, high) in ratios.items())

    lines = [f"{row['name']}: best is {row['best']}"]
    lines += [f"    {name:10}{row['ms'][name]:.4f} ms  {shown(ratios)}" for name, ratios in row["ratios"].items()]
    lines.append("    " + ", ".join(f"{name} {value:.4f}" for name, value in row["ms"].items()))
    lines += [f"    {name}: {told}" for name, told in row["served"].items()]
    return "\n".join((*lines, *(f"    {note}" for note in row["notes"])))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", help="part of a name, such as 'tf32' or '1024x'; repeatable")
    parser.add_argument("--share", default="1/1", help="K/N: every N-th layer from the K-th on, for N cards")
    parser.add_argument("--seconds", type=float, default=40.0, help="of tuning a mode of a layer")
    parser.add_argument("--timing-seconds", type=float, default=3.0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    require_gpu()
    number, of = map(int, asked.share.split("/"))
    wanted = [case for case in CASES if not asked.only or any(part in case.name for part in asked.only)]
    with tempfile.TemporaryDirectory() as folder, Rows(asked.json, ("name",), _line) as rows:
        for case in wanted[number - 1 :: of]:
            if rows.has(case.name):
                continue
            kernel = case.kernel
            if kernel == "swiglu":
                kernel = str(written(Path(folder)))
            failed = tune(case, kernel, asked.seconds * len(case.modes))
            row = run_isolated(_CASE_SECONDS, measure, case, kernel, asked.timing_seconds)
            rows.add({"name": case.name, **row, "notes": [*row["notes"], *([failed] if failed else [])]})


def written(folder: Path) -> Path:
    """Write the folder of a kernel for SwiGLU, as `tunebench new` does."""
    text, made = folder / "text.py", folder / "swiglu"
    if not made.exists():
        text.write_text(_SWIGLU, encoding="utf-8")
        subprocess.run([sys.executable, "-m", "tunebench", "new", str(made), "--from", str(text)], check=True)
    return made


if __name__ == "__main__":
    from tests.benchmarks import linear_layers  # whose cases another process finds, unlike those of `__main__`

    linear_layers.main()
