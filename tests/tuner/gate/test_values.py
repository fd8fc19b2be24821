"""Models that return other things than one floating-point tensor, draw random numbers or change their inputs: what is
right passes both batteries, what is wrong is refused where it shows first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from in_process import refusals
from torch import nn
from torch.nn import functional

from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.gate.oracle import consult
from tunebench.tuner.gate.values import Values, difference_of_kinds
from tunebench.tuner.kernel import Mode

Forward = Callable[..., Any]
rand = torch.rand


def module(forward: Forward, **parts: Callable[[], nn.Module]) -> type[nn.Module]:
    """A class of modules with this forward, which is given the module first, and these parts."""

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part())
            self.start = torch.full((40,), 0.25)

        def forward(self, *inputs: Any) -> Any:
            return forward(self, *inputs)

    return Module


def labelled() -> Sequence[Any]:
    return [rand(64, 10), torch.randint(10, (64,))]


def nll(_: nn.Module, x: torch.Tensor, labels: torch.Tensor, shift: int = 0) -> torch.Tensor:
    return -x.log_softmax(1).gather(1, (labels[:, None] + shift) % 10).mean()


def noisy(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x + torch.randn_like(x)


def dropped(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return functional.dropout(x, 0.3, model.training)


def largest_kept(like: torch.Tensor, values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Values at their places, and zeros elsewhere."""
    return torch.zeros_like(like).scatter(1, places, values)


def summed_backwards(model: Any, x: torch.Tensor) -> torch.Tensor:
    """The linear part's product, rounded otherwise."""
    return x.flip(1) @ model.linear.weight.flip(1).T + model.linear.bias


