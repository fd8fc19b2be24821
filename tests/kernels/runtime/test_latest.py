"""What is remembered of the problems that a program meets does not grow for ever."""

import pytest
import torch
from sample_kernel import WriteKernel

from tunebench.kernels.runtime import tuned_module
from tunebench.kernels.runtime.latest import Latest


def test_the_first_put_in_is_the_first_to_go() -> None:
    latest: Latest[int, str] = Latest(3)
    for number in (1, 2, 3, 1, 4):
        latest[number] = str(number)
    assert dict(latest) == {2: "2", 3: "3", 4: "4"}


def test_a_model_forgets_problems_and_serves_them_again(
    write_kernel: WriteKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuned_module, "_MOST_PROBLEMS", 2)
    model = write_kernel()()
    with torch.no_grad():
        for n in (1, 2, 3, 1, 4):
            x = torch.rand(n)
            assert torch.equal(model(x), x * model.weight)
    # What served 1 is known without asking again.
    assert [problem.axes["n"] for problem, _ in model.choices if problem is not None] == [3, 4]
