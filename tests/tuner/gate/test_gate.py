"""The correctness gate: every broken kernel is refused at the stage that names its fault, and its sound twin passes."""

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from broken_kernels import BROKEN, Broken, Changes, table
from broken_modules import BROKEN_MODULES
from memory_log import MemoryLog
from sample_kernel import WriteKernel

import tunebench.kernels
from tunebench.kernels.runtime.registry import import_model
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.build import Build
from tunebench.tuner.compile.building import BuildQueue
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device, find_device
from tunebench.tuner.errors import LaunchError
from tunebench.tuner.gate.battery import STEPS, Depth, run_battery
from tunebench.tuner.gate.changes import WEIGHT_CHANGES
from tunebench.tuner.gate.contender import KernelContender
from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.gate.harness import Harness
from tunebench.tuner.gate.launches import MOST_BYTES
from tunebench.tuner.gate.model import Model
from tunebench.tuner.gate.oracle import Oracle, consult_reference
from tunebench.tuner.gate.quick import QuickGate, pinned
from tunebench.tuner.gate.sources import Source
from tunebench.tuner.gate.stage_log import StageLog, StageRefused
from tunebench.tuner.gate.stages.callers import gradients, training
from tunebench.tuner.kernel import Mode, Plan
from tunebench.tuner.problem import Objective
from tunebench.tuner.result import Stage, TrialResult, TrialStatus, Verdict
from tunebench.tuner.search.strategies import make_sampler
from tunebench.tuner.study.evaluate import NOBODY, Leaders, LocalEvaluator
from tunebench.tuner.study.executor import LocalExecutor
from tunebench.tuner.study.outcome import Budget
from tunebench.tuner.study.study import StudyRun
from tunebench.tuner.study.subject import Subject

CPU = find_device("cpu")
ROOT = Path(__file__).parents[3]
GEMM_SIZES = {"batch_size": 24, "in_features": 20, "out_features": 36}

Make = Callable[..., type[TunedModule]]


@pytest.fixture
def make(write_kernel: WriteKernel, tmp_path: Path) -> Make:
    """Writes a kernel with changes: the sample one, or a copy of a shipped one."""

    def write(kernel: str, *many: Changes) -> type[TunedModule]:
        merged: dict[str, dict[str, str]] = {}
        for changes in many:
            for part, replaced in changes.items():
                merged.setdefault(part, {}).update(replaced)
        if kernel == "weigh":
            return write_kernel(**merged)
        folder = tmp_path / str(len(list(tmp_path.iterdir()))) / kernel
        shutil.copytree(Path(tunebench.kernels.__file__).parent / kernel, folder)
        text = (folder / "model.py").read_text(encoding="utf-8")
        for old, new in merged.get("model", {}).items():
            assert old in text
            text = text.replace(old, new)
        (folder / "model.py").write_text(text, encoding="utf-8")
        return import_model(str(folder))

    return write


def verdict_of(
    factory: type[TunedModule],
    mode: Mode = Mode.EVAL,
    device: Device = CPU,
    depth: Depth = Depth.FINALIST,
    *,
    builds_more: bool = False,
    rows: int = GEMM_SIZES["batch_size"],
    objective: Objective = Objective.TIME,
) -> Verdict:
    """The whole gate on a kernel's default configuration; a model that raises is refused at the stage `run`."""
    kernel = factory.kernel
    sizes = {**GEMM_SIZES, "batch_size": rows} if kernel.name == "gemm_scale_bn" else {}
    subject = Subject.prepare(kernel, factory, kernel.reference(sizes), mode, device)
    space = kernel.space.enumerate(subject.problem, device)
    configuration = space[space.default]
    compiler = compiler_for(device)
    build = BuildCache().build(compiler, kernel.variant(configuration, subject.problem, device.architecture))
    problem = subject.problem.at(subject.problem.accuracy, objective)
    plan = Plan(subject.kernel, configuration, problem, device, compiler.load(build, device.index))
    log = StageLog()
    try:
        gate = QuickGate(Model(subject.model), subject.oracle, Exemptions.of(kernel))  # type: ignore[arg-type]
        verdict = gate.check(pinned(subject.model, plan), log)
    except LaunchError as error:
        return Verdict(False, (Stage("run", False, 0.0, str(error)),), 0.0, None, str(error))
    if verdict.passed:
        contender = KernelContender(kernel, factory, configuration, compiler, build, builds_more=builds_more)
        run_battery(subject.answers, contender, log, depth)
    return log.verdict(verdict.tolerance)


