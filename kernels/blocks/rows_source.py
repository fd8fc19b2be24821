"""The CUDA text of row reductions: the device functions, a struct that calls them, and the entry points."""

from __future__ import annotations

from collections.abc import Mapping

from tunebench.kernels.blocks.block import Kind, Operand, fast_math_line
from tunebench.kernels.blocks.device_function import device_function, used_names
from tunebench.kernels.blocks.reductions import Reduction, Stages

_SOURCE = """{head}#include "rows.cuh"

{functions}
struct RowFunctions {{
    static constexpr int tensors = {tensors}, features_given = {features_given};
    static constexpr int channels_given = {channels_given}, rows_given = {rows_given};
    static constexpr int reductions = {reductions}, stages = online ? {joined_stages} : {plain_stages};
    static constexpr int online_max = online ? {online_max} : -1, online_sum = online ? {online_sum} : -1;
    static constexpr int online_stage = {online_stage};
    static constexpr bool online_is_finite = {is_finite}, is_of_rows = {is_of_rows}, prepares = {prepares};
{members}
    static __device__ __forceinline__ constexpr int row_step(int number) {{ return {row_step}; }}
    static __device__ __forceinline__ constexpr bool is_of(int number, int stage) {{
        return stage == (online ? {joined} : {plain});
    }}
    static __device__ __forceinline__ accumulator_t identity(int number) {{
        return {identity};
    }}
    template <int stage>
    static __device__ __forceinline__ void join(accumulator_t* sums, const accumulator_t* others) {{
{joins}
    }}
    __device__ __forceinline__ accumulator_t prepared(const accumulator_t* e) const {{
        return {prepared};
    }}
    template <int stage>
    __device__ __forceinline__ void add(accumulator_t* sums, const accumulator_t* e, const accumulator_t* r) const {{
{adds}
    }}
    __device__ __forceinline__ accumulator_t top(const accumulator_t* e, const accumulator_t* r) const {{
        return {top};
    }}
    __device__ __forceinline__ accumulator_t result(const accumulator_t* e, const accumulator_t* r) const {{
        return {result};
    }}
}};

extern "C" __global__ void __launch_bounds__(block_size) rows_at_once({parameters}) {{
    row_reduction::rows_of_blocks<RowFunctions>({task});
}}

extern "C" __global__ void __launch_bounds__(block_size)
    row_partials({parameters}, accumulator_t* partials, long long splits, int stage) {{
    row_reduction::parts_of_rows<RowFunctions>({task}, partials, splits, stage, false);
}}

extern "C" __global__ void __launch_bounds__(block_size)
    row_results({parameters}, accumulator_t* partials, long long splits, int stage) {{
    row_reduction::parts_of_rows<RowFunctions>({task}, partials, splits, stage, true);
}}
"""


