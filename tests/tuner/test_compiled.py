"""The reference under torch.compile: it runs, and a reference that does not compile is an answer, not the end."""

import pytest
import torch
from torch import nn

from tunebench.tuner.compiled import CompiledReferenceError, compile_reference


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Refusing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(f"no such thing\nas {x.dim()}")


def test_a_compiled_reference_computes_the_same() -> None:
    compiled = compile_reference(Doubled(), (torch.ones(64),))
    assert torch.equal(compiled(torch.full((64,), 3.0)), torch.full((64,), 6.0))


def test_a_reference_that_does_not_compile_says_why_in_a_line() -> None:
    with pytest.raises(CompiledReferenceError, match=r"^torch.compile: .*no such thing.*") as raised:
        compile_reference(Refusing(), (torch.ones(64),))
    assert "\n" not in str(raised.value)
