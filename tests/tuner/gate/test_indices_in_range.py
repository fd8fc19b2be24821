"""Indices out of range are told before an operation runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from tunebench.tuner.gate.indices import IndicesInRange

Call = Callable[[torch.Tensor], torch.Tensor]

TABLE = torch.arange(15.0).view(5, 3)
MASK = torch.tensor([True, False, True, False, True])
WITHIN_EACH: dict[str, tuple[Call, int, int]] = {
    "embedding": (lambda i: functional.embedding(i, TABLE), 0, 4),
    "rows": (lambda i: TABLE[i], -5, 4),
    "columns": (lambda i: TABLE[:, i], -3, 2),
    "columns of some rows": (lambda i: TABLE[MASK][..., i], -3, 2),
    "put": (lambda i: TABLE.clone().index_put_((i,), torch.ones(())), -5, 4),
    "gather": (lambda i: TABLE.gather(1, i[None]), 0, 2),
    "gather of a number": (lambda i: TABLE[0, 0].gather(0, i[0]), 0, 0),
    "index_select": (lambda i: TABLE.index_select(-1, i), 0, 2),
    "scatter": (lambda i: torch.zeros(4).scatter(0, i, 1.0), 0, 3),
    "index_add": (lambda i: torch.zeros(4).index_add(0, i, torch.ones(i.shape)), 0, 3),
    "nll_loss": (lambda i: functional.nll_loss(TABLE[:1], i[:1], ignore_index=-100), 0, 2),
    "cross_entropy": (lambda i: functional.cross_entropy(TABLE[0], i[0]), 0, 2),
}


@pytest.mark.parametrize("name", WITHIN_EACH)
def test_what_is_legal_runs_and_what_is_not_raises_before_it_runs(name: str) -> None:
    call, least, most = WITHIN_EACH[name]
    for legal in (least, most):
        index = torch.tensor([legal])
        with IndicesInRange():
            answer = call(index)
        assert torch.equal(answer, call(index))
    for wrong in (least - 1, most + 1):
        with pytest.raises(IndexError, match=f"where {least} to {most} is legal"), IndicesInRange():
            call(torch.tensor([wrong]))


def test_what_is_ignored_and_what_is_no_index_is_legal() -> None:
    with IndicesInRange():
        assert functional.nll_loss(TABLE[:1], torch.tensor([-100]), ignore_index=-100).isnan()
        assert TABLE[torch.empty(0, dtype=torch.long)].numel() == 0
        assert functional.embedding(torch.zeros(2, dtype=torch.long, device="meta"), TABLE.to("meta")).shape == (2, 3)


@pytest.mark.parametrize("wrong", [-0.5, 1.5, float("nan")])
def test_probabilities_are_between_0_and_1(wrong: float) -> None:
    with IndicesInRange():
        assert functional.binary_cross_entropy(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0])) == 0
    with pytest.raises(IndexError, match="binary_cross_entropy"), IndicesInRange():
        functional.binary_cross_entropy(torch.tensor([wrong]), torch.ones(1))


def test_operations_of_higher_order_run() -> None:
    with IndicesInRange():
        answer = torch.ops.higher_order.cond(torch.tensor(True), torch.neg, torch.exp, (TABLE,))
    assert torch.equal(answer, -TABLE)