def source_of(
    where: str,
    used: tuple[Operand, ...],
    reductions: Mapping[str, Reduction],
    stages: Stages,
    texts: Mapping[str, str],
    *,
    is_of_rows: bool,
    before: str = "",
    prepared: str = "",
) -> str:
    """Return the CUDA text.

    Args:
        where: the class, for the compiler's messages.
        used: the operands, in the order of the entry points' parameters.
        texts: of the reductions, and of the function last, by the attribute that has them.
        is_of_rows: the function is of a row, not of each element.
        before: source in front of it, with what the texts call and what `functions.cuh` needs.
        prepared: what the first tensor's elements are to the texts; empty where that is what they are.
    """
    of_kind = {kind: [one.name for one in used if one.kind is kind] for kind in Kind}
    whole, columns, channels = of_kind[Kind.ELEMENT], of_kind[Kind.PER_FEATURE], of_kind[Kind.PER_CHANNEL]
    given = [one for one in used if one.kind in (Kind.PER_ROW, Kind.PER_TENSOR)]
    value_of = {name: f"e[{at}]" for at, name in enumerate([*whole, *columns, *channels])}
    value_of |= {one.name: f"given[{at}]" for at, one in enumerate(given)}
    value_of |= {name: f"{name}_value" for name in of_kind[Kind.SCALAR]}
    value_of |= {name: f"r[{at}]" for at, name in enumerate(reductions)}
    value_of["features"] = "feature_count"
    functions, calls = [], []
    texts = {"prepared": prepared, **texts} if prepared else texts
    for number, (attribute, text) in enumerate(texts.items()):
        name = attribute if attribute in ("function", "prepared") else f"term_{number}"
        names = [one for one in used_names(text) if one in value_of]
        functions.append(device_function(f"{where}.{attribute}".replace('"', "'"), name, text, names))
        calls.append(f"functions::{name}({', '.join(value_of[one] for one in names)})")
    made = calls.pop(0) if prepared else "e[0]"
    kinds = [type(one).__name__ for one in reductions.values()]
    online = stages.online or (-1, -1)
    scalars = of_kind[Kind.SCALAR]
    members = [f"    accumulator_t {name}_value;" for name in scalars]
    members += ["    accumulator_t feature_count;", f"    accumulator_t given[{max(1, len(given))}];"]
    first_stage = stages.plain[online[0]] if stages.online else -1
    return _SOURCE.format(
        head="".join(
            [
                before or fast_math_line(texts.values()),
                "" if stages.online else "constexpr bool online = false;\n",
                "constexpr bool streams_results = false;\n"
                if is_of_rows
                else "constexpr bool streams_results = store_hint == store_hint_t::streaming;\n",
            ]
        ),
        functions="\n".join(functions),
        tensors=len(whole),
        features_given=len(columns),
        channels_given=len(channels),
        rows_given=len(given),
        reductions=len(reductions),
        joined_stages=max(stages.joined) + 1,
        plain_stages=max(stages.plain) + 1,
        online_max=online[0],
        online_sum=online[1],
        online_stage=first_stage,
        is_finite=str(stages.is_finite).lower(),
        is_of_rows=str(is_of_rows).lower(),
        prepares=str(bool(prepared)).lower(),
        prepared=made,
        members="\n".join(members),
        row_step=_choice(["1" if one.kind is Kind.PER_ROW else "0" for one in given] or ["0"]),
        joined=_choice([str(stage) for stage in stages.joined]),
        plain=_choice([str(stage) for stage in stages.plain]),
        identity=_choice([f"row_reduction::{kind}::identity()" for kind in kinds]),
        joins=_per_reduction(kinds, [f"others[{number}]" for number in range(len(kinds))]),
        adds=_per_reduction(kinds, calls),
        top=calls[online[0]] if stages.online else "0",
        result=calls[-1],
        parameters=_parameters(used),
        task=_task([whole, columns, channels, [one.name for one in given]], scalars),
    )


def _choice(values: list[str]) -> str:
    """Return an expression of `number` that is each value in turn."""
    *others, last = values
    return "".join(f"number == {at} ? {value} : " for at, value in enumerate(others)) + last


def _per_reduction(kinds: list[str], values: list[str]) -> str:
    """Write a statement for each reduction that puts a value into its sum; those made together have their own."""
    return "\n".join(
        f"        if constexpr (is_of({at}, stage) && online_max != {at} && online_sum != {at}) {{\n"
        f"            sums[{at}] = row_reduction::{kind}::join(sums[{at}], {value});\n        }}"
        for at, (kind, value) in enumerate(zip(kinds, values, strict=False))
    )


_EXTENTS = ("rows", "features", "inner", "channels")


def _parameters(used: tuple[Operand, ...]) -> str:
    named = [
        f"accumulator_t {one.name}_value" if one.kind is Kind.SCALAR else f"const scalar_t* {one.name}_data"
        for one in used
    ]
    return ", ".join([*named, "scalar_t* output", *(f"long long {extent}" for extent in _EXTENTS)])


def _task(tensors: list[list[str]], scalars: list[str]) -> str:
    """Return the arguments of the template: functions with their numbers, the tensors of each kind, sizes."""

    def pointers(names: list[str]) -> str:
        return "{" + (", ".join(f"{name}_data" for name in names) or "nullptr") + "}"

    values = ", ".join([*(f"{name}_value" for name in scalars), "accumulator_t(features)", "{}"])
    return ", ".join([f"{{{{{values}}}", *map(pointers, tensors), "output", *_EXTENTS]) + "}"
