"""How many of torch's operations are loop nests: `python -m tests.benchmarks.operations [NAME]... --json FILE`.

Each operation that torch itself has samples of (`torch.testing._internal.common_methods_invocations`) is lowered with
its first samples in float32, and what becomes passes is compared with torch on the CPU, fifty programs in a source.
Prints the operations that differ, the reasons of those that become none, and counts. Torch's samples need the package
expecttest.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn
from torch.testing._internal.common_methods_invocations import op_db

sys.path.insert(0, str(Path(__file__).parents[1] / "studies/writing/loops"))
from programs import Case, run

_SAMPLES = 2
_AT_ONCE = 50
_MOST = 4096
"""Upper limit of the elements of a sample's tensors: a CPU stands for a GPU here."""


class Operation(nn.Module):
    """An operation with the arguments of a sample, of which the tensors are the model's inputs."""

    def __init__(self, operation: Any, sample: Any) -> None:
        super().__init__()
        self.operation, self.sample = operation, sample
        self.tensors = [one for one in (sample.input, *sample.args) if isinstance(one, torch.Tensor)]

    def forward(self, a: Any, b: Any = None, c: Any = None, d: Any = None, e: Any = None) -> torch.Tensor:
        """Call it."""
        left = iter((a, b, c, d, e))
        given = [next(left) if isinstance(one, torch.Tensor) else one for one in (self.sample.input, *self.sample.args)]
        result: torch.Tensor = self.operation(*given, **self.sample.kwargs)
        return result


def cases(names: list[str]) -> Iterator[tuple[str, Case]]:
    """Yield operations with their samples, by names of programs."""
    for operation in op_db:
        if names and operation.name not in names:
            continue
        if torch.float32 not in operation.supported_dtypes("cpu") or operation.name.startswith(
            ("linalg", "_refs", "fft", "new_empty")  # the last hold whatever is in memory
        ):
            continue
        try:
            samples = list(islice(operation.sample_inputs("cpu", torch.float32), _SAMPLES))
        except Exception:  # noqa: BLE001 - a sample of torch's that this machine cannot make
            continue
        for at, sample in enumerate(samples):
            model = Operation(operation.op, sample)
            if len(model.tensors) not in range(1, 6) or any(not _is_small_and_plain(one) for one in model.tensors):
                continue
            name = f"{operation.name}_{operation.variant_test_name}_{at}".replace(".", "_").replace("-", "_")
            yield name, Case(model, {f"{name}_x{number}": one.detach() for number, one in enumerate(model.tensors)})


def _is_small_and_plain(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.is_contiguous() and tensor.numel() <= _MOST


def difference(case: Case, found: torch.Tensor | str) -> str:
    """Return why a result is not torch's; empty where it is."""
    if isinstance(found, str):
        return found if found.startswith("fails") else f"none: {found}"
    try:
        wanted = case.model(*case.inputs.values())
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
    except Exception as error:  # noqa: BLE001 - any difference is told
        return f"differs: {str(error).splitlines()[0]}"
    return ""


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Operations; all by default.")] = None,
    file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the counts there too.")] = None,
) -> None:
    """Ask each operation."""
    told: dict[str, str] = {}
    summary: dict[str, Any] = {}
    left = cases(names or [])
    while made := dict(islice(left, _AT_ONCE)):
        with tempfile.TemporaryDirectory() as folder:
            try:
                results = run(made, Path(folder))
            except Exception as error:  # noqa: BLE001 - one program that does not compile hides the others
                results = {}
                for name, case in made.items():
                    try:
                        results |= run({name: case}, Path(folder))
                    except Exception as alone:  # noqa: BLE001
                        results[name] = f"fails: {str(alone).splitlines()[0][:160]}"
                del error
        for name, case in made.items():
            told[name] = difference(case, results[name])
            if told[name].startswith(("differs", "fails")):
                print(f"{name}: {told[name]}", flush=True)
        summary = _summary(told)
        if file is not None:
            file.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summary, indent=1))


def _summary(told: Mapping[str, str]) -> dict[str, Any]:
    """The counts, the reasons of those that are none, and those that differ."""
    counts = Counter("agrees" if not one else one.split(":")[0] for one in told.values())
    reasons = Counter(one.removeprefix("none: ") for one in told.values() if one.startswith("none"))
    differ = {name: one for name, one in told.items() if one.startswith(("differs", "fails"))}
    return {**counts, "reasons": dict(reasons.most_common()), "differ": differ}


if __name__ == "__main__":
    typer.run(main)
