"""What torch's compiler lowers and fuses is computed by passes as torch computes it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from programs import Case, kernel_of, plan_of, program_of, result_of, results_of, run
from torch import nn
from torch.nn import functional

from tunebench.kernels.runtime.attributes import attributes_of, changed
from tunebench.studies.writing.loops.body import Handler
from tunebench.studies.writing.loops.lower import UnloweredError
from tunebench.studies.writing.loops.program import Program
from tunebench.tuner.compile.nvrtc import NvrtcCompiler
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.problem import Problem

MODELS = {
    "softmax_of_rows": (lambda x: torch.softmax(x * 2, -1), (6, 64)),
    "product_with_a_column": (lambda x: torch.sigmoid(x) * x[:, :1] + x[:1], (6, 64)),
    "shifted": (lambda x: x[:, 3:35].exp() + x[:, 4:36] * x[:, 8:40], (6, 64)),
    "three_best": (lambda x: sum(torch.topk(x, 3, 1)) + torch.topk(x, 2, 1, largest=False)[0].sum(1, True), (4, 20, 3)),
    "three_best_where_they_were": (
        lambda x: torch.ones_like(x).scatter(1, torch.topk(x, 3, 1)[1], torch.topk(x, 3, 1)[0]),
        (4, 20, 3),
    ),
    "put_in_turn": (
        lambda x: x.scatter(-1, (x[:, :3] * 0).long(), x[:, 1:4]).scatter(0, (x[:1] * 0).long() + 2, 7),
        (4, 9),
    ),
    "above_the_diagonal": (lambda x: x[:, *torch.triu_indices(9, 9, 2).unbind()].exp(), (4, 9, 9)),
    "below_the_diagonal": (lambda x: x[:, *torch.tril_indices(9, 9, -1)] * 2, (4, 9, 9)),
    "turned": (lambda x: (x.permute(0, 2, 3, 1) * 2).contiguous(), (2, 24, 6, 16)),
    "turned_by_threes": (lambda x: (x.permute(0, 2, 3, 1) * 2).contiguous(), (3, 5, 7, 9)),
    "channels_last": (
        lambda x: (x + x[:, :1]).contiguous(memory_format=torch.channels_last) * x[:1, :, :1, :1],
        (2, 12, 5, 32),
    ),
    "joined_channels_last": (
        lambda x: torch.cat([x[:, :4], x[:, 2:]], 1).contiguous(memory_format=torch.channels_last),
        (2, 12, 6, 8),
    ),
    "softmax_of_channels": (lambda x: torch.softmax(x, 1), (3, 5, 7)),
    "group_norm": (lambda x: functional.group_norm(x, 2), (2, 6, 5, 3)),
    "layer_norm": (lambda x: functional.layer_norm(x, x.shape[-1:]), (4, 33)),
    "argmax": (lambda x: torch.argmax(x, 1), (3, 50, 4)),
    "all_of_it": (lambda x: x.square().mean(), (41, 130)),
    "columns": (lambda x: x.sum(0), (70, 9)),
    "middle": (lambda x: x.amax(1), (4, 60, 5)),
    "cumulative": (lambda x: torch.cumsum(x, 1), (3, 300)),
    "across": (lambda x: torch.cumprod(x * 0.1 + 1, 0), (40, 5)),
    "pooled": (lambda x: functional.max_pool2d(x, 3, 2, 1), (2, 3, 9, 11)),
    "averaged": (lambda x: functional.avg_pool3d(x, 3, 2, 1), (1, 2, 9, 8, 7)),
    "reversed": (lambda x: x.flip(1).cumsum(1).flip(1), (3, 40)),
    "scans_of_scans": (lambda x: ((x * 2).cumsum(1) * x.sigmoid()).cumsum(1) - x, (5, 320)),
    "scan_and_spread": (lambda x: functional.layer_norm(x.cumsum(1), x.shape[1:]) * x.cumsum(1), (5, 328)),
    "scans_across": (lambda x: (x.sigmoid() * x).cumsum(0) * x.sigmoid() + x, (40, 6)),
    "exclusive": (lambda x: torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1].cumsum(1)], 1), (3, 300)),
    "exclusive_product": (lambda x: torch.cat([torch.ones_like(x[:2]), (x * 0.1 + 1).cumprod(0)]), (40, 5)),
    "mirror_image": (lambda x: x.flip(2) * 2 + x.flip(1) - x.flip(0, 1, 2), (3, 5, 24)),
    "joined": (lambda x: torch.cat([x, -x[:, :3]], 1), (4, 8)),
    "rolled": (lambda x: torch.roll(x, 2, 1) + functional.pad(x, (1, 2))[:, 3:], (4, 8)),
    "norm_and_logits": (lambda x: torch.logsumexp(functional.normalize(x, dim=1), (1, 2)), (3, 10, 6)),
    "loss": (lambda x: functional.cross_entropy(x, x.argmin(1)), (20, 12)),
    "unbiased": (lambda x: x.var(2) + x.std((0, 1)).sum(), (3, 4, 9)),
    "upsampled": (lambda x: functional.interpolate(x, scale_factor=2.0, mode="nearest"), (1, 2, 4, 5)),
    "any_none": (lambda x: torch.where(x.isnan().any(1, keepdim=True), 0.0, x), (4, 9)),
    "integers": (lambda x: (x * 3).to(torch.int64) // 2 % 5, (4, 9)),
    "narrow_integers": (lambda x: (x * 20).abs().to(torch.uint8) * 9 + (x * 20).to(torch.int8).square(), (4, 9)),
    "best_narrow_integer": (lambda x: ((x * 20).to(torch.int8) * 9).argmax(1), (4, 40)),
    "remainders": (lambda x: (x * 20).to(torch.int32) % ((x * 5).to(torch.int32).abs() + 1), (4, 9)),
    "negative_zeros": (lambda x: torch.signbit((x * 0.3).round()), (4, 9)),
    "quotients_of_signs": (lambda x: (1 / x.relu().sign()).clamp(max=9), (4, 9)),
    "mirrored": (lambda x: functional.pad(x, (2, 1), mode="reflect").exp(), (4, 9)),
    "equal_to_a_choice": (lambda x: (x[:1] == torch.where(x > 0, x, -x)).any(0), (4, 9)),
    "root_of_a_size": (lambda x: x * x.shape[1] ** -0.5, (4, 9)),
    "mean_of_one_window": (lambda x: x * functional.avg_pool2d(x, 2), (2, 4, 3, 3)),
    "transposed": (lambda x: (x.mT @ torch.eye(3) if False else x.mT).contiguous().exp(), (4, 6, 3)),
    "shuffled": (lambda x: functional.pixel_shuffle(x, 2), (2, 8, 3, 4)),
    "several_norms": (
        lambda x: functional.layer_norm(torch.softmax(x, -1), x.shape[-1:]) * x.amax(1, keepdim=True),
        (5, 40),
    ),
    "masked": (lambda x: torch.softmax(x.masked_fill(torch.ones(6, 6).triu(1).bool()[None], -1e9), -1), (2, 6, 6)),
}


class Called(nn.Module):
    """A function as a model."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.function(x)  # type: ignore[operator]
        return result


