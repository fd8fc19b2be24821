"""Kinds of inputs: each is found in draws of it, kept by other inputs, and found in no draws of ordinary numbers."""

from collections.abc import Callable

import pytest
import torch

from tunebench.tuner.gate.distributions import DISTRIBUTIONS, all_changed, at_ends, otherwise
from tunebench.tuner.gate.invariants import Form


def _symmetric() -> torch.Tensor:
    drawn = torch.randn(4, 10, 10)
    return drawn + drawn.mT


def _definite() -> torch.Tensor:
    drawn = torch.randn(4, 10, 10)
    return drawn @ drawn.mT + 10 * torch.eye(10)


def _mask() -> torch.Tensor:
    return (torch.rand(4, 10) > 0.4).float()


KINDS: dict[str, Callable[[], torch.Tensor]] = {
    "symmetric": _symmetric,
    "positive definite": _definite,
    "ascending": lambda: torch.rand(4, 10).sort().values,
    "descending": lambda: torch.rand(10, 4).sort(dim=0, descending=True).values,
    "one-hot": lambda: torch.nn.functional.one_hot(torch.randint(7, (9,)), 7).float(),
    "zeros and ones": _mask,
    "probabilities that sum to one": lambda: torch.randn(4, 10).softmax(0),
    "of length one": lambda: torch.nn.functional.normalize(torch.randn(4, 10), dim=-1),
}


@pytest.mark.parametrize("words", KINDS)
def test_a_kind_is_found_and_kept(words: str) -> None:
    torch.manual_seed(0)
    form = Form.of([[KINDS[words]()] for _ in range(3)])
    (kind,) = form.kinds
    assert kind is not None and kind[0].words == words
    for name, change in DISTRIBUTIONS.items():
        (kept,) = form.keep(all_changed([KINDS[words]()], change))
        assert kind[0].holds(kept, kind[1]), name
        again = form.keep([kept])[0]
        torch.testing.assert_close(again, kept)
    assert next(form.words(["x"])).startswith(f"x is {words}")


def test_ordinary_inputs_are_of_no_kind_and_zeros_in_place_stay_there() -> None:
    torch.manual_seed(0)
    drawn = [[torch.rand(4, 10), torch.randn(6, 6), torch.zeros(3, 5), torch.ones(8, 8), 2.5] for _ in range(3)]
    assert Form.of(drawn).kinds == (None,) * 5
    form = Form.of([[torch.rand(6, 6).tril()] for _ in range(3)])
    (kept,) = form.keep([torch.ones(6, 6)])
    assert torch.equal(kept, torch.ones(6, 6).tril())
    assert form.keep([torch.ones(7, 6)])[0].all()


def test_zeros_in_place_are_kept_in_the_layout_of_what_is_drawn() -> None:
    drawn = [[torch.relu(torch.randn(2, 3, 4, 5)).to(memory_format=torch.channels_last)] for _ in range(2)]
    drawn[1][0][drawn[0][0] == 0] = 0
    (kept,) = Form.of(drawn).keep([torch.ones_like(drawn[0][0])])
    assert kept.stride() == drawn[0][0].stride() and (kept == 0).any()


def test_integers_go_to_the_ends_of_what_is_drawn_in_their_rows_and_columns() -> None:
    torch.manual_seed(0)
    rows = [torch.stack([torch.randint(5, (20,)), torch.randint(100, (20,))]) for _ in range(3)]
    drawn = [[one, torch.randperm(9), torch.rand(3)] for one in rows]
    largest, order, other = at_ends(drawn, largest=True)
    assert (largest[0] <= 4).all() and (largest >= rows[0]).sum() > 30
    assert order is drawn[0][1] and other is drawn[0][2]
    smallest, *_ = at_ends(drawn, largest=False)
    assert (smallest >= 0).all() and (smallest <= largest).all()


def test_what_every_draw_has_alike_takes_another_value() -> None:
    assert otherwise([True, True], 0) == [False] and not otherwise([True, False], 0)
    assert otherwise([-1, -1], 0) == [0, 1] and not otherwise([-1, 1], 0) and not otherwise([4, 4], 0)
    (lengths,) = otherwise([torch.full((6,), 9)] * 2, 0)
    assert lengths.dtype is torch.int64 and (lengths >= 1).all() and (lengths <= 9).all() and (lengths != 9).any()
    (mask,) = otherwise([torch.ones(4, 9, dtype=torch.bool)] * 2, 0)
    assert mask.any() and not mask.all()
    assert not otherwise([torch.rand(3)] * 2, 0) and not otherwise([torch.arange(5)] * 2, 0)
