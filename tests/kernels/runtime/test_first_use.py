"""No call waits for a compiler: the reference serves until the kernel is built, and the kernel from then on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from sample_kernel import WriteKernel
from test_policy import decided, ship

from tunebench.kernels.runtime import decision
from tunebench.kernels.runtime.policy import Policy, set_policy, use_policy, waits_for_builds
from tunebench.kernels.runtime.saving import save_choices
from tunebench.kernels.runtime.selection import Choice, Tier
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.build import Build
from tunebench.tuner.compile.cpu.compiler import CpuCompiler
from tunebench.tuner.errors import UserError
from tunebench.tuner.variant import Variant

REFUSING = 'static_assert(variety != 1, "not this one");\nextern "C"'


class HeldCompiler(CpuCompiler):
    """g++ that begins when the test says so."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked: list[str] = []

    def compile(self, variant: Variant) -> Build:
        self.asked.append(variant.digest)
        assert self.go.wait(60)
        return super().compile(variant)

    def finish(self) -> None:
        """All builds that are under way end."""
        self.go.set()
        for thread in threading.enumerate():
            if thread.name == "compile":
                thread.join(60)
        self.go.clear()


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HeldCompiler:
    monkeypatch.setenv("TUNEBENCH_CACHE", str(tmp_path / "builds"))
    compiler = HeldCompiler()
    monkeypatch.setattr(decision, "default_compiler", lambda *_: compiler)
    set_policy(wait=False)
    return compiler


def call(model: TunedModule, n: int = 8) -> Choice:
    """What served a call, whose answer is right."""
    x = torch.rand(n)
    with torch.no_grad():
        torch.testing.assert_close(model(x), x * model.weight)
    (choice,) = model.choices.values()
    return choice


def test_the_reference_serves_until_the_kernel_is_built(write_kernel: WriteKernel, held: HeldCompiler) -> None:
    model = write_kernel()()
    for _ in range(3):
        choice = call(model)
        assert choice.being_built and choice.tier is Tier.REFERENCE
        assert choice.reason == "its kernel is being built; the reference serves until it is ready"
    with pytest.raises(UserError, match="still being built"):
        save_choices("choices.json", model)
    held.finish()
    assert call(model).tier is Tier.DEFAULT
    assert len(held.asked) == 1


def test_a_build_in_the_cache_serves_the_first_call(write_kernel: WriteKernel, held: HeldCompiler) -> None:
    factory = write_kernel()
    call(factory())
    held.finish()
    decision.forget_plans()
    assert call(factory()).tier is Tier.DEFAULT
    assert len(held.asked) == 1


