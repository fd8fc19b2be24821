"""The gate on a GPU: what only a device can get wrong is refused there, and sound kernels pass everything."""

import gc
from pathlib import Path

import pytest
import torch
from broken_kernels import ANOTHER_STREAM, BROKEN, RACES
from sample_kernel import WriteKernel

from tunebench.kernels.gemm_scale_bn.model import ModelNew as GemmScaleBn
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.kernels.scalar_mul.model import ModelNew as ScalarMul
from tunebench.tuner.build import Build
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import Device
from tunebench.tuner.gate.battery import Depth, run_battery
from tunebench.tuner.gate.contender import KernelContender
from tunebench.tuner.gate.effort import Limit
from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.gate.harness import Harness
from tunebench.tuner.gate.model import Model
from tunebench.tuner.gate.quick import QuickGate, pinned
from tunebench.tuner.gate.sanitizer import NOT_INSTALLED, find_sanitizer
from tunebench.tuner.gate.sources import Source
from tunebench.tuner.gate.stage_log import StageLog, StageRefused
from tunebench.tuner.gate.stages.sanitized import sanitize
from tunebench.tuner.kernel import Mode, Plan
from tunebench.tuner.reference import load_reference
from tunebench.tuner.result import Verdict
from tunebench.tuner.study.subject import Subject

pytestmark = pytest.mark.gpu

ROOM_FOR_LARGE = 104e9

SIZES = {
    "gemm_scale_bn": {"batch_size": 64, "in_features": 96, "out_features": 132},
    "scalar_mul": {"M": 301, "N": 700},
}


def prepared(factory: type[TunedModule], device: Device, mode: Mode = Mode.EVAL) -> tuple[Subject, Plan, Build]:
    kernel = factory.kernel
    subject = Subject.prepare(kernel, factory, kernel.reference(SIZES.get(kernel.name)), mode, device)
    space = kernel.space.enumerate(subject.problem, device)
    configuration = space[space.default]
    compiler = compiler_for(device)
    build = BuildCache().build(compiler, kernel.variant(configuration, subject.problem, device.architecture))
    return (
        subject,
        Plan(subject.kernel, configuration, subject.problem, device, compiler.load(build, device.index)),
        build,
    )


def contender_of(subject: Subject, plan: Plan, build: Build) -> KernelContender:
    return KernelContender(subject.kernel, subject.factory, plan.configuration, compiler_for(plan.device), build)


def verdict_of(factory: type[TunedModule], device: Device, mode: Mode = Mode.EVAL) -> Verdict:
    subject, plan, build = prepared(factory, device, mode)
    log = StageLog()
    gate = QuickGate(Model(subject.model), subject.oracle, Exemptions.of(subject.kernel))  # type: ignore[arg-type]
    verdict = gate.check(pinned(subject.model, plan), log)
    if verdict.passed:
        run_battery(subject.answers, contender_of(subject, plan, build), log, Depth.EVERYTHING)
    torch.cuda.empty_cache()
    return log.verdict(verdict.tolerance)


@pytest.mark.parametrize("name", [name for name, broken in BROKEN.items() if broken.kernel == "weigh"])
def test_a_broken_kernel_is_refused_on_the_device(cuda: Device, write_kernel: WriteKernel, name: str) -> None:
    broken = BROKEN[name]
    if broken.stage in ("run", "after timing", "sanitizer"):
        pytest.skip("tested in a process of its own, which a bad address may end")
    if broken.kind == RACES:
        pytest.skip("on a GPU this race may come out the same twice")
    if broken.stage == "large" and torch.cuda.mem_get_info()[0] < ROOM_FOR_LARGE:
        pytest.skip("needs 104 GB of free memory")
    parts: dict[str, dict[str, str]] = {}
    for changes in (broken.setting, broken.changes):
        for part, replaced in changes.items():
            parts.setdefault(part, {}).update(replaced)
    verdict = verdict_of(write_kernel(**parts), cuda, broken.mode)
    assert not verdict.passed
    if broken.kind != ANOTHER_STREAM:  # what does not wait may be caught anywhere before
        assert verdict.stages[-1].name.split(",")[0] == broken.stage, verdict.reason


@pytest.mark.parametrize("mode", Mode)
def test_gemm_scale_bn_passes_everything(cuda: Device, mode: Mode) -> None:
    verdict = verdict_of(GemmScaleBn, cuda, mode)
    assert verdict.passed, verdict.reason


