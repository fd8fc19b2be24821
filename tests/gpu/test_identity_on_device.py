"""On a GPU: variants whose machine code is the same are run once, although their binaries differ."""

from __future__ import annotations

import pytest
from sample_kernel import WriteKernel

from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import find_device
from tunebench.tuner.kernel import Mode
from tunebench.tuner.search.sampler import make_sampler
from tunebench.tuner.study.evaluate import LocalEvaluator, Subject
from tunebench.tuner.study.history import MemoryLog
from tunebench.tuner.study.study import Budget, StudyRun

pytestmark = pytest.mark.gpu


def test_what_the_code_does_not_read_makes_no_run_of_its_own(write_kernel: WriteKernel) -> None:
    factory, cuda, log = write_kernel(), find_device("cuda"), MemoryLog()
    kernel = factory.kernel
    subject = Subject.prepare(kernel, factory, kernel.reference(), Mode.EVAL, cuda)
    compiler, space = compiler_for(cuda), kernel.space.enumerate(subject.problem, cuda)
    evaluator = LocalEvaluator(subject, compiler)
    run = StudyRun(kernel, evaluator, space, compiler, make_sampler("exhaustive", space, 0), log)
    outcome = run.run(Budget(len(space)))
    assert outcome.proven
    # The sample's source does not use `variety`, of which there are three.
    repeated = [result for result in log.results if result.message.startswith("not run:")]
    assert len(repeated) == 2 * len(log.results) // 3
    codes = {result.build.code for result in log.results if result.build is not None}
    assert len(codes) > len(log.results) - len(repeated), "the binaries themselves differ: NVRTC keeps the constants"
