"""What only a GPU can show: launching, timing and tuning on CUDA. Skips without one."""

import threading

import pytest
import torch
from memory_log import MemoryLog

from tunebench.kernels.gemm_scale_bn.model import ModelNew as GemmScaleBn
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.kernels.scalar_mul.model import ModelNew as ScalarMul
from tunebench.tuner.build import CompilerName
from tunebench.tuner.compile.building import BuildQueue, build_plan
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import Device
from tunebench.tuner.errors import LaunchError
from tunebench.tuner.kernel import Mode, Plan
from tunebench.tuner.problem import Work
from tunebench.tuner.result import CacheRegime
from tunebench.tuner.search.strategies import make_sampler
from tunebench.tuner.study.evaluate import LocalEvaluator
from tunebench.tuner.study.executor import LocalExecutor
from tunebench.tuner.study.outcome import Budget
from tunebench.tuner.study.study import StudyRun
from tunebench.tuner.study.subject import Subject
from tunebench.tuner.timing.measure import clocks_for

pytestmark = pytest.mark.gpu


def plan(
    model: TunedModule, device: Device, *inputs: object, compiler: CompilerName | None = None, pick: int = 0
) -> Plan:
    problem = model.problem(*inputs)
    assert problem is not None
    space = model.kernel.space.enumerate(problem, device)
    return build_plan(model.kernel, space[pick % len(space)], problem, device, compiler_for(device, compiler))


@pytest.mark.parametrize("pick", range(0, 2100, 131))
def test_scalar_mul_at_odd_sizes_and_offsets(cuda: Device, pick: int) -> None:
    model = ScalarMul()
    for size in (1, 3, 1023, 32771, 1 << 20):
        memory = torch.randn(size + 3, device="cuda")
        for offset in range(4):
            A = memory[offset : offset + size]
            model.pin(plan(model, cuda, A, 3.14, pick=pick))
            assert torch.equal(model(A, 3.14), A * 3.14)


def test_more_elements_than_an_int_counts(cuda: Device) -> None:
    A = torch.randn((1 << 31) + 5, device="cuda")
    model = ScalarMul()
    model.pin(plan(model, cuda, A, 3.14, pick=700))
    C = model(A, 3.14)
    for part in (slice(0, 8), slice(1 << 31, None)):
        assert torch.equal(C[part], A[part] * 3.14)
    assert torch.equal(C[-(1 << 20) :], A[-(1 << 20) :] * 3.14)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("pick", range(0, 1152, 97))