def test_scalar_mul_passes_everything(cuda: Device) -> None:
    verdict = verdict_of(ScalarMul, cuda)
    assert verdict.passed, verdict.reason
    details = {stage.name: stage.detail for stage in verdict.stages}
    assert "cases" in details["streams"] and "cases" in details["graphs"]
    assert ("2 cases" if find_sanitizer() else NOT_INSTALLED) in details["sanitizer"]


def test_the_small_kernel_passes_everything(cuda: Device, write_kernel: WriteKernel) -> None:
    verdict = verdict_of(write_kernel(), cuda)
    assert verdict.passed, verdict.reason


@pytest.mark.skipif(find_sanitizer() is None, reason=NOT_INSTALLED)
def test_the_sanitizer_refuses_the_broken_one(cuda: Device, write_kernel: WriteKernel) -> None:
    broken = BROKEN["reads past the end and forgets it"]
    subjects = [prepared(factory, cuda) for factory in (write_kernel(), write_kernel(**broken.changes))]
    right, wrong = (sanitize(Harness(subject.answers, contender_of(subject, *rest))) for subject, *rest in subjects)
    assert right.passed and not wrong.passed
    assert "memcheck" in wrong.detail


@pytest.mark.skipif(find_sanitizer() is None, reason=NOT_INSTALLED)
def test_the_sanitizer_watches_launches_on_large_tensors(cuda: Device, write_kernel: WriteKernel) -> None:
    inspections = []
    for changes in ({}, BROKEN["reads past the end and forgets it"].changes):
        factory = write_kernel(reference={"rows = 64": "rows = 131072"}, **changes)
        subject, *rest = prepared(factory, cuda)
        contender = contender_of(subject, *rest)
        pair = Harness(subject.answers, contender).pair(subject.answers.source)
        with torch.no_grad():
            inspections.append(contender.inspection(pair.candidate, pair.source, pair.mode))
    right, wrong = inspections
    assert right() == ["2 cases", "numbers beyond the first 16 MiB of a tensor were those before them again"]
    with pytest.raises(StageRefused, match="memcheck"):
        wrong()


_OUTER = """
import torch

rows = 64


class Model(torch.nn.Module):
    def forward(self, x):
        return (x[:, None] * x).sum(1)


def get_inputs():
    return [torch.rand(rows)]


def get_init_inputs():
    return []
"""


def test_what_a_call_makes_is_counted_on_the_device_within_its_room(cuda: Device) -> None:
    source = Source(load_reference(Path("file.py"), text=_OUTER), cuda.torch_device)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    had = torch.cuda.memory_reserved()  # a segment of which another test has a part is room, too
    few, many = Limit(1 << 20, 10.0), Limit(1 << 60, 10.0)
    made = source.effort({"rows": 256}, few)
    assert made is not None and 1 << 16 < made < 1 << 17
    assert source.effort({"rows": 1 << 13}, few) is None
    # 16 GiB of products: they are counted without memory.
    assert source.effort({"rows": 1 << 16}, many) == pytest.approx(1 << 32, rel=0.01)
    assert torch.cuda.max_memory_reserved() <= had + (4 << 30)
    torch.empty(5 << 30, dtype=torch.uint8, device=cuda.torch_device)  # there is room again


_BUCKETS = _OUTER.replace(
    "x[:, None] * x).sum(1)", "self.table(torch.arange(len(x), device=x.device) // 2) + x)"
).replace(
    "    def forward",
    """    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(32, 1)

    def forward""",
)


def test_a_reference_that_indexes_out_of_range_at_some_sizes_leaves_the_device_as_it_is(cuda: Device) -> None:
    source = Source(load_reference(Path("file.py"), text=_BUCKETS), cuda.torch_device)
    assert source.effort({"rows": 128}, Limit(1 << 30, 10.0)) is not None
    assert source.model(Mode.EVAL).call(source.inputs(0)).output.tensors
    larger = source.resized({"rows": 128})
    model, inputs = larger.model(Mode.EVAL), larger.inputs(0)
    with pytest.raises(IndexError, match="embedding: from 0 to 63, where 0 to 31 is legal"):
        model.call(inputs)
    with pytest.raises(IndexError, match="embedding: from 0 to 63, where 0 to 31 is legal"):
        model.consult(inputs, 0)
    assert torch.ones(2, device=cuda.torch_device).sum() == 2