def require_refused(verdict: Verdict, broken: Broken) -> None:
    assert not verdict.passed
    assert verdict.stages[-1].name.split(",")[0] == broken.stage, verdict.reason
    assert all(earlier.passed for earlier in verdict.stages[:-1])
    assert re.search(broken.reason, verdict.reason), verdict.reason


@pytest.mark.slow
def test_a_kernel_that_is_tuned_for_energy(make: Make) -> None:
    verdict = verdict_of(make("gemm_scale_bn"), objective=Objective.ENERGY)
    assert verdict.passed, verdict.reason


@pytest.mark.slow
def test_one_row_which_train_mode_refuses_when_it_has_counted_it(make: Make) -> None:
    verdict = verdict_of(make("gemm_scale_bn"), rows=1)
    assert verdict.passed, verdict.reason


ON_CPU = {name: broken for name, broken in BROKEN.items() if not broken.gpu}
TIMED = "after timing"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, broken in ON_CPU.items() if broken.stage != TIMED])
def test_a_broken_kernel_is_refused(make: Make, name: str) -> None:
    broken = BROKEN[name]
    factory = make(broken.kernel, broken.setting, broken.changes)
    depth = Depth.EVERYTHING if broken.stage == "torch.compile" else Depth.FINALIST
    require_refused(verdict_of(factory, broken.mode, depth=depth), broken)


@pytest.mark.parametrize("name", [name for name, broken in ON_CPU.items() if broken.stage == TIMED])
def test_a_kernel_that_breaks_while_it_is_timed_is_refused(make: Make, name: str) -> None:
    broken = BROKEN[name]
    factory = make(broken.kernel, broken.setting, broken.changes)
    kernel = factory.kernel
    subject = Subject.prepare(kernel, factory, kernel.reference(), Mode.EVAL, CPU)
    space = kernel.space.enumerate(subject.problem, CPU)
    compiler = compiler_for(CPU)
    configuration = space[space.default]
    build = BuildCache().build(compiler, kernel.variant(configuration, subject.problem, CPU.architecture))
    result = LocalEvaluator(subject, compiler).evaluate(configuration, build)
    assert result.status is TrialStatus.CORRECTNESS
    assert result.measurement is None
    assert result.verdict is not None
    require_refused(result.verdict, broken)


TWINS = {str((b.kernel, b.mode, b.setting, b.twin)): b for b in ON_CPU.values()}


@pytest.mark.slow
@pytest.mark.parametrize("twin", TWINS, ids=range(len(TWINS)))
def test_the_sound_twin_passes_every_stage(make: Make, twin: str) -> None:
    broken = TWINS[twin]
    verdict = verdict_of(make(broken.kernel, broken.setting, broken.twin), broken.mode, builds_more=True)
    assert verdict.passed, verdict.reason
    assert {stage.name for stage in verdict.stages} >= {step.name for step in STEPS if step.depth is Depth.FINALIST}
    assert verdict.errors is not None
    assert verdict.errors.max_relative < 1e-4


def test_every_stage_refuses_something() -> None:
    quick = {"degenerate", "structure", "bounds", "inputs", "written", "repeatable", "values", "buffers", TIMED}
    refusing = {broken.stage for broken in (*BROKEN.values(), *BROKEN_MODULES.values())} - {"run"}
    assert refusing | {"devices"} == quick | {step.name for step in STEPS}


