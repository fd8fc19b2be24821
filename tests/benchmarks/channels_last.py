"""conv_min_add_mul where channels-last output is asked for: `python -m tests.benchmarks.channels_last`.

The reference stays in its own layout, in eager and compiled; x is what `get_inputs` makes. Prints JSON: speed-ups with
intervals, and how far the outputs are from eager's, element by element.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import torch
import typer
from tests.benchmarks.rows import eager

from tunebench.kernels.conv_min_add_mul.model import ModelNew
from tunebench.studies.request.text import read_sizes, read_values
from tunebench.tuner.compile.building import build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import find_device
from tunebench.tuner.timing.confirm import confirm
from tunebench.tuner.timing.measure import Control, clocks_for
from tunebench.tuner.timing.statistics import control_ratio, medians_of, speedup
from tunebench.tuner.timing.torch_compile import compile_reference, end_compilers

IMPLICIT_GEMM = ("convolution=implicit_gemm", "ring_rows=4", "writes=threads", "store_hint=streaming")


def main(
    config: Annotated[list[str], typer.Option(metavar="NAME=VALUE", help="Tunables.")] = list(IMPLICIT_GEMM),  # noqa: B006
    size: Annotated[list[str] | None, typer.Option(metavar="NAME=NUMBER", help="Default: KernelBench's.")] = None,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    seconds: Annotated[float, typer.Option(help="Of timing.")] = 5.0,
) -> None:
    """Time both layouts of the tuned model against the reference, in the same rounds."""
    where = find_device(device)
    kernel = ModelNew.kernel
    source = kernel.reference(read_sizes("--size", size or []))
    reference = source.make_model(0, where.torch_device)
    inputs = source.make_inputs(1, where.torch_device)
    models: dict[str, Callable[..., Any]] = {"eager": reference, "torch.compile": compile_reference(reference, inputs)}
    end_compilers()
    for name, layout in (("nchw", torch.contiguous_format), ("channels-last", torch.channels_last)):
        model = source.make_model(0, where.torch_device, ModelNew).to(memory_format=layout)  # type: ignore[call-overload]
        model.load_state_dict(reference.state_dict())
        problem = model.problem(*inputs)
        chosen = kernel.space.choose(read_values("--config", config), problem, where)
        model.pin(build_plan(kernel, chosen, problem, where, compiler_for(where)))
        models[name] = model
    calls = {name: lambda model=model: model(*inputs) for name, model in models.items()}
    with torch.no_grad():
        wanted = reference(*inputs)
        outputs = {name: models[name](*inputs) for name in ("nchw", "channels-last")}
        clock = clocks_for(where, kernel.work(problem))[-1]
        twin = lambda: reference(*inputs)  # noqa: E731 - a second copy of eager
        samples = confirm(calls, "eager", twin, clock, Control(where, clock), seconds)
    figures = {
        "problem": str(problem),
        "device": where.name,
        "configuration": dict(chosen),
        "eager": eager(),
        "medians_ms": medians_of(samples),
        "control": str(control_ratio(samples, "eager")),
        "outputs": {
            name: {
                "channels_last": output.is_contiguous(memory_format=torch.channels_last),
                "over_eager": str(speedup(samples[name], samples["eager"])),
                "over_torch_compile": str(speedup(samples[name], samples["torch.compile"])),
                "largest_difference_from_eager": float((output - wanted).abs().max()),
                "within_1e-4_of_eager": bool(torch.allclose(output, wanted, rtol=1e-4, atol=1e-4)),
            }
            for name, output in outputs.items()
        },
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    typer.run(main)
