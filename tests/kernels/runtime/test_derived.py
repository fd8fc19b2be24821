"""Tensors derived from weights: every change to what they were made from changes the next output, frozen or not."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import sample_kernel
import torch
from sample_kernel import WriteKernel
from torch import nn

from tunebench.kernels.runtime.derived import DerivedTensors
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.tuner.compile.cache import BuildCache
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import find_device
from tunebench.tuner.errors import KernelFolderError, UserError
from tunebench.tuner.kernel import Mode
from tunebench.tuner.result import TrialStatus
from tunebench.tuner.study.evaluate import LocalEvaluator
from tunebench.tuner.study.subject import Subject

REFERENCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(5, 33) + 0.5)
        self.bn = nn.BatchNorm1d(33)

    def forward(self, x):
        return self.bn(x * self.weight.sum(0))

rows = 64

def get_inputs():
    return [torch.rand(rows, 33) + 0.1]

def get_init_inputs():
    return []
"""

SOURCE = """
extern "C" __global__ void __launch_bounds__(block_size)
    weigh(const scalar_t* x, const scalar_t* multiplier, const scalar_t* offset, scalar_t* y, int rows, int columns) {
    const int column = blockIdx.x * block_size + threadIdx.x;
    if (column >= columns) return;
    for (int row = 0; row < rows; ++row) {
        y[row * columns + column] = x[row * columns + column] * multiplier[column] + offset[column];
    }
}
"""

MODEL = """
import torch
from tunebench import Kernel, Problem, SearchSpace, Tunable, TunedModule, Work
from .reference import Model

SPACE = SearchSpace((Tunable("block_size", (32, 64)),))

class ModelNew(TunedModule, Model):
    kernel = Kernel.declare(__file__, SPACE, modes=("eval", "frozen"))
    made = 0

    def problem(self, x):
        bn = self.bn
        if bn.training or not bn.affine or bn.running_var is None or not x.is_contiguous() or x.numel() == 0:
            return None
        if x.shape[1:] != bn.weight.shape:
            return None
        return super().problem(x)

    def fold(self):
        self.made += 1
        bn = self.bn
        multiplier = bn.weight / torch.sqrt(bn.running_var + bn.eps)
        return self.weight.sum(0) * multiplier, bn.bias - bn.running_mean * multiplier

    def tuned_forward(self, plan, x):
        multiplier, offset = self.derived("folded", self.fold, (self.weight, self.bn), (self.bn.eps,))
        y = torch.empty_like(x)
        block_size = plan.integer("block_size")
        plan.launch("weigh", x, multiplier, offset, y, *x.shape, blocks=2, threads=block_size)
        return y
"""

Pair = tuple[Any, Any]


@pytest.fixture
def fold(write_kernel: WriteKernel) -> type[TunedModule]:
    """A kernel that folds a sum of its weight and BatchNorm into two vectors, and keeps them while frozen."""
    return write_kernel(
        {sample_kernel.SOURCE: SOURCE}, {sample_kernel.MODEL: MODEL}, {sample_kernel.REFERENCE: REFERENCE}
    )


@pytest.fixture(params=["eval", "frozen"])
def pair(request: pytest.FixtureRequest, fold: type[TunedModule]) -> Pair:
    return make_pair(fold, request.param == "frozen")


def make_pair(fold: type[TunedModule], frozen: bool) -> Pair:
    """A reference and the tuned model with its state, both having run once, in one of the modes."""
    reference: Any = fold.kernel.reference().make_model(0, torch.device("cpu")).eval()
    tuned: Any = fold().eval()
    tuned.load_state_dict(reference.state_dict())
    if frozen:
        tuned.freeze()
    assert_agree(reference, tuned)
    return reference, tuned


@torch.no_grad()
def assert_agree(reference: Any, tuned: Any) -> torch.Tensor:
    x = torch.rand(7, 33, dtype=reference.weight.dtype)
    wanted: torch.Tensor = reference(x)
    for _ in range(2):
        torch.testing.assert_close(tuned(x), wanted, rtol=1e-4, atol=1e-5)
    return wanted


def optimiser_step(model: Any, make: Callable[..., torch.optim.Optimizer], **options: Any) -> None:
    x = torch.ones(4, 33, dtype=model.weight.dtype)
    optimiser = make(model.parameters(), lr=0.5, **options)
    model(x).square().sum().backward()
    optimiser.step()
    optimiser.zero_grad()


def train_a_step(model: Any) -> None:
    model.bn.train()
    with torch.no_grad():
        model(torch.linspace(0, 9, 4 * 33, dtype=model.weight.dtype).reshape(4, 33))
    model.bn.eval()


def twice_converted(model: Any) -> None:
    """The new float32 memory may well be where the old one was."""
    model.half().float()


def half_the_state(model: Any) -> dict[str, torch.Tensor]:
    return {name: value * 0.5 if value.is_floating_point() else value for name, value in model.state_dict().items()}


@torch.no_grad()
def in_place(model: Any) -> None:
    model.weight[3, 4] += 100.0


