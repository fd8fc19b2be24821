"""What identifies a reference's call is the same on every device, and differs where other work is done."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from tunebench.kernels.runtime.reference_call import ReferenceCall, trace_reference, watch_reference
from tunebench.tuner.settings import Setting

Forward = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Calling(nn.Module):
    """A reference whose forward is a function of its layer and its input."""

    def __init__(self, layer: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.layer, self._function = layer, forward

    def reference_forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._function(self.layer, x)


def call(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = layer(x)
    return result


def traced(make: Callable[[], nn.Module], forward: Forward, shape: tuple[int, ...], device: str) -> ReferenceCall:
    with torch.device(device):
        return trace_reference(Calling(make(), forward), [torch.empty(shape)])


CALLS: dict[str, tuple[Callable[[], nn.Module], Forward, tuple[int, ...]]] = {
    "attention": (nn.Identity, lambda _, x: functional.scaled_dot_product_attention(x, x, x), (2, 4, 16, 8)),
    "heads": (
        lambda: nn.MultiheadAttention(32, 4, batch_first=True).eval(),
        lambda layer, x: layer(x, x, x, need_weights=False)[0],
        (2, 16, 32),
    ),
    "encoder": (lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval(), call, (2, 16, 32)),
    "recurrent": (lambda: nn.LSTM(16, 8), lambda layer, x: layer(x)[0], (5, 2, 16)),
    "dropout": (lambda: nn.Dropout(0.5), call, (4, 8)),
    "batch_norm": (lambda: nn.BatchNorm2d(4), call, (2, 4, 8, 8)),
    "root_mean_square": (lambda: nn.RMSNorm(16), call, (4, 16)),
    "convolution": (lambda: nn.Conv2d(3, 8, 3), call, (2, 3, 9, 9)),
    "products": (lambda: nn.Linear(16, 8), lambda layer, x: layer(x) @ x[0].T[:8], (2, 5, 16)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_the_same_on_every_device(name: str) -> None:
    on_cpu, without_memory = (traced(*CALLS[name], device) for device in ("cpu", "meta"))
    assert on_cpu.operations and on_cpu.operations == without_memory.operations
    assert on_cpu.settings == without_memory.settings


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_watched_is_described_as_one_that_is_traced(name: str) -> None:
    make, forward, shape = CALLS[name]
    module, x = Calling(make(), forward), torch.rand(shape)
    expected = trace_reference(module, [x])
    result, found = watch_reference(module, [x])
    assert (found.operations, found.settings, found.written, found.moved, found.output, bool(found.obstacle)) == (
        expected.operations,
        expected.settings,
        expected.written,
        expected.moved,
        expected.output,
        bool(expected.obstacle),
    )
    assert found.differentiable == (result.requires_grad,)


KEPT = torch.zeros(4)


@pytest.mark.parametrize(
    "forward",
    [
        lambda _, x: x * x.max().item(),
        lambda _, x: x[x > 0.5],
        lambda _, x: x * x.tolist()[0],
        lambda _, x: x + KEPT.view(2, 2).add_(1).view(4),
        lambda _, x: x.add_(1),
        lambda _, x: x if x.sum() > 100 else -x,
        lambda _, x: (x.to_sparse() * 2).to_dense(),
        lambda _, x: torch.nested.nested_tensor([x, x]).to_padded_tensor(0.0)[0],
    ],
)
def test_a_call_that_is_watched_has_the_obstacles_of_one_that_is_traced(forward: Forward) -> None:
    module = Calling(nn.Identity(), forward)
    assert trace_reference(module, [torch.ones(4)]).obstacle
    assert watch_reference(module, [torch.ones(4)])[1].obstacle


@pytest.mark.parametrize(
    "forward",
    [
        lambda _, x: x[torch.tensor([2, 0])],
        lambda _, x: functional.embedding(torch.tensor([1, 3]), x[:, None]),
        lambda _, x: functional.cross_entropy(x[None], torch.tensor([1])),
    ],
)
def test_positions_decide_values_alone(forward: Forward) -> None:
    assert not watch_reference(Calling(nn.Identity(), forward), [torch.ones(4)])[1].obstacle


FIRST_CALLS = """
import sys, torch
from tunebench.kernels.runtime.registry import load_model
for name, sizes in SIZES.items():
    tuned = load_model(name)
    reference = tuned.kernel.reference(sizes)
    model, expected = (reference.make_model(0, torch.device("cpu"), *more) for more in ((tuned,), ()))
    inputs = reference.make_inputs(1, torch.device("cpu"))
    for _ in range(3):
        torch.testing.assert_close(model(*inputs), expected(*inputs), rtol=1e-4, atol=1e-2)
    assert next(iter(model.choices.values())).reason, name
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.slow
def test_first_calls_do_without_the_compiler_of_pytorch() -> None:
    sizes = {
        "scalar_mul": {"M": 8, "N": 8},
        "gemm_sigmoid_residual": {"batch_size": 4, "input_size": 8, "hidden_size": 8},
    }
    code = FIRST_CALLS.replace("SIZES", repr(sizes))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


