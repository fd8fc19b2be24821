"""A batch's statistics, joined of what the fused product's tiles have left: on the CPU, from tiles made by torch."""

import copy
import itertools
from dataclasses import replace

import pytest
import torch
from parts_contract import fictional

from tunebench.kernels.blocks.linear_batch_norm import Norm, _batch_vectors, _TileMoments
from tunebench.kernels.blocks.linear_pass import LinearCall
from tunebench.kernels.gemm_scale_bn.model import ModelNew
from tunebench.kernels.shared.parts_product import Product
from tunebench.kernels.shared.split_product import Unfit
from tunebench.tuner.build import Within
from tunebench.tuner.compile.compilers import compiler_for
from tunebench.tuner.device import find_device
from tunebench.tuner.kernel import Plan
from tunebench.tuner.problem import Problem

CPU = find_device("cpu")
IN_FEATURES = 8


def plan_for(rows: int, features: int, normalisation: str, columns: int, statistics_in: str) -> Plan:
    """A plan for the CPU with a configuration that Hopper runs."""
    kernel, compiler = ModelNew.kernel, compiler_for(CPU)
    axes = {"rows": rows, "in_features": IN_FEATURES, "out_features": features}
    problem = Problem(axes, "float32", {"mode": "train"})
    values = {"product": "fused", "statistics_in": statistics_in, "statistics_rows": 4}
    values |= {"normalisation": normalisation, "product_columns": columns, "vector_width": 1}
    configuration = kernel.space.choose(values, problem, fictional("sm_90"))
    build = compiler.compile(kernel.variant(configuration, problem, CPU.architecture))
    return Plan(kernel, configuration, problem, CPU, compiler.load(build, None))