class Looked(nn.Module):
    """A function of a table and places as a model."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return self.function(table, places)


def cases() -> dict[str, Case]:
    torch.manual_seed(0)
    return {
        name: Case(Called(function), {f"{name}_x": torch.randn(shape)}) for name, (function, shape) in MODELS.items()
    }


CHOSEN = (
    {"_width": 8},
    {"_rows": 1, "_lanes": 32, "_width": 2},
    {"_rows": 32, "_lanes": 1},
    {"_rows": 4, "_lanes": 64, "_width": 1},
)
"""Values of tunables, by how their names end."""


Programs = tuple[dict[str, Case], dict[str, Program]]


@pytest.fixture(scope="module")
def written() -> Programs:
    made = cases()
    return made, {name: program_of(case, name) for name, case in made.items()}


@pytest.mark.slow
def test_passes_compute_what_torch_does(written: Programs, tmp_path: Path) -> None:
    made, programs = written
    for chosen in CHOSEN:
        results = results_of(made, programs, tmp_path, **chosen)
        for name, case in made.items():
            torch.testing.assert_close(
                results[name],
                case.model(*case.inputs.values()),
                rtol=1e-5,
                atol=1e-5,
                msg=lambda text, name=name: f"{name}: {text}",
            )


@pytest.mark.slow
def test_passes_are_built_for_every_gpu_and_type(written: Programs, nvrtc: NvrtcCompiler, tmp_path: Path) -> None:
    kernel, sizes = kernel_of(*written, tmp_path)
    for architecture in ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"):
        for dtype in kernel.dtypes if architecture == "sm_90" else ("bfloat16",):
            variant = kernel.variant(Configuration(kernel.space.default), Problem(sizes, dtype, {}), architecture)
            assert nvrtc.compile(variant).figures


@pytest.mark.slow
def test_a_product_is_made_between_passes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    case = Case(TwoProducts(), {"product_x": torch.randn(5, 8)})
    program = program_of(case, "product")
    assert program.products == ("1, product_x_0, 8, 12, None", "1, product_x_0, 12, 6, None")
    assert len(program.passes) == 2
    found = run({"product": case}, tmp_path)["product"]
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, case.model(case.inputs["product_x"]))


@pytest.mark.parametrize(
    ("product", "in_columns"),
    [
        (lambda q, k: q @ k.transpose(-2, -1), (False, False)),  # attention's scores
        (lambda q, k: q.mT @ k, (True, True)),
        (lambda q, k: q[:1] @ k.mT, (False, False)),
        (lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k), (False, False)),
    ],
    ids=["the second", "the first", "the first is expanded", "a contraction"],
)
def test_a_stack_that_is_copied_for_a_product_stays_transposed(
    product: Callable[..., torch.Tensor], in_columns: tuple[bool, bool], tmp_path: Path
) -> None:
    """A copy in the order of its dimensions would read one element of each row after another."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        q, k = (one.unflatten(-1, (3, -1)).transpose(1, 2) for one in x.unbind())
        return torch.softmax(product(q, k), -1)

    case = Case(Called(forward), {"stack_x": torch.randn(2, 2, 5, 12)})
    (sizes,) = program_of(case, "stack").products
    assert sizes.endswith(f"loops.InColumns{in_columns}")
    found = run({"stack": case}, tmp_path)["stack"]
    torch.testing.assert_close(found, forward(case.inputs["stack_x"]))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(3, 4, 3, padding=1, bias=False), (2, 3, 7, 6)),
        (nn.Conv1d(6, 4, 3, stride=2, dilation=2, groups=2), (2, 6, 11)),
        (nn.ConvTranspose3d(3, 2, (1, 2, 3), stride=2, output_padding=1), (2, 3, 4, 3, 5)),
    ],
    ids=["two sides", "one side", "transposed"],
)
def test_a_convolution_is_made_between_passes(layer: nn.Module, shape: tuple[int, ...], tmp_path: Path) -> None:
    torch.manual_seed(0)
    case = Case(nn.Sequential(nn.Tanh(), layer, nn.Softmax(1)), {"input": torch.randn(shape)})
    program = program_of(case, "windows")
    assert "torch.convolution" in "\n".join(program.lines) and len(program.passes) >= 2 and not program.products
    assert "input_0 >= 2" in program.conditions and "input_0 <= 15" not in program.conditions  # as on CPUs alone
    found = run({"windows": case}, tmp_path)["windows"]
    torch.testing.assert_close(found, case.model(case.inputs["input"]))


