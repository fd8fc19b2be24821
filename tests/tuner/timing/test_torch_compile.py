"""The reference under torch.compile: it runs, and a reference that does not compile is an answer, not the end."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sample_kernel import WriteKernel
from torch import nn

from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import find_device
from tunebench.tuner.kernel import Mode
from tunebench.tuner.result import Baseline, Comparison
from tunebench.tuner.study.evaluate import LocalEvaluator
from tunebench.tuner.study.subject import Subject
from tunebench.tuner.timing.torch_compile import CompiledReferenceError, apart, compile_reference, end_compilers

pytestmark = pytest.mark.slow


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Refusing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(f"no such thing\nas {x.dim()}")


def test_a_compiled_reference_computes_the_same() -> None:
    compiled = compile_reference(Doubled(), (torch.ones(64),))
    assert torch.equal(compiled(torch.full((64,), 3.0)), torch.full((64,), 6.0))


def test_programs_that_are_compiled_apart_are_not_the_models() -> None:
    graphs: list[weakref.ref[Any]] = []

    def backend(graph: Any, _given: Any) -> Callable[..., Any]:
        graphs.append(weakref.ref(graph))
        return graph.forward  # type: ignore[no-any-return]

    model, x = Doubled(), torch.ones(3)
    users = torch.compile(model, backend=backend, dynamic=False)
    users(x)
    for number in range(torch._dynamo.config.recompile_limit + 2):
        torch.compile(apart(model), backend=backend, dynamic=False)(x)
        gc.collect()
        assert len(graphs) == 2 + number  # each was compiled
        assert graphs[-1]() is None  # and is let go of
    users(x)
    assert len(graphs) == 2 + number and graphs[0]() is not None


def test_what_inductor_has_tried_is_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    layer, x = nn.Linear(64, 32).requires_grad_(requires_grad=False), torch.ones(8, 64)
    torch.compiler.reset()
    with torch.no_grad(), torch._inductor.config.patch(freezing=True, force_disable_caches=True):
        compile_reference(layer, (x,))
        said = capfd.readouterr()
        assert "AUTOTUNE" not in said.out + said.err
        torch.compiler.reset()
        torch.compile(layer, mode="max-autotune", dynamic=False)(x)
    assert "AUTOTUNE" in capfd.readouterr().err


def test_inductors_processes_end_where_they_have_not_begun_yet() -> None:
    from torch._inductor.async_compile import AsyncCompile

    pool = AsyncCompile.process_pool()  # its process has some seconds of imports before it
    end_compilers()
    assert pool.process.poll() is not None
    assert AsyncCompile.process_pool() is not pool
    end_compilers()


def test_a_reference_that_does_not_compile_says_why_in_a_line() -> None:
    with pytest.raises(CompiledReferenceError, match=r"^torch.compile: .*no such thing.*") as raised:
        compile_reference(Refusing(), (torch.ones(64),))
    assert "\n" not in str(raised.value)


def compiled_and_compared(factory: type[TunedModule]) -> tuple[str, Comparison]:
    """The comparison that ends a study which wants torch.compile as a baseline, and why that is not among them."""
    kernel, cpu = factory.kernel, find_device("cpu")
    subject = Subject.prepare(kernel, factory, kernel.reference({"rows": 4}), Mode.EVAL, cpu)
    space = kernel.space.enumerate(subject.problem, cpu)
    configuration = space[space.default]
    compiler = compiler_for(cpu)
    build = BuildCache().build(compiler, kernel.variant(configuration, subject.problem, cpu.architecture))
    evaluator = LocalEvaluator(subject, compiler)
    return evaluator.compile(), evaluator.compare([(configuration, build)], (configuration, build), configuration)


def test_a_study_compares_with_torch_compile_where_that_is_wanted(write_kernel: WriteKernel) -> None:
    why, comparison = compiled_and_compared(write_kernel())
    assert why == "" and comparison.speedups[Baseline.COMPILED].low > 0
    assert len(comparison.samples_ms["compiled"]) == len(comparison.samples_ms["best"])


def test_a_reference_that_does_not_compile_is_recorded_and_not_fatal(write_kernel: WriteKernel) -> None:
    from torch._inductor import config

    with config.patch({"cpp.cxx": ("no-such-compiler",)}):  # pytest's own way leaves no compiler behind
        why, comparison = compiled_and_compared(write_kernel())
    assert set(comparison.speedups) == {Baseline.REFERENCE, Baseline.DEFAULT, Baseline.COPY}
    assert why.startswith("torch.compile: ")