def tiles_of(values: torch.Tensor, columns: int) -> torch.Tensor:
    """(tiles, features, 2): of each tile's values mean and squares of the distances from it, as in the epilogue."""
    of_each = [(tile.mean(0), (tile - tile.mean(0)).square().sum(0)) for tile in values.split(columns)]
    return torch.stack([torch.stack(one, 1) for one in of_each])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("normalisation", "rows", "features", "columns"),
    [
        ("per_element", 2, 5, 128),
        ("reciprocal", 300, 40, 128),
        ("folded", 1100, 33, 256),
    ],
)
def test_joined_moments_are_what_a_pass_finds(normalisation: str, rows: int, features: int, columns: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    product = torch.randn(rows, features, generator=generator) + 50 * torch.randn(features, generator=generator)
    model = ModelNew(IN_FEATURES, features, (features,))
    with torch.no_grad():
        model.scale.normal_(generator=generator)
        model.bn.weight.normal_(generator=generator)
    moments = tiles_of(product * model.scale.detach(), columns)

    def vectors(of_tiles: _TileMoments | None) -> list[torch.Tensor]:
        where = "memory" if of_tiles is None else "epilogue"
        plan = plan_for(rows, features, normalisation, columns, where)
        own = copy.deepcopy(model)
        x = torch.zeros(rows, IN_FEATURES)
        call = LinearCall(plan, x, own.gemm.weight, None, own._exponents, [own.scale], True, False, own)
        with torch.no_grad():
            found = _batch_vectors(call, Norm(own, own.bn, [own.scale], False), Product(product), of_tiles)
        state = [own.bn.running_mean, own.bn.running_var, own.bn.num_batches_tracked]
        written = found if normalisation != "reciprocal" else found[:-1]  # the offset is for folded ones
        return [one for one in (*written, *state) if one is not None]

    def noted(x_unfit: int | None, w_unfit: int | None) -> Unfit:
        notes = torch.zeros(rows + features, dtype=torch.int32)
        for place in (x_unfit, None if w_unfit is None else rows + w_unfit):
            if place is not None:
                notes[place] = 1
        return Unfit(Within(notes, 0), Within(notes, 4 * rows))

    by_pass = vectors(None)
    for one, other in zip(vectors(_TileMoments(moments, noted(None, None))), by_pass, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=1e-6)
    # What was repaired behind the epilogue is in memory alone: the moments of it are of no use.
    useless = torch.full_like(moments, torch.nan)
    for x_unfit, w_unfit in ((rows - 1, None), (None, features - 1), (0, 0)):
        found = vectors(_TileMoments(useless, noted(x_unfit, w_unfit)))
        blocks = {column // 32 for column in range(features)} if x_unfit is not None else {(features - 1) // 32}
        columns_of_blocks = [column for column in range(features) if column // 32 in blocks]
        for one, other in itertools.islice(zip(found, by_pass, strict=True), 2):
            torch.testing.assert_close(one[columns_of_blocks], other[columns_of_blocks], rtol=0, atol=0)


FINISH = """
// The epilogue on values that the tensor cores would have left, as a warpgroup's threads hold them.
extern "C" __global__ void finish_tiles(const float* values, const int* x_exponents, const int* w_exponents,
                                        long long x_rows, long long w_rows, const scalar_t* linear_bias,
                                        scalar_t* output, const scalar_t* scale, void* moments) {
    const ProductShape shape{x_rows, w_rows, 0};
    const ProductEpilogue<Behind> plain{Behind{{scale}, {}}, linear_bias, output, w_rows, true};
    const MomentsEpilogue<Behind> epilogue(plain, moments);
    const int lane = threadIdx.x % 32;
    for (long long number = blockIdx.x; number < shape.tiles(); number += gridDim.x) {
        const Tile tile(number, shape, 0);
        const long long row = tile.w_first + threadIdx.x / 32 * 16 + lane / 4;
        float sum[product_columns / 2];
        int exponents[2];
        for (int below = 0; below < 2; ++below) {
            const long long w_row = row + 8 * below;
            exponents[below] = w_row < w_rows ? w_exponents[w_row] : 0;
            for (int j = 0; j < product_columns / 4; ++j) {
                const long long x_row = tile.x_tile * product_columns + j / 2 * 8 + j % 2 + lane % 4 * 2;
                const bool inside = x_row < x_rows && w_row < w_rows;
                sum[j / 2 * 4 + 2 * below + j % 2] = inside ? values[x_row * w_rows + w_row] : 3e38f;
            }
        }
        finish_tile(sum, tile, row, exponents, x_exponents, shape, epilogue);
    }
}
"""


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "features", "columns"), [(3, 5, 128), (600, 129, 256)])
@pytest.mark.parametrize("equal", [False, True])
def test_the_epilogue_leaves_the_moments_of_its_tiles(rows: int, features: int, columns: int, *, equal: bool) -> None:
    kernel, compiler = ModelNew.kernel, compiler_for(CPU)
    axes = {"rows": rows, "in_features": IN_FEATURES, "out_features": features}
    problem = Problem(axes, "float32", {"mode": "train"})
    values = {"product": "fused", "statistics_in": "epilogue", "product_columns": columns, "product_cluster": 1}
    configuration = kernel.space.choose(values, problem, fictional("sm_90"))
    variant = kernel.variant(configuration, problem, CPU.architecture)
    with_finish = replace(variant, source=replace(variant.cuda, text=variant.cuda.text + FINISH))
    plan = Plan(kernel, configuration, problem, CPU, compiler.load(compiler.compile(with_finish), None))
    generator = torch.Generator().manual_seed(rows)
    product = torch.randn(rows, features, generator=generator) + 30 * torch.randn(features, generator=generator)
    if equal:  # as of an expanded batch: a deviation that is not 0 would be divided by
        product = product[:1].expand(rows, features).contiguous()
    bias, scale = torch.randn(2, features, generator=generator).unbind()
    x_exponents, w_exponents = (torch.arange(count, dtype=torch.int32) % 5 - 2 for count in (rows, features))
    scaled = product * torch.exp2(x_exponents[:, None].float() + w_exponents.float())
    output, tiles = torch.full((rows, features), torch.nan), -(-rows // columns)
    moments = torch.full((tiles, features, 2), torch.nan)
    arguments = (scaled, x_exponents, w_exponents, rows, features, bias, output, scale, moments)
    plan.launch("finish_tiles", *arguments, blocks=2, threads=256)
    torch.testing.assert_close(output, product + bias, rtol=1e-6, atol=1e-5)  # not normalised yet
    torch.testing.assert_close(moments, tiles_of((output * scale), columns), rtol=1e-4, atol=1e-4)
    if equal:
        assert not moments[..., 1].any()
