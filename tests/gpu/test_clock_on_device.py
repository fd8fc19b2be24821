"""Timing on a GPU: graphs, the control call, the device's state, and confirmation. Skips without one."""

from __future__ import annotations

import pytest
import torch
from memory_log import MemoryLog

from tunebench.kernels.gemm_scale_bn.model import ModelNew as GemmScaleBn
from tunebench.kernels.scalar_mul.model import ModelNew as ScalarMul
from tunebench.tuner.compile.building import BuildQueue
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import Device
from tunebench.tuner.errors import CaptureError
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Work
from tunebench.tuner.result import Decision
from tunebench.tuner.search.strategies import make_sampler
from tunebench.tuner.study.evaluate import LocalEvaluator
from tunebench.tuner.study.executor import LocalExecutor
from tunebench.tuner.study.outcome import Budget
from tunebench.tuner.study.study import StudyRun
from tunebench.tuner.study.subject import Subject
from tunebench.tuner.timing.conditions import read_conditions
from tunebench.tuner.timing.confirm import confirm, tells
from tunebench.tuner.timing.measure import Control, CudaClock, CudaGraphClock, clocks_for, measure_steadily, pick_clock
from tunebench.tuner.timing.roofline import floor_ms
from tunebench.tuner.timing.statistics import control_ratio, speedup

pytestmark = pytest.mark.gpu

SHORT = Work(8 << 20, 1 << 20)


def chain(length: int, elements: int = 1 << 20) -> object:
    """A forward of so many short launches."""
    A = torch.ones(elements, device="cuda")

    def call() -> torch.Tensor:
        x = A
        for _ in range(length):
            x = x * 1.0
        return x

    return call


def test_short_work_is_timed_in_graphs_and_long_work_by_events(cuda: Device) -> None:
    assert [clock.name for clock in clocks_for(cuda, SHORT)] == ["cuda-graph", "cuda-event"]
    assert [clock.name for clock in clocks_for(cuda, Work(1 << 30, 1))] == ["cuda-event"]


def test_a_graph_times_the_same_work(cuda: Device) -> None:
    graph, eager = CudaGraphClock(cuda, SHORT.bytes), CudaClock(cuda, SHORT.bytes)
    call = chain(20)
    control = Control(cuda, eager)
    by_graph, _ = measure_steadily(call, graph, control)  # type: ignore[arg-type]
    by_events, _ = measure_steadily(call, eager, control)  # type: ignore[arg-type]
    assert 0.4 * by_events.median_ms < by_graph.median_ms < 1.1 * by_events.median_ms
    assert (by_graph.clock, by_events.clock) == ("cuda-graph", "cuda-event")


def test_a_graph_replays_the_whole_forward(cuda: Device) -> None:
    clock = CudaGraphClock(cuda, SHORT.bytes)
    count = torch.zeros(1, device="cuda")

    def call() -> object:
        return count.add_(1)

    clock.sample([call])
    torch.cuda.synchronize()
    before = int(count)
    clock.sample([call] * 5)
    assert int(count) == before + 5


def test_one_call_that_cannot_be_captured_makes_all_of_them_eager(cuda: Device) -> None:
    A = torch.ones(1 << 20, device="cuda")
    clocks = clocks_for(cuda, SHORT)

    def asks_the_host() -> object:
        return A * A.sum().item()

    fine = chain(2)
    assert pick_clock(clocks, [fine]).name == "cuda-graph"  # type: ignore[list-item]
    assert pick_clock(clocks, [fine, asks_the_host]).name == "cuda-event"  # type: ignore[list-item]
    with pytest.raises(CaptureError, match="cannot be captured"):
        clocks[0].sample([asks_the_host])
    # The device goes on as if nothing had been tried.
    assert torch.equal(A * 2, A + A)
    assert clocks[0].sample([fine])[0] > 0  # type: ignore[list-item]


def test_two_copies_tie_and_twice_the_work_is_slower(cuda: Device) -> None:
    clock = CudaClock(cuda, 1 << 40)
    once, twice = chain(1, 1 << 26), chain(2, 1 << 26)
    samples = confirm({"once": once, "twice": twice}, "once", chain(1, 1 << 26), clock, Control(cuda, clock))  # type: ignore[dict-item, arg-type]
    assert control_ratio(samples, "once").decision is Decision.TIE
    assert speedup(samples["twice"], samples["once"]).decision is Decision.SLOWER


def test_a_call_that_waits_for_the_device_disturbs_no_other(cuda: Device) -> None:
    """What is queued behind it would have the host's own work in its time, and whether it is behind it changes."""
    A = torch.ones(1 << 20, device="cuda")
    clock = CudaClock(cuda, SHORT.bytes)
    calls = {"one": chain(64), "waits": lambda: A.sum().item(), "other": chain(64)}
    samples = confirm(calls, "one", chain(64), clock, Control(cuda, clock), is_decided=tells("one", "other"))  # type: ignore[arg-type]
    told = {Decision.TIE, Decision.INCONCLUSIVE}  # the latter where other processes use the device
    assert {speedup(samples["one"], samples["other"]).decision, control_ratio(samples, "one").decision} <= told


def test_the_device_tells_its_state(cuda: Device) -> None:
    control = Control(cuda, CudaClock(cuda, 1 << 40))
    control.settle()
    conditions = control.conditions()
    assert conditions.control_ms is not None and 0.005 < conditions.control_ms < 10
    assert conditions.sm_clock_mhz and conditions.memory_clock_mhz and conditions.temperature_c
    assert conditions.throttle_reasons
    assert read_conditions(cuda).foreign_processes is not None


def test_the_floor_lies_below_a_copy_and_not_far(cuda: Device) -> None:
    work = Work(4 << 30, 1 << 30)
    clock = CudaClock(cuda, work.bytes)
    source = torch.ones(work.bytes // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy_ms = min(clock.sample([lambda: target.copy_(source)] * 20))  # of some that others have worked beside
    assert 0.7 * copy_ms < floor_ms(work, cuda, clock) < 0.9 * copy_ms


@pytest.mark.parametrize("model", [ScalarMul, GemmScaleBn])
def test_a_study_of_short_forwards_is_timed_by_one_clock(cuda: Device, model: type[ScalarMul | GemmScaleBn]) -> None:
    kernel = model.kernel
    sizes = {"M": 64, "N": 4096} if model is ScalarMul else {"batch_size": 64, "in_features": 256, "out_features": 512}
    subject = Subject.prepare(kernel, model, kernel.reference(sizes), Mode.EVAL, cuda)
    space = kernel.space.enumerate(subject.problem, cuda)
    log = MemoryLog()
    evaluator = LocalEvaluator(subject, compiler_for(cuda))
    executor = LocalExecutor(kernel, [evaluator], BuildQueue(compiler_for(cuda)))
    run = StudyRun(executor, space, make_sampler("random", space, 0), log)
    outcome = run.run(Budget(12))
    assert {result.measurement.clock for result in log.results if result.measurement} == {"cuda-graph"}
    assert outcome.comparison is not None