def test_the_documented_table_is_this_one() -> None:
    assert table() in (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")


def oracle_of(write_kernel: WriteKernel, **changes: dict[str, str]) -> Oracle:
    reference = write_kernel(**changes).kernel.reference()
    cpu = torch.device("cpu")
    return consult_reference(Source(reference, cpu), Model(reference.make_model(0, cpu)))


def test_the_oracle_draws_different_inputs_and_both_signs(write_kernel: WriteKernel) -> None:
    first, second, signs = (case.inputs[0] for case in oracle_of(write_kernel).cases)
    assert not torch.equal(first, second)
    assert (first > 0).all()
    assert (signs < 0).any()
    assert torch.equal(signs.abs(), first)


def test_consulting_leaves_the_reference_as_it_was(write_kernel: WriteKernel) -> None:
    reference = write_kernel().kernel.reference()
    cpu = torch.device("cpu")
    model = reference.make_model(0, cpu)
    consult_reference(Source(reference, cpu), Model(model))
    assert float(model.get_buffer("calls")) == 0.0


@pytest.mark.slow
def test_a_refused_leader_is_a_row_and_never_leads(make: Make) -> None:
    """Right at the tuned size, wrong elsewhere: only the full battery tells, and the row of who would lead says so."""

    class Leading(LocalEvaluator):
        """Takes everything for a leader, whatever its time is."""

        def evaluate(self, configuration: Configuration, build: Build, leaders: Leaders = NOBODY) -> TrialResult:
            return super().evaluate(configuration, build, replace(leaders, finalist_ms=None))

    tail = {"source": {"i < n;": "i < (variety == 1 ? n / 4 * 4 : n);"}}
    factory = make("weigh", tail)
    kernel = factory.kernel
    subject = Subject.prepare(kernel, factory, kernel.reference(), Mode.EVAL, CPU)
    space = kernel.space.restrict({"block_size": [64], "blocks": [1, 2]}).enumerate(subject.problem, CPU)
    log = MemoryLog()
    compiler = compiler_for(CPU)
    sampler = make_sampler("exhaustive", space, 0)
    executor = LocalExecutor(kernel, [Leading(subject, compiler)], BuildQueue(compiler))
    outcome = StudyRun(executor, space, sampler, log).run(Budget(len(space)))
    refused = [result for result in log.results if result.status is TrialStatus.CORRECTNESS]
    assert len(space) == 6 and refused
    for result in refused:
        assert result.configuration["variety"] == 1
        assert result.verdict is not None
        assert result.verdict.stages[-1].name == "sizes"
    assert outcome.best is not None and outcome.best.configuration["variety"] != 1
    assert log.comparison is not None and log.comparison.best["variety"] != 1


LARGE = {"rows = 64": "rows = 640", "columns = 33": "columns = 330"}


def base_of(factory: type[TunedModule]) -> Mapping[str, int | float]:
    """The sizes at which a study asks about a kernel's default configuration."""
    kernel = factory.kernel
    subject = Subject.prepare(kernel, factory, kernel.reference(), Mode.EVAL, CPU)
    space = kernel.space.enumerate(subject.problem, CPU)
    configuration, compiler = space[space.default], compiler_for(CPU)
    build = BuildCache().build(compiler, kernel.variant(configuration, subject.problem, CPU.architecture))
    contender = KernelContender(kernel, factory, configuration, compiler, build, builds_more=False)
    with torch.no_grad():
        return Harness(subject.answers, contender).base.sizes


def test_a_binary_that_has_every_size_compiled_in_is_built_once_more_for_reduced_ones(make: Make) -> None:
    compiled = {"work=work)": 'work=work, compiled_axes=("n",))'}
    base = base_of(make("weigh", {"reference": LARGE, "model": compiled}))
    assert base.items() >= {"rows": 128, "columns": 128}.items()


def test_nothing_is_asked_at_sizes_that_the_reference_would_serve(make: Make) -> None:
    own = {"if x.is_contiguous()": "if x.shape[1] == 330"}
    base = base_of(make("weigh", {"reference": LARGE, "model": own}))
    assert base.items() >= {"rows": 128, "columns": 330}.items()


def test_sizes_that_it_cannot_be_made_ready_for_are_passed_over(make: Make) -> None:
    factory = make("weigh")

    class Particular(factory):  # type: ignore[valid-type, misc]
        @classmethod
        def make_ready(cls, plan: Plan) -> None:
            if plan.problem.axes["n"] % 33:
                raise LaunchError("no plan for such a size")

    verdict = verdict_of(Particular, builds_more=True)
    assert verdict.passed, verdict.reason
    (sizes,) = [stage for stage in verdict.stages if stage.name == "sizes"]
    assert "no plan for such a size" in sizes.detail


@pytest.mark.parametrize("policy", ["recorded", "reference"])
def test_gradients_are_asked_under_each_policy(make: Make, policy: str) -> None:
    factory = make("weigh")

    class Choosing(factory):  # type: ignore[valid-type, misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = super().forward(x)
            return y if self.policy != policy else y + 0.01 * x.detach()

    kernel = factory.kernel
    subject = Subject.prepare(kernel, Choosing, kernel.reference(), Mode.EVAL, CPU)  # type: ignore[arg-type]
    space = kernel.space.enumerate(subject.problem, CPU)
    harness = Harness(
        subject.answers,
        KernelContender(kernel, Choosing, space[space.default], compiler_for(CPU)),  # type: ignore[arg-type]
    )
    with torch.no_grad():
        gradients(harness)
        with pytest.raises(StageRefused, match=f"gradients under the policy '{policy}', in both modes: the output"):
            training(harness)
        Choosing.forward = factory.forward  # type: ignore[method-assign]
        training(harness)


def test_the_launches_of_a_call_are_recorded_with_what_their_arguments_hold(make: Make) -> None:
    factory = make("weigh")
    kernel = factory.kernel
    reference = kernel.reference()
    model = reference.make_model(0, CPU.torch_device, factory)
    (x,) = inputs = reference.make_inputs(1, CPU.torch_device)
    space = kernel.space.enumerate(None, CPU)
    contender = KernelContender(kernel, factory, space[space.default], compiler_for(CPU))  # type: ignore[arg-type]
    with torch.no_grad():
        (launch,) = contender.launches(Model(model), inputs)
    assert (launch.entry_point, launch.grid, launch.block) == ("weigh", (2, 1, 1), (64, 1, 1))
    held, sizes = zip(*launch.buffers, strict=True)
    assert held[:2] == (x.numpy().tobytes(), model.get_parameter("weight").detach().numpy().tobytes())
    assert sizes == (4 * x.numel(), 4, 4 * x.numel()) == tuple(map(len, held))
    assert launch.arguments == ((0, 0), (1, 0), (2, 0), (2112).to_bytes(8, "little"))


def test_the_beginning_of_large_memory_is_recorded_where_it_holds_no_indices(make: Make) -> None:
    ordered = {
        "source": {"const scalar_t* weight,": "const scalar_t* weight, const int* order,", "x[i]": "x[order[i]]"},
        "model": {"x, self.weight, y": "x, self.weight, torch.arange(x.numel(), dtype=torch.int32), y"},
    }
    factory = make("weigh", ordered)
    kernel = factory.kernel
    model = kernel.reference().make_model(0, CPU.torch_device, factory)
    x = torch.rand(MOST_BYTES // 4 + 3)
    space = kernel.space.enumerate(None, CPU)
    contender = KernelContender(kernel, factory, space[space.default], compiler_for(CPU))  # type: ignore[arg-type]
    with torch.no_grad():
        (launch,) = contender.launches(Model(model), [x])
    numbers, weight, order, output = launch.buffers
    assert numbers == (x[:-3].numpy().tobytes(), 4 * x.numel()) and weight[1] == 4
    assert order == (torch.arange(x.numel(), dtype=torch.int32).numpy().tobytes(), 4 * x.numel())
    assert len(output[0]) == MOST_BYTES and output[1] == 4 * x.numel()


def test_the_way_to_another_type_and_back_rounds_weights_and_no_buffers() -> None:
    module = torch.nn.BatchNorm1d(2)
    with torch.no_grad():
        module.weight.fill_(1 + 2**-12)
        assert module.running_mean is not None
        module.running_mean.fill_(1 + 2**-12)
    WEIGHT_CHANGES["to another type and back"](module)
    assert module.weight.tolist() == [1.0, 1.0] and module.weight.dtype == torch.float32
    assert module.running_mean.tolist() == [1 + 2**-12] * 2