# The reference's forward, its inputs, a right forward, and wrong ones by the stage that refuses them.
TWINS: dict[str, tuple[Forward, Callable[[], Sequence[Any]], Forward, dict[str, Forward]]] = {
    "a mean squared error": (
        lambda _, x, y: functional.mse_loss(x, y),
        lambda: [rand(64, 96), rand(64, 96)],
        lambda _, x, y: ((x - y) ** 2).mean(),
        {"values": lambda _, x, y: (x - y).abs().mean(), "structure": lambda _, x, y: float(functional.mse_loss(x, y))},
    ),
    "a mean that hardly depends on the draw": (
        lambda _, x: x.mean(),
        lambda: [1 + rand(64, 64) / 1024],
        lambda _, x: x.mean(1).mean(),
        {"values": lambda _, x: 0 * x[0, 0] + 1.0005},
    ),
    "a cross-entropy of labels": (
        lambda _, x, labels: functional.cross_entropy(x, labels),
        labelled,
        nll,
        {"values": lambda model, x, labels: nll(model, x, labels, shift=1)},
    ),
    "a divergence of probabilities": (
        lambda _, p, q: functional.kl_div(p.log(), q, reduction="batchmean"),
        lambda: [rand(32, 40).softmax(-1), rand(32, 40).softmax(-1)],
        lambda _, p, q: (torch.xlogy(q, q) - q * p.log()).sum() / len(p),
        {"values": lambda _, p, q: (q * (q.log() - p.log())).mean()},
    ),
    "a loss of probabilities that refuses others": (
        lambda _, p, target: functional.binary_cross_entropy(p, target),
        lambda: [rand(32, 40), (rand(32, 40) > 0.5).float()],
        lambda _, p, t: -(t * p.log().clamp(min=-100) + (1 - t) * (1 - p).log().clamp(min=-100)).mean(),
        {"values": lambda _, p, t: -(t * p.log()).mean()},
    ),
    "a tuple with a number": (
        lambda _, x: (x.relu(), {"sum": x.sum().item(), "rows": len(x)}),
        lambda: [rand(32, 40)],
        lambda _, x: (x.clamp(min=0), {"rows": len(x), "sum": float(x.double().sum())}),
        {
            "structure": lambda _, x: [x.relu(), {"sum": x.sum().item(), "rows": len(x)}],
            "values": lambda _, x: (x.relu(), {"sum": x.sum().item(), "rows": len(x) + 1}),
        },
    ),
    "the largest with their places": (
        lambda _, x: x.max(1),
        lambda: [rand(32, 40)],
        lambda _, x: torch.max(x, dim=1),
        {"form": lambda _, x: tuple(x.max(1)), "structure": lambda _, x: list(x.max(1))},
    ),
    "the place of the largest": (
        lambda model, x: model.linear(x).argmax(1),
        lambda: [rand(256, 40)],
        lambda model, x: summed_backwards(model, x).argmax(1),
        {"values": lambda model, x: model.linear(x).argmin(1)},
    ),
    "the first of equal places": (
        lambda _, x: x.argmax(1),
        lambda: [rand(32, 40)],
        lambda _, x: x.max(1).indices,
        {"distributions": lambda _, x: 39 - x.flip(1).argmax(1)},
    ),
    "a comparison": (
        lambda model, x: model.linear(x) > 0,
        lambda: [rand(512, 40)],
        lambda model, x: summed_backwards(model, x) > 0,
        {"values": lambda model, x: model.linear(x) > 0.01},
    ),
    "complex numbers": (
        lambda _, x: torch.fft.rfft(x),
        lambda: [rand(32, 40)],
        lambda _, x: torch.fft.fft(x)[..., :21].clone(),
        {"values": lambda _, x: torch.fft.rfft(x).conj().resolve_conj()},
    ),
    "dropout": (
        dropped,
        lambda: [rand(32, 40)],
        lambda model, x: torch.dropout(x, 0.3, model.training),
        {"values": lambda _, x: x * 1.0},
    ),
    "dropout before statistics": (
        lambda model, x: model.norm(dropped(model, x)),
        lambda: [rand(32, 40)],
        lambda model, x: model.norm(torch.dropout(x, 0.3, model.training)),
        {"values": lambda model, x: model.norm(x)},
    ),
    "noise": (noisy, lambda: [rand(32, 40)], lambda _, x: torch.randn_like(x) + x, {"values": lambda _, x: x + 0.0}),
    "a change of its input": (
        lambda _, x, y: x.add_(y).sum(1),
        lambda: [rand(32, 40), rand(32, 40)],
        lambda _, x, y: x.copy_(y + x).sum(1),
        {"inputs": lambda _, x, y: (x + y).sum(1)},
    ),
    "indices, a mask and weights": (
        lambda model, index, mask, weight: (model.table(index) * weight[:, None]).masked_fill(mask, -9.0).softmax(-1),
        lambda: [torch.randint(50, (32,)), rand(32, 16) > 0.5, rand(32)],
        lambda model, index, mask, weight: (model.table.weight[index] * weight[:, None]).where(~mask, -9.0).softmax(1),
        {"values": lambda model, index, mask, weight: (model.table(index * ~mask[:, 0]) * weight[:, None]).softmax(-1)},
    ),
    "tensors in lists": (
        lambda _, pair, named: pair[0] * named["x"] + pair[1],
        lambda: [[rand(32, 40), rand(32, 40)], {"x": rand(32, 40)}],
        lambda _, pair, named: torch.addcmul(pair[1], pair[0], named["x"]),
        {
            "inputs": lambda _, pair, named: pair[0] * named["x"].mul_(1) + pair[1].add_(0.5) - 0.5,
            "distributions": lambda _, pair, named: (pair[0] * named["x"] + pair[1]).clamp(max=100),
        },
    ),
    "an expanded input and a conjugate": (
        lambda _, x: torch.fft.fft(x).conj(),
        lambda: [rand(1, 40).expand(32, 40)],
        lambda _, x: torch.fft.fft(x).conj(),
        {"values": lambda _, x: torch.fft.fft(x)},
    ),
    "a state that is no buffer": (
        lambda model, x: model.linear(x) + model.start,
        lambda: [rand(32, 40)],
        lambda model, x: model.start + model.linear(x),
        {"values": lambda model, x: model.linear(x)},
    ),
    "a mask of the type's smallest number": (
        lambda _, x: x.masked_fill(x < 0.5, torch.finfo(x.dtype).min),
        lambda: [rand(32, 40)],
        lambda _, x: torch.masked_fill(x, x.lt(0.5), torch.finfo(x.dtype).min),
        {"values": lambda _, x: (1.01 * x).masked_fill(x < 0.5, torch.finfo(x.dtype).min)},
    ),
    "the largest where they were": (
        lambda _, x: largest_kept(x, *x.softmax(1).topk(3)),
        lambda: [rand(32, 40)],
        lambda _, x: largest_kept(x, *(one[:, :3] for one in x.softmax(1).sort(stable=True, dim=1, descending=True))),
        {
            "values": lambda _, x: largest_kept(x, *x.softmax(1).topk(2)),
            "distributions": lambda _, x: x.softmax(1).where(x.softmax(1) >= x.softmax(1).topk(3)[0][:, 2:], 0.0),
        },
    ),
    "half types of its own": (
        lambda model, x: model.linear(x.bfloat16().to(model.linear.weight.dtype)).float(),
        lambda: [rand(64, 40)],
        lambda model, x: functional.linear(
            x.bfloat16().to(model.linear.weight.dtype), *model.linear.parameters()
        ).float(),
        {
            "values": lambda model, x: functional.linear(
                x.bfloat16().to(model.linear.weight.dtype), model.linear.weight
            ).float()
        },
    ),
}
PARTS = {"norm": lambda: nn.BatchNorm1d(40), "linear": lambda: nn.Linear(40, 40), "table": lambda: nn.Embedding(50, 16)}


