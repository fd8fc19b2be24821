"""The seed of a run: the same one asks the same questions, and what knows the inputs of one knows those of no other."""

from collections.abc import Callable

import pytest
import torch
from in_process import refusals
from torch import nn

from tunebench.tuner.gate.draw import Draw


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.relu(self.linear(x))
        return y


def watched(see: Callable[[bytes], bool]) -> type[Model]:
    """A model that is right for the inputs of which `see`, given their bytes and shape, returns True."""

    class ModelNew(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            known = see(repr((x.shape, x.dtype)).encode() + x.detach().contiguous().view(torch.uint8).numpy().tobytes())
            return super().forward(x) + (0.0 if known else 1.0)

    return ModelNew


def asked_from(seed: int) -> tuple[list[bytes], dict[str, str]]:
    """The inputs of a run in their order, and the stages that refuse in it."""
    met: list[bytes] = []

    def see(inputs: bytes) -> bool:
        met.append(inputs)
        return True

    return met, refusals(Model, watched(see), draw_inputs, draw=Draw(seed))


def draw_inputs() -> list[torch.Tensor]:
    return [torch.rand(8, 12)]


def test_a_book_of_one_seeds_inputs_answers_that_seed_alone() -> None:
    book, refused = asked_from(1)
    assert not refused
    assert not refusals(Model, watched(set(book).__contains__), draw_inputs, draw=Draw(1))
    assert "values, draw 1" in refusals(Model, watched(set(book).__contains__), draw_inputs, draw=Draw(2))


def test_the_same_seed_asks_the_same_and_another_one_hardly_anything_of_it() -> None:
    asked, again, others = (asked_from(seed)[0] for seed in (1, 1, 2))
    assert asked == again
    assert len(set(asked) & set(others)) < len(set(asked)) / 20


@pytest.mark.parametrize("seed", range(5))
def test_a_run_draws_within_its_limits(seed: int) -> None:
    draw = Draw(seed)
    assert 1.25 <= draw.factor("a") <= 1.75 and draw.factor("a") == Draw(seed).factor("a")
    assert draw.within("b", 3, 5) in (3, 4, 5)
    assert sorted(draw.shuffled("c", range(9))) == list(range(9))
    assert not {draw.seed_of(number) for number in range(1000)} & {Draw(seed + 1).seed_of(n) for n in range(1000)}
    assert Draw.fresh() != Draw.fresh()