@torch.inference_mode()
def in_place_in_inference_mode(model: Any) -> None:
    model.weight.mul_(3.0)


def other_data(model: Any) -> None:
    model.weight.data = torch.full_like(model.weight, 0.25)


def transposed_data(model: Any) -> None:
    square = torch.arange(25.0).reshape(5, 5)
    model.weight.data = torch.cat([square.T, torch.ones(5, 28)], dim=1)


def swapped(model: Any) -> None:
    torch.utils.swap_tensors(model.weight, nn.Parameter(torch.full_like(model.weight, 0.25)))


def replaced(model: Any) -> None:
    model.weight = nn.Parameter(torch.full_like(model.weight, 0.25))


def recycled(model: Any) -> None:
    """A new parameter whose memory and identity may be those of the old one."""
    shape = model.weight.shape
    del model.weight
    gc.collect()
    model.weight = nn.Parameter(torch.full(shape, 0.25))


def statistics_in_place(model: Any) -> None:
    model.bn.running_mean.fill_(3.0)


def eps_changed(model: Any) -> None:
    model.bn.eps = 2.0


CHANGES: dict[str, Callable[[Any], object]] = {
    "SGD": lambda model: optimiser_step(model, torch.optim.SGD),
    "fused SGD": lambda model: optimiser_step(model, torch.optim.SGD, fused=True),
    "fused Adam": lambda model: optimiser_step(model, torch.optim.Adam, fused=True),
    "foreach Adam": lambda model: optimiser_step(model, torch.optim.Adam, foreach=True),
    "load_state_dict": lambda model: model.load_state_dict(half_the_state(model)),
    "load_state_dict, assigned": lambda model: model.load_state_dict(half_the_state(model), assign=True),
    "in place": in_place,
    "in place, inference mode": in_place_in_inference_mode,
    "other data": other_data,
    "transposed data": transposed_data,
    "swapped": swapped,
    "replaced": replaced,
    "recycled": recycled,
    "statistics in place": statistics_in_place,
    "BatchNorm moves its statistics": train_a_step,
    "eps": eps_changed,
    "initialised anew": lambda model: nn.init.constant_(model.weight, 2.0),
}
"""Changes that PyTorch counts, or that leave another tensor behind."""


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_changes_the_next_output(pair: Pair, change: str) -> None:
    reference, tuned = pair
    x = torch.ones(3, 33)
    with torch.no_grad():
        before = reference(x)
    for _ in range(2):  # a second time, from a vector that was made anew
        for model in pair:
            CHANGES[change](model)
        after = assert_agree(reference, tuned)
    with torch.no_grad():
        assert not torch.allclose(reference(x), before)
    assert after.dtype == before.dtype


@pytest.mark.parametrize(
    "convert", [twice_converted, lambda model: model.to(torch.float64), lambda model: model.half()]
)
def test_conversions(pair: Pair, convert: Callable[[Any], object]) -> None:
    for model in pair:
        convert(model)
    assert_agree(*pair)


def test_unfrozen_nothing_is_kept_so_that_edits_through_data_are_seen(fold: type[TunedModule]) -> None:
    reference, tuned = make_pair(fold, frozen=False)
    made = tuned.made
    for model in (reference, tuned):
        model.weight.data.mul_(3.0)
    assert_agree(reference, tuned)
    assert tuned.made == made + 2


def test_frozen_forms_are_made_once(fold: type[TunedModule]) -> None:
    reference, tuned = make_pair(fold, frozen=True)
    for _ in range(3):
        assert_agree(reference, tuned)
    assert tuned.made == 1
    assert {problem.options["mode"] for problem, _ in tuned.choices} == {"frozen"}


def test_freezing_again_forgets_what_edits_through_data_made_stale(fold: type[TunedModule]) -> None:
    reference, tuned = make_pair(fold, frozen=True)
    for model in (reference, tuned):
        model.weight.data.mul_(3.0)
    x = torch.rand(7, 33)
    with torch.no_grad():
        assert not torch.allclose(tuned(x), reference(x)), "seen after all: then say so in freeze()"
    assert_agree(reference, tuned.freeze())


def test_train_unfreezes_and_eval_does_not(fold: type[TunedModule]) -> None:
    _, tuned = make_pair(fold, frozen=True)
    parent = nn.Sequential(tuned)
    assert parent.eval() and tuned.is_frozen
    parent.train()
    assert not tuned.is_frozen and tuned.training
    tuned.freeze()
    assert tuned.is_frozen and not tuned.training and not tuned.bn.training
    assert not tuned.unfreeze().is_frozen and not tuned.training


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_is_frozen_as_its_original_and_keeps_its_own_forms(pair: Pair, duplicate: Callable[[Any], Any]) -> None:
    reference, tuned = pair
    frozen = tuned.is_frozen
    copied = duplicate(tuned)
    assert copied.is_frozen == frozen
    assert_agree(reference, copied)
    if duplicate is not copy.copy:
        for model in (reference, copied):
            in_place(model)
        assert_agree(reference, copied)
        tuned.unfreeze()
        assert copied.is_frozen == frozen