@pytest.mark.slow
@pytest.mark.parametrize("name", TWINS)
def test_what_is_right_passes(name: str) -> None:
    model, inputs, right, _ = TWINS[name]
    assert refusals(module(model, **PARTS), module(right, **PARTS), inputs) == {}


WRONG = [(name, stage) for name, (_, _, _, wrong) in TWINS.items() for stage in wrong]


@pytest.mark.parametrize(("name", "stage"), WRONG)
def test_what_is_wrong_is_refused(name: str, stage: str) -> None:
    model, inputs, _, wrong = TWINS[name]
    quick = stage not in ("distributions", "form")
    found = refusals(module(model, **PARTS), module(wrong[stage], **PARTS), inputs, quick=quick)
    assert next(iter(found), "nothing").split(",")[0] == stage, found


def test_dropout_is_the_identity_in_eval_mode_only() -> None:
    model, new = module(lambda model, x: 2 * dropped(model, x)), module(lambda _, x: 2 * x)
    assert refusals(model, new, lambda: [rand(32, 40)], Mode.EVAL).keys() == {"mode"}


@pytest.mark.parametrize(
    ("got", "wanted", "difference"),
    [
        ((1.0, [2]), (1.0, [2]), None),
        ({"a": 1, "b": None}, {"b": None, "a": 1}, None),
        ((1.0, 2.0), (1.0,), "the output is a tuple of 2 in place of a tuple of 1"),
        ((1.0, [2]), (1.0, (2,)), "output[1] is a list of 1 in place of a tuple of 1"),
        ({"a": 1}, {"b": 1}, "the output is a dictionary of 'a' in place of a dictionary of 'b'"),
        ({"a": (True,)}, {"a": (1,)}, "output['a'][0] is a bool in place of an int"),
        ((x for x in ()), 1, "the output is a value of type generator in place of an int"),
        (tuple(torch.ones(2).max(0)), torch.ones(2).max(0), None),
        (torch.ones(2).max(0), tuple(torch.ones(2).max(0)), "the output is a torch.return_types.max of 2 in place of"),
    ],
)
def test_the_first_difference_in_structure_is_named(got: object, wanted: object, difference: str | None) -> None:
    found = difference_of_kinds(Values.of(got), Values.of(wanted))
    assert found == difference if difference is None else str(found).startswith(difference)


def test_a_container_within_itself_is_no_plain_value() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert "is a value of type list" in str(Values.of(endless).strange)


def test_what_cannot_run_in_float64_is_its_own_truth() -> None:
    model = module(lambda _, x: x.view(torch.int32).float() if x.dtype is torch.float32 else x.oops)
    with torch.no_grad():
        case = consult(model(), "drawn", (rand(32, 40),))
    assert "it does not run in float64" in case.note
    assert case.output["output"].bound == 2e-4


def test_what_an_element_may_be_off_by() -> None:
    masked = module(lambda _, x: x.masked_fill(x < 0.5, -1e9))
    with torch.no_grad():
        expected = consult(masked(), "drawn", (rand(32, 40),)).output["output"]
    filled, other = (expected.values.flatten() < 0).to(torch.uint8).argmax(), expected.values.flatten().argmax()
    assert expected.allowed_at(int(filled)) == 1e5
    assert 5e-5 < expected.allowed_at(int(other)) < 1e-4


def test_ties_that_a_half_type_makes_may_be_decided_either_way() -> None:
    """The two best experts of a gate in bfloat16: of equal scores any is the best, and hundreds are equal."""
    best = module(lambda model, x: model.gate(x).topk(2)[1], gate=lambda: nn.Linear(512, 8, bias=False))
    torch.manual_seed(3)
    model: Any = best().bfloat16()
    x = torch.randn(8192, 512).bfloat16()
    with torch.no_grad():
        expected = consult(model, "drawn", (x,)).output["output"]
        scores = (x.float() @ model.gate.weight.float().mT).bfloat16()
    first = (scores == scores.amax(1, keepdim=True)).int().argmax(1, keepdim=True)
    rest = scores.scatter(1, first, -torch.inf)
    second = (rest == rest.amax(1, keepdim=True)).int().argmax(1, keepdim=True)
    chosen = torch.cat([first, second], 1)
    assert (chosen != expected.values).any(), "no tie was decided otherwise"
    assert expected.errors_of(chosen).max_relative == 0
    assert expected.errors_of(chosen.flip(1)).max_relative > 0.5