DESCRIBED = """
import sys, torch
from tunebench.kernels.runtime.reference_call import describe_reference, trace_reference
from tunebench.kernels.runtime.registry import load_model
factory, place = load_model("gemm_scale_bn"), torch.device("cpu")
reference = factory.kernel.reference({"batch_size": 4, "in_features": 8, "out_features": 8})
module = reference.make_model(0, place, factory).train()
inputs = [one.requires_grad_() for one in reference.make_inputs(1, place)]
before, drawn = {name: one.clone() for name, one in module.state_dict().items()}, torch.get_rng_state()
run = describe_reference(module, inputs)
print("torch._dynamo" in sys.modules)
print(torch.equal(drawn, torch.get_rng_state()), inputs[0].grad_fn)
print(all(torch.equal(one, before[name]) for name, one in module.state_dict().items()))
traced = trace_reference(module, inputs)
print(run.operations == traced.operations, run.settings == traced.settings, run.written == traced.written, run.obstacle)
print(run.differentiable, traced.differentiable)
"""


@pytest.mark.slow
def test_a_call_is_described_by_running_it_on_copies_where_tracing_takes_an_import() -> None:
    done = subprocess.run([sys.executable, "-c", DESCRIBED], capture_output=True, text=True, timeout=120, check=False)
    expected = ["False", "True None", "True", "True True True ", "(True,) None"]
    assert (done.returncode, done.stdout.splitlines()) == (0, expected), done.stderr


def test_how_a_tensor_lies_in_memory_makes_no_other_call() -> None:
    module = Calling(nn.Identity(), lambda _, x: x.reshape(-1).relu())
    dense, turned = torch.empty(8, 4), torch.empty(4, 8).T
    assert trace_reference(module, [dense]).operations == trace_reference(module, [turned]).operations


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: nn.MultiheadAttention(32, 4), lambda: nn.MultiheadAttention(32, 8)),
        (lambda: nn.Conv2d(32, 8, 3, padding=1), lambda: nn.Conv2d(32, 8, 3, padding=2, dilation=2)),
        (lambda: nn.MaxPool1d(3, 1, 1), lambda: nn.MaxPool1d(5, 1, 2)),
    ],
)
def test_numbers_that_decide_the_work_make_another_call(
    one: Callable[[], nn.Module], other: Callable[[], nn.Module]
) -> None:
    def forward(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if isinstance(layer, nn.MultiheadAttention):
            x = x[0]
            result: torch.Tensor = layer(x, x, x, need_weights=False)[0]
            return result
        return call(layer, x if isinstance(layer, nn.Conv2d) else x[0])

    found = [traced(make, forward, (2, 32, 16, 32), "cpu") for make in (one, other)]
    assert all(one.operations for one in found) and found[0].operations != found[1].operations


def test_recurrent_layers_have_a_setting_of_their_own() -> None:
    assert Setting.RECURRENT in traced(*CALLS["recurrent"], "meta").settings