def test_the_state_dict_does_not_know(fold: type[TunedModule]) -> None:
    reference, tuned = make_pair(fold, frozen=True)
    assert list(tuned.state_dict()) == list(reference.state_dict())
    assert len(list(tuned.buffers())) == len(list(reference.buffers()))


def test_a_frozen_model_gives_gradients_all_the_same(fold: type[TunedModule]) -> None:
    reference, tuned = make_pair(fold, frozen=True)
    for model in (reference, tuned):
        model(torch.ones(2, 33)).sum().backward()
    torch.testing.assert_close(tuned.weight.grad, reference.weight.grad)


def test_parameters_made_in_inference_mode(fold: type[TunedModule]) -> None:
    with torch.inference_mode():
        reference, tuned = make_pair(fold, frozen=True)
        for model in (reference, tuned):
            in_place(model)
        assert_agree(reference, tuned)


def test_a_form_made_in_inference_mode_serves_outside_it(fold: type[TunedModule]) -> None:
    reference, tuned = make_pair(fold, frozen=True)
    in_place(reference)
    in_place(tuned)
    with torch.inference_mode():
        assert_agree(reference, tuned)
    made = tuned.made
    assert_agree(reference, tuned)
    assert tuned.made == made


def test_an_optimiser_of_another_model_leaves_the_forms_alone(fold: type[TunedModule]) -> None:
    _, tuned = make_pair(fold, frozen=True)
    other = make_pair(fold, frozen=True)[1]
    optimiser_step(other, torch.optim.SGD, fused=True)
    with torch.no_grad():
        tuned(torch.rand(7, 33))
    assert tuned.made == 1


def test_converting_and_unfreezing_let_go_of_memory(fold: type[TunedModule]) -> None:
    for let_go in (lambda model: model.double(), lambda model: model.unfreeze()):
        tuned = make_pair(fold, frozen=True)[1]
        old = weakref.ref(tuned.weight)
        tuned.weight = nn.Parameter(torch.zeros(5, 33))
        gc.collect()
        assert old() is not None, "held, so that its identity cannot come back"
        let_go(tuned)
        gc.collect()
        assert old() is None


def test_forms_of_other_settings_live_side_by_side_until_a_source_changes() -> None:
    derived, weight, made = DerivedTensors(), torch.ones(3), [0]

    def make() -> torch.Tensor:
        made[0] += 1
        return weight * made[0]

    for _ in range(3):
        one, two = (derived.get("sum", make, (weight,), setting) for setting in (1, 2))
    assert (made[0], len(derived), one[0].item(), two[0].item()) == (2, 2, 1.0, 2.0)
    weight.mul_(5)
    assert derived.get("sum", make, (weight,), 1)[0].item() == 15.0
    assert len(derived) == 1
    weight_again = weight.detach()
    assert derived.get("sum", make, (weight_again,), 1)[0].item() == 20.0
    assert derived.get("other", make, (weight,), 1)[0].item() == 25.0


def test_a_change_while_a_form_is_made_is_not_taken_for_its_source() -> None:
    derived, weight = DerivedTensors(), torch.ones(3)

    def make() -> torch.Tensor:
        doubled = weight * 2
        weight.add_(1)
        return doubled

    first = derived.get("double", make, (weight,), ())
    assert derived.get("double", lambda: weight * 2, (weight,), ())[0] == 4.0 != first[0]


@pytest.mark.slow
def test_the_gate_and_the_tuner_know_the_mode(fold: type[TunedModule]) -> None:
    cpu = find_device("cpu")
    for mode in fold.kernel.modes:
        subject = Subject.prepare(fold.kernel, fold, fold.kernel.reference(), mode, cpu)
        assert subject.problem.named.options == {"mode": mode}
        evaluator = LocalEvaluator(subject, compiler_for(cpu))
        for configuration in fold.kernel.space.enumerate(subject.problem, cpu):
            variant = fold.kernel.variant(configuration, subject.problem, cpu.architecture)
            build = BuildCache().build(compiler_for(cpu), variant)
            result = evaluator.evaluate(configuration, build)
            assert result.status is TrialStatus.CORRECT, result.message


def test_a_model_that_does_not_tell_its_modes_apart_is_refused(fold: type[TunedModule]) -> None:
    class Forgetful(fold):  # type: ignore[valid-type,misc]
        def mode(self) -> Mode:
            return Mode.EVAL

    with pytest.raises(UserError, match="takes its inputs for the problem x_0=64 x_1=33 float32 mode=eval"):
        Subject.prepare(fold.kernel, Forgetful, fold.kernel.reference(), Mode.FROZEN, find_device("cpu"))


def test_a_mode_that_is_none_is_refused(write_kernel: WriteKernel) -> None:
    with pytest.raises(KernelFolderError, match="name one or more of eval, train, frozen"):
        write_kernel(model={"work=work)": 'work=work, modes=("eval", "test"))'})