def test_gemm_scale_bn(cuda: Device, mode: Mode, pick: int) -> None:
    kernel = GemmScaleBn.kernel
    reference = kernel.reference({"batch_size": 33, "in_features": 65, "out_features": 132})
    subject = Subject.prepare(kernel, GemmScaleBn, reference, mode, cuda)
    model = subject.model
    x = subject.oracle.cases[0].inputs[0]
    model.pin(plan(model, cuda, x, pick=pick))  # type: ignore[arg-type]
    with torch.no_grad():
        found, wanted = model(x), subject.reference(x)
        # As the gate has it: of the output's size, since products from parts round what is small beside it.
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4 * float(wanted.abs().max()))
    for (name, mine), (_, theirs) in zip(model.named_buffers(), subject.reference.named_buffers(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6, msg=name)


def test_a_launch_goes_to_the_current_stream(cuda: Device) -> None:
    model = ScalarMul()
    A = torch.ones(1 << 22, device="cuda")
    model.pin(plan(model, cuda, A, 2.0))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        model(A + 1.0, 2.0)  # loading a kernel for the first time waits for whatever runs
        torch.cuda.synchronize()
        torch.cuda._sleep(200_000_000)  # type: ignore[no-untyped-call]
        B = A + 1.0
        C = model(B, 2.0)
    assert not stream.query()  # the launch did not wait on the host, nor run ahead on another stream
    stream.synchronize()
    assert torch.equal(C, torch.full_like(C, 4.0))


def test_a_refused_launch_is_an_error_and_the_device_goes_on(cuda: Device) -> None:
    model = ScalarMul()
    A = torch.ones(1 << 10, device="cuda")
    made = plan(model, cuda, A, 2.0)
    C = torch.empty_like(A)
    with pytest.raises(
        LaunchError, match=r"launch of 'pointwise' with grid \(1, 1, 1\), block \(2048, 1, 1\): CUDA_ERROR"
    ):
        made.launch("pointwise", A, 2.0, C, len(A), blocks=1, threads=2048)
    with pytest.raises(LaunchError, match=r"it takes 4 arguments \(A_data, s_value, output, elements\), not 2"):
        made.launch("pointwise", A, 2.0, blocks=1, threads=32)
    with pytest.raises(LaunchError, match=r"parameter 'A_data' .* takes a tensor on cuda:0, not on cpu"):
        made.launch("pointwise", A.cpu(), 2.0, C, len(A), blocks=1, threads=32)
    made.launch("pointwise", A, 1e300, C, len(A), blocks=len(A), threads=made.integer("block_size"))
    assert C.isinf().all()
    model.pin(made)
    assert torch.equal(model(A, 2.0), A * 2.0)


def test_a_thread_that_has_asked_the_driver_for_nothing_can_launch(cuda: Device) -> None:
    model = ScalarMul()
    A, C = torch.ones(1 << 10, device="cuda"), torch.zeros(1 << 10, device="cuda")
    made = plan(model, cuda, A, 2.0)
    errors: list[BaseException] = []

    def launch() -> None:
        try:
            made.launch("pointwise", A, 2.0, C, len(A), blocks=len(A), threads=made.integer("block_size"))
        except BaseException as error:  # noqa: BLE001 - it is looked at below
            errors.append(error)

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    assert errors == []
    assert torch.equal(C, A * 2.0)


def test_inline_gives_the_same_answer(cuda: Device) -> None:
    model = ScalarMul()
    A = torch.randn(100_003, device="cuda")
    made = plan(model, cuda, A, 3.14, compiler=CompilerName.INLINE)
    model.pin(made)
    assert torch.equal(model(A, 3.14), A * 3.14)
    assert made.resident_blocks("pointwise", 64) >= cuda.multiprocessors


def test_samples_leave_the_host_out(cuda: Device) -> None:
    """A call of a few microseconds is not timed as the tens of microseconds that its Python takes."""
    clock = clocks_for(cuda, Work(1 << 40, 0))[-1]
    A = torch.ones(1 << 24, device="cuda")
    B = torch.empty_like(A)

    def slow_to_queue() -> None:
        sum(range(20_000))
        torch.mul(A, 2.0, out=B)

    clock.warm_up(slow_to_queue)
    quick = sorted(clock.sample([lambda: torch.mul(A, 2.0, out=B)] * 9))[4]
    slow = sorted(clock.sample([slow_to_queue] * 9))[4]
    assert slow < 3 * quick
    assert clock.regime is CacheRegime.COLD


def test_a_study_on_the_device(cuda: Device) -> None:
    kernel = ScalarMul.kernel
    subject = Subject.prepare(kernel, ScalarMul, kernel.reference({"M": 1024, "N": 4096}), Mode.EVAL, cuda)
    space = kernel.space.enumerate(subject.problem, cuda)
    log = MemoryLog()
    sampler = make_sampler("gp", space, 0)
    evaluator = LocalEvaluator(subject, compiler_for(cuda))
    executor = LocalExecutor(kernel, [evaluator], BuildQueue(compiler_for(cuda)))
    outcome = StudyRun(executor, space, sampler, log).run(Budget(25))
    assert outcome.trials == 25
    assert all(result.status.timed for result in log.results), outcome.refusals
    assert outcome.comparison is not None
    assert all(result.build and result.build.figures["pointwise"].registers for result in log.results)


def test_the_model_follows_its_tensor_to_each_device() -> None:
    model = ScalarMul()
    A = torch.randn(1000)
    assert model(A, 3.0).device == A.device
    assert model(A.cuda(), 3.0).device == A.cuda().device
    assert torch.equal(model(A.cuda(), 3.0).cpu(), A * 3.0)
    assert {device.kind for _, device in model.choices} == {"cpu", "cuda"}