def test_of_equal_elements_the_first_may_be_first() -> None:
    ordered = module(lambda _, x: (x.topk(3)[1], x.topk(2, 0, largest=False)[1], x.argsort(1, descending=True)))
    with torch.no_grad():
        case = consult(ordered(), "drawn", (torch.zeros(64, 300),))
    first, least, places = (case.output[f"output[{n}]"] for n in range(3))
    assert first.errors_of(torch.arange(3).expand(64, 3)).max_relative == 0
    assert least.errors_of(torch.arange(2)[:, None].expand(2, 300)).max_relative == 0
    assert places.errors_of(torch.arange(300).expand(64, 300)).max_relative == 0
    assert places.errors_of(torch.arange(300).flip(0).expand(64, 300)).max_relative > 0


def test_what_is_equal_at_its_own_precision_alone_may_be_in_order_too() -> None:
    """Softmax makes zeros in single precision, any of which is the second best. The buffer moves once."""

    def best(model: Any, x: torch.Tensor) -> torch.Tensor:
        model.calls.add_(1)
        return x.softmax(1, dtype=None if x.dtype is torch.float64 else torch.float32).topk(2)[1]

    x = torch.arange(40.0).mul(300).expand(16, 40).contiguous()
    model = module(best)()
    model.register_buffer("calls", torch.zeros(1))
    with torch.no_grad():
        case = consult(model, "drawn", (x,))
    expected = case.output["output"]
    assert expected.errors_of(torch.tensor([39, 0]).expand(16, 2)).max_relative == 0
    assert expected.errors_of(torch.tensor([39, 38]).expand(16, 2)).max_relative == 0
    assert expected.errors_of(torch.tensor([39, 5]).expand(16, 2)).max_relative > 0
    assert case.expected_buffers["calls"] == 1 and case.reference_buffer_error == 0


def test_a_reference_that_calls_float_is_answered_in_float64() -> None:
    with torch.no_grad():
        case = consult(module(lambda _, x: x.float() / 3)(), "drawn", (rand(32, 40),))
    assert 0 < case.own_error < 1e-6 and not case.note


def by_transforms(model: Any, x: torch.Tensor) -> torch.Tensor:
    """A convolution as a product of Fourier transforms."""
    size, conv = (x.shape[-2] + 2, x.shape[-1] + 2), model.conv
    weight = torch.fft.rfft2(conv.weight.flip(-1, -2), s=size)
    product = torch.einsum("bihw,oihw->bohw", torch.fft.rfft2(x, s=size), weight)
    return torch.fft.irfft2(product, s=size)[..., 1:-1, 1:-1] + conv.bias[:, None, None]


def of_halves(model: Any, x: torch.Tensor) -> torch.Tensor:
    """The same convolution of numbers that were rounded to a half type."""
    x, weight = x.half().float(), model.conv.weight.half().float()
    return functional.conv2d(x, weight, model.conv.bias, padding=1)


@pytest.mark.slow
def test_a_rewrite_may_spread_what_is_not_finite_and_be_no_less_precise() -> None:
    parts = {"conv": lambda: nn.Conv2d(3, 4, 3, padding=1)}
    model, inputs = module(lambda model, x: model.conv(x), **parts), lambda: [rand(2, 3, 8, 8)]
    declared = Exemptions(rewrites_algebra=True)
    assert "not finite" in refusals(model, module(by_transforms, **parts), inputs)
    assert (
        not {"not finite", "distributions"}
        & refusals(model, module(by_transforms, **parts), inputs, exemptions=declared).keys()
    )
    dropped = refusals(model, module(lambda model, x: model.conv(x.nan_to_num()), **parts), inputs, exemptions=declared)
    assert "not finite" in dropped
    assert "values, draw 1" in refusals(model, module(of_halves, **parts), inputs, exemptions=declared)


def test_what_a_domain_leaves_out_may_come_out_otherwise() -> None:
    """Of numbers that are drawn positive: negative ones have no root, and no right file is refused for these."""
    forgiving = module(lambda _, x: x.clamp(min=0).sqrt())
    found = refusals(module(lambda _, x: x.sqrt()), forgiving, lambda: [rand(32, 40)])
    assert found.keys() == {"not finite"}
