"""Modules as programs have them: `tunebench new` writes a kernel that agrees with the module, or says why not."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import pytest
import torch
from benchmarks.coverage import Extent
from benchmarks.modules import DTYPES
from benchmarks.modules import MODULES as WHOLE_MODULES
from benchmarks.rows import read_rows
from real_modules import MODULES
from test_architecture import ROOT

import tunebench
from tunebench.kernels.runtime.policy import Policy
from tunebench.kernels.runtime.registry import import_model
from tunebench.studies.writing.new.check import _sizes_to_run
from tunebench.studies.writing.new.new_kernel import NewKernel
from tunebench.tuner.device import find_device
from tunebench.tuner.errors import UserError
from tunebench.tuner.gate.values import cloned
from tunebench.tuner.kernel import Mode
from tunebench.tuner.reference import load_reference
from tunebench.tuner.study.subject import Subject

RECORDED = {(row["group"], row["name"]): row for row in read_rows(ROOT / "docs/results/cpu/coverage.json")[0]}


SOME = [*zip(WHOLE_MODULES, itertools.cycle(DTYPES), strict=False)][::3]
"""A third of the modules, in a type each; `python -m tests.benchmarks.coverage` counts all of them in both."""

TIES = ("top_two", "bfloat16")
"""At small sizes two experts' logits are one number in bfloat16, and torch may take either for the better one."""


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_a_module_of_a_program_gets_a_kernel_or_a_reason(name: str, tmp_path: Path) -> None:
    module = MODULES[name]
    made = made_of(module.file, tmp_path)
    assert (made.block, module.reason in made.reason) == (module.block, True), made


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), SOME)
def test_a_whole_module_stays_in_kernels_that_was_counted_there(name: str, dtype: str, tmp_path: Path) -> None:
    file = tmp_path / "problem.py"
    file.write_text(small(WHOLE_MODULES[name].file(dtype)), encoding="utf-8")
    made = tunebench.new(tmp_path / "mine", problem=file)
    if RECORDED[f"modules in {dtype}", name]["extent"] == Extent.ALL and (name, dtype) != TIES:
        assert made.block and not made.checked.missing, made


def small(text: str) -> str:
    """Return a problem's text at sizes that `tunebench new` would compare it at."""
    for name, size in next(_sizes_to_run(load_reference(Path("problem.py"), text=text))).items():
        text = re.sub(rf"^{name} = .*$", f"{name} = {size}", text, flags=re.MULTILINE)
    return text


def made_of(text: str, folder: Path) -> NewKernel:
    """Return what `tunebench new` makes of a problem: a kernel that agrees with the module, or one to be written."""
    file = folder / "problem.py"
    file.write_text(text, encoding="utf-8")
    made = tunebench.new(folder / "mine", problem=file)
    assert bool(made.block) != bool(made.reason)
    factory = import_model(str(made.folder))
    reference = factory.kernel.reference({}, None)
    for mode in factory.kernel.modes:
        if made.block:
            Subject.prepare(factory.kernel, factory, reference, Mode(mode), find_device("cpu"))  # type: ignore[arg-type]
        else:
            with pytest.raises(UserError, match="the kernel is not written yet"):
                Subject.prepare(factory.kernel, factory, reference, Mode(mode), find_device("cpu"))  # type: ignore[arg-type]
    for training in (False, True):
        require_same(factory, reference, training)
    return made


def require_same(factory: type, reference: object, training: bool) -> None:
    """Both models return the same, and leave inputs, buffers and random numbers alike."""
    cpu = torch.device("cpu")
    original = reference.make_model(0, cpu).train(training)  # type: ignore[attr-defined]
    tuned = reference.make_model(0, cpu, factory).train(training)  # type: ignore[attr-defined]
    tuned.policy, tuned.wait = Policy.BEST, True
    found = []
    for model in (original, tuned):
        inputs = cloned(reference.make_inputs(1, cpu))  # type: ignore[attr-defined]
        torch.manual_seed(2)
        random.seed(2)
        with torch.no_grad():
            output = model(*inputs)
        state = torch.get_rng_state().double()
        found.append([output, list(inputs), [one.double() for one in model.buffers()], state])
    half = any(isinstance(one, torch.Tensor) and one.dtype == torch.bfloat16 for one in found[0][1])
    torch.testing.assert_close(found[1], found[0], rtol=3e-2 if half else 1e-4, atol=3e-2 if half else 1e-5)