def test_threads_and_models_share_one_build(write_kernel: WriteKernel, held: HeldCompiler) -> None:
    factory = write_kernel()
    models = [factory() for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        assert all(choice.being_built for choice in threads.map(call, models * 3))
    # Another size is another decision, and the same binary.
    assert call(factory(), n=16).being_built
    held.finish()
    assert {call(model).tier for model in models} == {Tier.DEFAULT}
    assert len(held.asked) == 1


def test_who_waits_for_a_build_under_way_holds_up_nobody_else(write_kernel: WriteKernel, held: HeldCompiler) -> None:
    factory = write_kernel()
    call(factory())
    waiting = factory()
    waiting.wait = True
    with ThreadPoolExecutor(1) as threads:
        waited_for = threads.submit(call, waiting)
        assert call(factory()).being_built
        assert not waited_for.done()
        held.finish()
        assert waited_for.result(60).tier is Tier.DEFAULT
    assert len(held.asked) == 1


def test_a_refused_build_is_warned_of_once_and_the_next_is_built(
    write_kernel: WriteKernel, held: HeldCompiler, recwarn: pytest.WarningsRecorder
) -> None:
    factory = write_kernel(source={'extern "C"': REFUSING})
    ship(factory, {8: (32, 3.0)}, variety=1)
    models = factory(), factory()
    for served in (Tier.REFERENCE, Tier.REFERENCE, Tier.DEFAULT):
        assert [call(model).tier for model in models] == [served] * 2
        assert all(choice.being_built == (served is Tier.REFERENCE) for choice in models[0].choices.values())
        held.finish()
    warned = [str(warning.message) for warning in recwarn if "passes over" in str(warning.message)]
    assert len(warned) == 1 and "shipped configuration" in warned[0] and "not this one" in warned[0]
    assert len(held.asked) == 2


def test_a_duel_is_fought_when_all_that_are_in_it_are_built(
    write_kernel: WriteKernel, held: HeldCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = write_kernel()
    ship(factory, {1000: (32, 3.0), 2000: (128, 3.0)})
    duels = decided(monkeypatch, 0.5, 1.4, 1.1)
    with use_policy(Policy.BEST):
        model = factory()
        assert call(model).being_built and not duels
        held.finish()
        choice = call(model)
    assert duels == [3] and len(held.asked) == 3
    assert choice.configuration is not None and choice.configuration["block_size"] == 128


def test_a_fork_builds_for_itself(write_kernel: WriteKernel, held: HeldCompiler) -> None:
    model = write_kernel()()
    call(model)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            call(model)
            held.finish()
            status = int(call(model).tier is not Tier.DEFAULT)
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    held.finish()
    assert call(model).tier is Tier.DEFAULT


@pytest.mark.parametrize("lock", ["_deciding", "_tuning"])
def test_a_fork_does_not_wait_for_whoever_decides_in_its_parent(lock: str) -> None:
    taken, done = threading.Event(), threading.Event()

    def decide() -> None:
        with getattr(decision, lock):
            taken.set()
            done.wait(60)

    deciding = threading.Thread(target=decide)
    deciding.start()
    assert taken.wait(60)
    child = os.fork()
    if child == 0:
        os._exit(int(not getattr(decision, lock).acquire(blocking=False)))
    done.set()
    deciding.join(60)
    assert os.waitpid(child, 0)[1] == 0


def test_nothing_is_built_while_a_graph_is_captured(
    write_kernel: WriteKernel, held: HeldCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = write_kernel()
    with monkeypatch.context() as capturing:
        capturing.setattr(decision.Occasion, "is_captured", lambda _: True)
        choice = call(factory())
        assert choice.tier is Tier.REFERENCE and "call the model once before" in choice.reason
    assert not held.asked
    with use_policy(wait=True):
        held.go.set()
        assert call(factory()).tier is Tier.DEFAULT
    monkeypatch.setattr(decision.Occasion, "is_captured", lambda _: True)
    assert call(factory()).tier is Tier.DEFAULT


def test_waiting_is_set_for_a_block_a_module_and_a_program() -> None:
    settings: Sequence[tuple[bool, bool | None, bool | None, bool]] = (
        (False, None, None, False),
        (True, None, None, True),
        (True, False, None, False),
        (False, True, None, True),
        (False, True, False, False),
        (False, False, True, True),
    )
    for program, module, block, expected in settings:
        set_policy(wait=program)
        with use_policy(wait=block):
            assert waits_for_builds(module) is expected
    set_policy(Policy.EXACT)
    assert waits_for_builds(None) is False


LEAVE = """
import time
from tunebench.tuner.compile.building import shared_build
from tunebench.tuner.compile.cpu.compiler import CpuCompiler
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.command import _running
from tunebench.tuner.errors import CompilerMissingError
from tunebench.tuner.variant import KernelSource, Variant

text = 'extern "C" __global__ void busy(float* y) {' + 'y[0] = y[0] * y[1] + 1; ' * 20000 + '}'
compiler, target = NvrtcCompiler(), 'sm_90'
try:
    compiler.version()
except CompilerMissingError:
    compiler, target = CpuCompiler(), 'x86_64'
build = shared_build(compiler, Variant(KernelSource('busy', text, {}), '', target), wait=False)
while not _running:
    time.sleep(0.01)
assert not build.done()
print(*[process.pid for process in _running])
"""


@pytest.mark.slow
def test_a_program_ends_while_its_builds_are_under_way() -> None:
    done = subprocess.run([sys.executable, "-c", LEAVE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split()
    assert not [number for number in done.stdout.split() if _is_running(number)]


def _is_running(process: str) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


READY = {
    "    def problem(self, x):\n": """    @classmethod
    def make_ready(cls, plan):
        GO.wait(60)
        if REFUSED:
            raise LaunchError("this machine has none of it")

    def problem(self, x):
""",
    "import torch\n": """
import threading
import torch
from tunebench.tuner.errors import LaunchError
GO, REFUSED = threading.Event(), []
""",
}


def finish_making_ready(model: TunedModule) -> None:
    sys.modules[type(model).__module__].GO.set()  # type: ignore[attr-defined]
    for thread in threading.enumerate():
        if thread.name == "ready":
            thread.join(60)


def test_what_a_kernel_makes_beyond_its_binary_is_not_waited_for(write_kernel: WriteKernel, held: HeldCompiler) -> None:
    held.go.set()
    model = write_kernel(model=READY)()
    call(model)
    held.finish()
    for _ in range(3):
        assert call(model).being_built
    finish_making_ready(model)
    assert call(model).tier is Tier.DEFAULT


def test_a_call_that_waits_finds_it_made(write_kernel: WriteKernel, held: HeldCompiler) -> None:
    held.go.set()
    model = write_kernel(model=READY)()
    sys.modules[type(model).__module__].GO.set()  # type: ignore[attr-defined]
    with use_policy(wait=True):
        assert call(model).tier is Tier.DEFAULT


def test_what_this_machine_cannot_make_is_passed_over(write_kernel: WriteKernel, held: HeldCompiler) -> None:
    held.go.set()
    model = write_kernel(model=READY)()
    sys.modules[type(model).__module__].REFUSED.append(1)  # type: ignore[attr-defined]
    call(model)
    held.finish()
    call(model)
    finish_making_ready(model)
    with pytest.warns(RuntimeWarning, match="this machine has none of it"):
        assert call(model).configuration is None