def test_images_of_one_channel_may_lie_either_way(tmp_path: Path) -> None:
    """They are contiguous and channels-last at once, and what torch's convolution makes of them is channels-last."""
    model, x = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Softmax(1)), torch.randn(2, 1, 7, 6)
    case = Case(model, {"gray": x})
    program = program_of(case, "lies")
    plan = plan_of({"lies": case}, {"lies": program}, tmp_path)
    other = torch.empty_strided(x.shape, (42, 1, 6, 1)).copy_(x)
    assert other.is_contiguous() and not model[0](other).is_contiguous()
    torch.testing.assert_close(result_of(Case(model, {"gray": other}), program, plan), model(x))


def test_frozen_flags_of_torchs_are_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    known: Any = torch.backends.flags_frozen
    monkeypatch.setitem(known.__globals__, "__allow_nonbracketed_mutation_flag", False)
    was_enabled = torch.backends.mkldnn.enabled
    with pytest.raises(RuntimeError, match="disable_global_flags"):
        torch.backends.mkldnn.enabled = not was_enabled
    assert program_of(Case(nn.Conv2d(3, 4, 3), {"x": torch.randn(2, 3, 7, 6)}), "frozen").lines
    assert torch.backends.mkldnn.enabled == was_enabled


def test_networks_and_errors_without_a_text_are_a_reason() -> None:
    class Wordless(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise NotImplementedError("")

    x = torch.randn(2, 3, 5, 5)
    with pytest.raises(UnloweredError, match="several convolutions"):
        program_of(Case(nn.Sequential(nn.Conv2d(3, 3, 1), nn.Tanh(), nn.Conv2d(3, 3, 1)), {"x": x}), "network")
    with pytest.raises(UnloweredError, match="NotImplementedError"):
        program_of(Case(Wordless(), {"x": x}), "wordless")


def test_images_that_are_channels_last_are_no_kernel_s_to_convolve() -> None:
    """Passes read what a convolution makes as its layout was in the trace, and torch's own depends on the device."""
    model = nn.Sequential(nn.Tanh(), nn.Conv2d(3, 4, 3)).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.randn(2, 3, 7, 6).to(memory_format=torch.channels_last)
    with pytest.raises(UnloweredError, match="channels-last"):
        program_of(Case(model, {"x": x}), "windows")


class TwoProducts(nn.Module):
    """Two layers with functions behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 12), nn.Linear(12, 6, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.second(torch.relu(self.first(x))), -1)


def test_a_branch_on_a_size_is_a_condition() -> None:
    def short(x: torch.Tensor) -> torch.Tensor:
        return x.exp() if x.shape[1] < 6 else -x

    assert "x_1 <= 5" in program_of(Case(Called(short), {"x": torch.randn(4, 3)}), "short").conditions


def test_few_long_rows_are_reduced_by_several_blocks_each_before_their_elements_are_made() -> None:
    def centred(x: torch.Tensor) -> torch.Tensor:
        return x - x.mean()

    passes = program_of(Case(Called(centred), {"x": torch.randn(256, 256)}), "long").passes
    assert [(one.joins, one.parts > 1) for one in passes] == [(1, True), (0, False)]
    assert len(program_of(Case(Called(centred), {"x": torch.randn(16, 16)}), "short").passes) == 1


@pytest.mark.parametrize(
    ("function", "shape", "threads"),
    [
        (lambda x: torch.softmax(x, 1), (2, 100, 260, 260), (64, 8)),
        (lambda x: torch.softmax(x, 1), (2, 16, 260, 260), (256, 1)),
        (lambda x: x.sum(1), (2, 100, 260, 260), (256, 1)),
        (lambda x: torch.softmax(x, 1), (600, 8192), (1, 256)),
        (lambda x: torch.softmax(x, 1), (600, 8200), (1, 512)),
        (lambda x: torch.softmax(x, 1), (600, 16385), (1, 256)),
        (lambda x: x.sum(1), (600, 8200), (1, 256)),
        (lambda x: functional.avg_pool3d(x, 3, 2), (2, 8, 80, 80, 80), (256, 1)),
        (lambda x: functional.avg_pool3d(x, 4), (2, 8, 160, 160, 160), (32, 8)),
    ],
)
def test_rows_that_are_read_several_times_have_lanes_that_keep_them(
    function: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...], threads: tuple[int, int]
) -> None:
    (one,) = program_of(Case(Called(function), {"x": torch.empty(shape)}), "rows").passes
    assert (one.rows, one.lanes) == threads


def test_places_have_32_bits_where_windows_alone_have_more_elements_than_tensors() -> None:
    """The windows have 27 times the elements that they reduce to, and what numbers them all is no place."""
    pooled = program_of(
        Case(Called(lambda x: functional.avg_pool3d(x, 3, 2)), {"x": torch.empty(16, 16, 160, 160, 160)}), "pooled"
    )
    sizes = {f"x_{n}": size for n, size in enumerate((16, 16, 160, 160, 160))}
    counts = [eval(one, {"floor_div": lambda x, y: x // y}, sizes) for one in pooled.counts]
    assert max(counts) == 16 * 16 * 160**3 and 27 in counts


def test_several_results_are_returned_in_their_form(tmp_path: Path) -> None:
    torch.manual_seed(0)
    case = Case(
        Called(lambda x: ((x + 1, [x.sum(1)]), {"as it is": x, "half": x[:, :4]})), {"several_x": torch.randn(5, 8)}
    )
    found: object = run({"several": case}, tmp_path)["several"]
    torch.testing.assert_close(found, case.model(case.inputs["several_x"]))


def test_views_begin_where_their_tensor_does_and_not_where_its_memory_does(tmp_path: Path) -> None:
    torch.manual_seed(0)
    slices = {"x": torch.randn(9, 8)[4:]}
    cases = {
        "half": Case(Called(lambda x: (x[:, :4], x + 1)), slices),
        "product": Case(Called(lambda x: torch.mm(x, x.t()).relu()), slices),
    }
    for name, found in run(cases, tmp_path).items():
        torch.testing.assert_close(found, cases[name].model(slices["x"]))


@pytest.mark.parametrize(
    ("forward", "along", "across"),
    [
        (lambda x: (x[:2] + x[2:]).contiguous(memory_format=torch.channels_last), "x_3*x_2", "x_1"),
        (lambda x: torch.cat([x, -x], 1).contiguous(memory_format=torch.channels_last), "2*x_1", "x_3*x_2"),
        (lambda x: x.permute(0, 2, 3, 1).exp().contiguous(), "x_1", "x_3*x_2"),
    ],
    ids=["most are planes", "packs are channels", "packs are written"],
)
def test_neighbours_along_two_dimensions_fill_sectors(
    forward: Callable[..., torch.Tensor], along: str, across: str
) -> None:
    """A thread has packs along one, and neighbouring threads have neighbours along the other."""
    (only,) = program_of(Case(Called(forward), {"x": torch.randn(4, 24, 8, 16)}), "sectors").passes
    assert f"items = common(pass_vector_width, {along});" in only.text
    assert f"turns = common(16, {across});" in only.text and only.text.count("% turns") == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("forward", "shape", "is_row"),
    [
        (lambda x: x.exp().sum(1), (300, 3, 256), False),
        (lambda x: x - x.mean(1, keepdim=True), (300, 2, 256), False),
        (lambda x: x.exp().sum(1), (300, 9, 256), True),
        (lambda x: x.exp().sum(-1), (70_000, 3), True),
        (lambda x: x.exp().sum(1), (30, 3, 256), True),
    ],
    ids=["a sum", "a mean", "of nine", "along memory", "little"],
)
def test_short_sums_across_memory_are_additions(
    forward: Callable[..., torch.Tensor], shape: tuple[int, ...], is_row: bool, dtype: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    case = Case(Called(forward), {"few_x": torch.randn(shape, dtype=getattr(torch, dtype))})
    program = program_of(case, "few")
    assert (program.passes[0].reduced is not None) is is_row
    assert (f"few_x.shape[1] == {shape[1]}" in program.conditions) is not is_row
    found = run({"few": case}, tmp_path, dtype)["few"]
    assert isinstance(found, torch.Tensor)
    bound = {"float32": 1e-5, "bfloat16": 2e-2}[dtype]
    torch.testing.assert_close(found, forward(case.inputs["few_x"]), rtol=bound, atol=bound)


def test_sums_of_single_numbers_and_of_integers_are_torchs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(300, 3, 256)
    cases = {
        "number": Case(Called(lambda x: (x + 1).sum(0)), {"number_x": torch.tensor(2.5)}),
        "whole": Case(Called(lambda x: (x * 9).long().sum(1)), {"whole_x": x}),
    }
    for name, found in run(cases, tmp_path).items():
        (given,) = cases[name].inputs.values()
        torch.testing.assert_close(found, cases[name].model(given))


def test_a_row_that_a_tensor_names_is_read_in_packs_where_it_is_one_for_all_elements(tmp_path: Path) -> None:
    torch.manual_seed(0)
    places, table = torch.tensor([3, -1, 0, 2, 3]), torch.randn(4, 24)
    case = Case(Looked(lambda table, places: table[places] * 2), {"table": table, "places": places})
    columns = Case(
        Looked(lambda table, places: table[:, places] * 2), {"table": table.t().contiguous(), "places": places}
    )
    texts = [program_of(one, f"looked_{at}").passes[0].text for at, one in enumerate((case, columns))]
    assert [">(table + " in text for text in texts] == [True, False]
    for name, one in {"rows": case, "columns": columns}.items():
        torch.testing.assert_close(run({name: one}, tmp_path)[name], one.model(*one.inputs.values()))


class TwoNorms(nn.Module):
    """Keeps statistics, of which one begins where no wide access can, and counts its calls twice."""

    def __init__(self, sides: int) -> None:
        super().__init__()
        self.one, self.other = nn.BatchNorm2d(6), nn.BatchNorm2d(6)
        self.one.running_mean = torch.arange(7.0)[1:]
        self.sides = sides

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(torch.relu(self.one(x)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("sides", [5, 80])
def test_statistics_move_where_they_are(sides: int, tmp_path: Path) -> None:
    """By one block of each channel, and by several, of which the last has its mean."""
    torch.manual_seed(0)
    model, x = TwoNorms(sides), torch.randn(3, 6, sides, sides)
    reference, case = copy.deepcopy(model), Case(model, {f"own{sides}_x": x})
    programs = {f"own{sides}": program_of(case, f"own{sides}")}
    assert not any("copy_" in line for line in programs[f"own{sides}"].lines)
    counting = [one for one in programs[f"own{sides}"].passes if "num_batches_tracked" in one.text]
    assert len(counting) == 1 and counting[0].text.count("num_batches_tracked[0] = ") == 2
    plan, before = plan_of({f"own{sides}": case}, programs, tmp_path, parts=4), model.other.running_var._version
    for _ in range(2):
        torch.testing.assert_close(result_of(case, programs[f"own{sides}"], plan), reference(x))
    torch.testing.assert_close(model.state_dict(), reference.state_dict())
    assert model.other.running_var._version == before + 2


class Average(nn.Module):
    """Moves a mean that each element of a row is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return torch.relu(x - self.mean)


class Remembering(nn.Module):
    """Keeps a product, and what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("product", torch.zeros(4, 4))
        self.register_buffer("last", torch.zeros(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.product.copy_(x @ x)
        self.last.copy_(x)
        return torch.relu(x)


def test_what_no_pass_makes_is_copied(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Remembering(), torch.randn(4, 4)
    case = Case(model, {"kept_x": x})
    torch.testing.assert_close(run({"kept": case}, tmp_path)["kept"], torch.relu(x))
    torch.testing.assert_close(model.product, x @ x)
    assert torch.equal(model.last, x)


class Remembered(nn.Module):
    """Keeps a value, and the one before it."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        for name in names:
            self.register_buffer(name, torch.zeros(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.before.copy_(self.now)
        self.now.copy_(x.exp() + self.now)
        return torch.relu(x)


@pytest.mark.parametrize("names", [("before", "now"), ("now", "before")])
def test_a_tensor_that_becomes_what_another_was_is_copied_before_that_moves(
    names: tuple[str, str], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, x = Remembered(*names), torch.randn(4, 4)
    reference, case = copy.deepcopy(model), Case(model, {"twin_x": x})
    program = program_of(case, "twin")
    plan = plan_of({"twin": case}, {"twin": program}, tmp_path)
    for _ in range(2):
        torch.testing.assert_close(result_of(case, program, plan), reference(x))
    torch.testing.assert_close(model.state_dict(), reference.state_dict())


def test_what_all_threads_of_a_row_need_moves_when_they_are_done(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Average(), torch.randn(8, 32)
    reference, case = copy.deepcopy(model), Case(model, {"average_x": x})
    program = program_of(case, "average")
    assert len(program.passes) == 1 and "self.mean.copy_(" in program.lines[-2]
    torch.testing.assert_close(run({"average": case}, tmp_path)["average"], reference(x))
    torch.testing.assert_close(model.mean, reference.mean)


@pytest.mark.slow
def test_rows_of_equal_elements_less_their_mean_are_zero(tmp_path: Path) -> None:
    rows = torch.tensor([0.1, -3.7, 1e-3, 77.7])[:, None].expand(4, 37).contiguous()
    cases = {
        "equal": Case(Called(lambda x: nn.functional.layer_norm(x, (37,))), {"equal_x": rows}),
        "spread": Case(Called(lambda x: torch.std(x, 1, correction=0)), {"spread_x": rows}),
    }
    found = run(cases, tmp_path)
    assert not found["equal"].any()
    torch.testing.assert_close(found["spread"], torch.zeros(4), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("columns", "is_read_once"), [(64, False), (40_000, True)])
def test_a_row_that_is_not_kept_on_chip_is_read_once_for_mean_and_variance(columns: int, is_read_once: bool) -> None:
    model = Called(lambda x: torch.cat([torch.var(x, 1), torch.std(x, 1)]))
    (only, *_) = program_of(Case(model, {"x": torch.randn(300, columns)}), "moments").passes
    assert ("Spread::add" in only.text) is is_read_once


@pytest.mark.parametrize("columns", [40_000, 40_001])
def test_equal_values_have_no_variance(columns: int, tmp_path: Path) -> None:
    """Whatever they are: a mean that is off by its last bit would be all of a normalisation's output."""
    torch.manual_seed(0)
    x = torch.rand(64, 1).expand(64, columns).contiguous()
    case = Case(Called(lambda x: x.var(1)), {"equal_x": x})
    assert "Spread::add" in program_of(case, "equal").passes[0].text
    assert torch.equal(run({"equal": case}, tmp_path)["equal"], torch.zeros(64))


def test_integers_made_of_half_types_are_torchs(tmp_path: Path) -> None:
    torch.manual_seed(0)

    def rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = x.abs().amax(-1, keepdim=True) / 127
        return torch.round(x / scale).to(torch.int8), scale

    case = Case(Called(rows), {"int8_x": torch.randn(64, 96, dtype=torch.bfloat16)})
    found = run({"int8": case}, tmp_path, "bfloat16")["int8"]
    torch.testing.assert_close(found, case.model(case.inputs["int8_x"]), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("forward", "count"),
    [
        (lambda x: torch.where(x > 0, x.abs().clamp(max=2), -x.round()).relu().int(), 0),
        (lambda x: (x.amax(1, keepdim=True) - x.amin(1, keepdim=True)).int(), 1),
        (lambda x: ((3 * x).clamp(min=0.1).abs() + 1).int(), 3),  # a bfloat16 has no 0.1
    ],
)
def test_what_a_half_type_has_is_not_rounded_again(
    forward: Callable[..., torch.Tensor], count: int, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    case = Case(Called(forward), {"exact_x": torch.randn(33, 40).mul(4).bfloat16()})
    assert sum(one.text.count("rounded(") for one in program_of(case, "exact").passes) == count
    found = run({"exact": case}, tmp_path, "bfloat16")["exact"]
    assert torch.equal(found, forward(case.inputs["exact_x"]))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_mean_is_of_what_is_stored(dtype: str, tmp_path: Path) -> None:
    """Later loops read what the first one rounded, far from the mean of what it had in single precision."""
    torch.manual_seed(0)
    offset = {"float16": 2400.7, "bfloat16": 300.7}[dtype]  # where neighbours are 2 apart

    def rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x / 4 + offset
        return y, torch.nn.functional.layer_norm(y, y.shape[-1:])

    case = Case(Called(rows), {"stored_x": torch.randn(64, 96).to(getattr(torch, dtype))})
    stored, normalised = run({"stored": case}, tmp_path, dtype)["stored"]
    expected = torch.nn.functional.layer_norm(stored.double(), stored.shape[-1:])
    assert expected.std() > 0.5
    torch.testing.assert_close(normalised.double(), expected, atol=2e-2, rtol=1e-2)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("lanes", [1, 4, 64, 256])
def test_a_scan_has_as_many_lanes_as_it_is_given(lanes: int, dim: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    case = Case(Called(lambda x: x.cumsum(dim)), {"scanned_x": torch.randint(-9, 9, (270, 300)).double()})
    narrow = Case(Called(lambda x: x.int().cumsum(dim, dtype=torch.int16)), {"narrow_x": torch.randn(90, 300).mul(9)})
    for name, one, dtype in (("scanned", case, "float64"), ("narrow", narrow, "float32")):
        program = program_of(one, name)
        plan = plan_of({name: one}, {name: program}, tmp_path, dtype, _lanes=lanes, _rows=4)
        assert torch.equal(result_of(one, program, plan), one.model(*one.inputs.values()))


@pytest.mark.parametrize("name", ["exclusive", "reversed", "scan_and_spread", "scans_of_scans"])
def test_a_scan_with_what_stands_around_it_is_one_pass(name: str, written: Programs) -> None:
    (own,) = written[1][name].passes
    assert own.text.count("x +") + own.text.count("when(") >= 1  # a pack of its row, or what is in front of it
    assert "if (is_inside) write<" in own.text


def test_what_is_read_backwards_is_read_in_packs(written: Programs) -> None:
    (own,) = written[1]["mirror_image"].passes
    assert own.text.count("read<items") == 3
    assert own.text.count(".of[items - 1 - item]") == 2


def test_a_scan_of_another_type_or_with_other_numbers_in_front_stays_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    for name, function in (
        ("ones", lambda x: torch.cat([torch.ones_like(x[:, :1]), x.cumsum(1)], 1)),
        ("whole", lambda x: torch.cat([torch.zeros_like(x[:, :1]).long(), (x > 0).cumsum(1)], 1)),
        ("stacked", lambda x: torch.cat([torch.zeros_like(x[:1]), x.cumsum(1)])),
        ("behind", lambda x: torch.cat([x.cumsum(1), torch.zeros_like(x[:, :1])], 1)),
    ):
        case = Case(Called(function), {f"{name}_x": torch.randn(6, 41)})
        torch.testing.assert_close(run({name: case}, tmp_path)[name], case.model(*case.inputs.values()))


@pytest.mark.parametrize("dim", [0, 1])
def test_the_first_of_equal_places_and_of_nans_is_torchs(dim: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randint(-3, 4, (60, 900)).float()
    x[3::7, 2::5] = torch.nan
    x[1, :] = -torch.inf
    x[:, 1] = torch.inf
    case = Case(Called(lambda x: torch.stack([x.argmax(dim), x.argmin(dim)])), {"placed_x": x})
    assert torch.equal(run({"placed": case}, tmp_path)["placed"], case.model(x))


def test_an_integer_becomes_a_number_where_it_is_converted() -> None:
    handler = Handler(torch.bfloat16, None)
    value = handler.to_dtype(handler.constant(8, torch.int64), torch.float32, torch.int64)
    assert handler.lines.statements == [f"const auto {value} = accumulator_t(8);"]
    assert handler.to_dtype(value, torch.bfloat16, torch.float32, use_compute_types=False) != value
    exact = handler.constant(8, torch.float32)
    assert handler.to_dtype(exact, torch.bfloat16, torch.float32, use_compute_types=False) == exact


def test_a_number_that_forward_makes_a_tensor_of_is_a_constant(tmp_path: Path) -> None:
    torch.manual_seed(0)
    case = Case(
        Called(lambda x: torch.minimum(x, torch.tensor(0.25)) * torch.tensor([3])), {"number_x": torch.randn(5, 8)}
    )
    found = run({"number": case}, tmp_path)["number"]
    torch.testing.assert_close(found, case.model(case.inputs["number_x"]))


def test_a_result_of_the_inputs_sizes_counts_among_what_crosses_memory() -> None:
    for function, shape in (
        (lambda x: x.mT.exp().cumsum(1), ("x_0", "x_2", "x_1")),
        (lambda x: x.sum(1), ("x_0", "x_2")),
        (lambda x: x.sum(1, keepdim=True), ()),  # its 1 is no size of an input's
        (lambda x: (x + 1, x - 1), ()),
    ):
        assert program_of(Case(Called(function), {"x": torch.randn(3, 5, 7)}), "counted").shape == shape


def test_passes_are_for_tensors_of_the_shapes_that_they_were_written_for() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    numbers = attributes_of(model)
    assert changed(model, numbers) == ""
    model[1].running_mean = torch.zeros(5)
    assert changed(model, numbers) == "1.running_mean"


def test_what_has_no_loops_says_why() -> None:
    for function, reason in (
        (lambda x: torch.sort(x, 1).values, "sort"),
        (lambda x: (x + 1, x.shape[0]), "a result that is no tensor"),
        (lambda x: x.index_put((torch.tensor([0]),), torch.tensor(1.0)), "a tensor that"),
    ):
        with pytest.raises(UnloweredError, match=reason):
            program_of(Case(Called(function), {"x": torch.randn(4, 6)}), "none")
