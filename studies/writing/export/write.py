"""Writes one configuration of one kernel as a file in KernelBench's form."""

from __future__ import annotations

import ast
import operator
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pprint import pformat
from types import ModuleType
from typing import Any, cast

import torch
from torch import nn

from tunebench import __version__
from tunebench.kernels.blocks.block import Block
from tunebench.kernels.blocks.loops import PRODUCTS
from tunebench.kernels.runtime.ordinary import held
from tunebench.kernels.runtime.reference_call import ReferenceCall, trace_reference
from tunebench.kernels.runtime.shipped import ShippedResult
from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.writing.export import runtime
from tunebench.studies.writing.export.linker import CannotExportError, Linked, Linker, members_of
from tunebench.tuner.build import LoadedModule
from tunebench.tuner.compile.inline import InlineCompiler
from tunebench.tuner.configuration import Configuration
from tunebench.tuner.device import Device
from tunebench.tuner.kernel import Kernel, Mode, Plan, prepare_model
from tunebench.tuner.problem import Accuracy, Problem
from tunebench.tuner.reference import Reference
from tunebench.tuner.result import Baseline
from tunebench.tuner.running_text import names_bound_by
from tunebench.tuner.settings import Setting
from tunebench.tuner.triton_source import TritonSource
from tunebench.tuner.users_code import users_code
from tunebench.tuner.variant import KernelSource, Variant

_WIDTH = 120
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)".*$', re.MULTILINE)
_GUARD = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[ \t]*\n", re.MULTILINE)

_SERVED = (
    "The kernel serves calls like those that were measured: the shapes below, dense, on a GPU of that architecture. "
    "All others run the reference's operations, as does a backward."
)
_FILE = (
    "in KernelBench's form: ModelNew takes the place of the reference's Model.\n"
    "# It needs torch and nvcc (and ninja, as all of torch's extensions do)."
)
_TWO_FORMS = (
    "Two forms. BY_KERNEL = True ({measured}) sums in another order than the reference. It agrees with eager as far as "
    "eager agrees with float64, which need not be within an element-wise tolerance such as KernelBench's 1e-4 + "
    "1e-4*|y|: where eager itself is further off, that counts it as wrong. BY_KERNEL = False is eager's own operations "
    "in eager's own order: the same bits, within every tolerance, 1.00x over eager. docs/export.md of tunebench has "
    "KernelBench's figures for both."
)

_LAUNCHERS = """
// What Python calls: a launcher for every kernel. All that a launch is of comes as one array of eight bytes each: the
// extents, the shared memory, the stream, and the arguments, of which each is of the kind that `kinds_of` names.
#include <cstring>
#include <cuda_runtime.h>
#include <tuple>
#include <type_traits>
#include <utility>

template <class Parameter> Parameter argument_of(long long bits) {
    if constexpr (std::is_pointer_v<Parameter>) {
        return reinterpret_cast<Parameter>(bits);
    } else if constexpr (std::is_class_v<Parameter>) {
        return *reinterpret_cast<const Parameter*>(bits);
    } else if constexpr (std::is_floating_point_v<Parameter>) {
        double real;
        std::memcpy(&real, &bits, sizeof real);
        return static_cast<Parameter>(real);
    } else {
        return static_cast<Parameter>(bits);
    }
}

// Return the kinds of a kernel's parameters, as Python's `struct` has them.
template <class... Parameters> const char* kinds_of(void (*)(Parameters...)) {
    static const char kinds[] = {(std::is_floating_point_v<Parameters> ? 'd' : 'q')..., 0};
    return kinds;
}

template <class... Parameters, size_t... places>
int launch_with(void (*kernel)(Parameters...), std::index_sequence<places...>, const long long* packed, int early) {
    std::tuple<Parameters...> values{argument_of<Parameters>(packed[8 + places])...};
    void* pointers[] = {&std::get<places>(values)...};
    const auto function = reinterpret_cast<const void*>(kernel);
    const auto extent = [&](int place) { return static_cast<unsigned>(packed[place]); };
    cudaLaunchAttribute begins_early{};
    begins_early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    begins_early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t launch{};
    launch.gridDim = dim3(extent(0), extent(1), extent(2));
    launch.blockDim = dim3(extent(3), extent(4), extent(5));
    launch.dynamicSmemBytes = packed[6];
    launch.stream = reinterpret_cast<cudaStream_t>(packed[7]);
    launch.attrs = &begins_early;
    launch.numAttrs = early ? 1 : 0;
    if (launch.dynamicSmemBytes > 48 * 1024) {
        const auto limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
        if (const auto status = cudaFuncSetAttribute(function, limit, static_cast<int>(launch.dynamicSmemBytes))) {
            return status;
        }
    }
    return cudaLaunchKernelExC(&launch, function, pointers);
}

template <class... Parameters>
int launch_kernel(void (*kernel)(Parameters...), const long long* packed, int early) {
    return launch_with(kernel, std::index_sequence_for<Parameters...>(), packed, early);
}
"""

_LAUNCHER = """
extern "C" int launch_{name}(const long long* packed, int early) {{
    return launch_kernel({name}, packed, early);
}}
extern "C" const char* kinds_{name}() {{
    return kinds_of({name});
}}
extern "C" int resident_{name}(int* blocks, int threads, size_t shared) {{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, {name}, threads, shared);
}}
"""


@dataclass(frozen=True)
class Evidence:
    """The result that a file is made from.

    Attributes:
        device, architecture: where the result was measured.
        source: for people: where it is recorded.
        digest: of the kernel that was measured.
    """

    result: ShippedResult
    device: str
    architecture: str
    source: str
    digest: str

    @property
    def measured(self) -> str:
        """How fast it was, in words."""
        over = self.result.speedups.get(Baseline.REFERENCE.value)
        return "never compared with eager" if over is None else f"{_ratio(over)} over eager"

    def __str__(self) -> str:
        return f"{self.measured}, on {self.device} ({self.source})"


@dataclass(frozen=True)
class Layout:
    """The layout of the reference's tensors at some sizes; no memory is taken to find out.

    Attributes:
        inputs: the shape of each input, None of one that is no tensor.
        types: of the inputs, likewise.
        held: the shapes of the parameters, then of the buffers.
        submodules: their types' names.
        numbers: the names of its attributes that are numbers.
        fixed: the attributes that the kernel was written for, by their paths.
        problem: of a call with these inputs, as far as it is known without their device.
        calls: the reference's operations in such a call, in eval and in train mode.
    """

    inputs: list[tuple[int, ...] | None]
    types: list[str | None]
    held: list[tuple[int, ...]]
    submodules: list[str]
    numbers: list[str]
    fixed: dict[str, object]
    problem: Problem | None
    calls: Mapping[bool, ReferenceCall]


def layout_of(model: type[TunedModule], reference: Reference, mode: Mode) -> Layout:
    """Return the layout of a kernel's reference, and the problem that a call of `ModelNew` is there.

    Raises:
        UsersCodeError: the kernel's own code raises.
    """
    nowhere = torch.device("meta")
    with users_code("the reference or ModelNew cannot be made", model.kernel.folder):
        made = reference.make_model(0, nowhere)
        inputs = reference.make_inputs(0, nowhere)
        candidate = cast(TunedModule, prepare_model(reference, mode, nowhere, model))
        problem = candidate.identify(*inputs)
        calls = {training: trace_reference(candidate.train(training), inputs) for training in (False, True)}
    return Layout(
        inputs=[tuple(value.shape) if isinstance(value, torch.Tensor) else None for value in inputs],
        types=[str(value.dtype) if isinstance(value, torch.Tensor) else None for value in inputs],
        held=[tuple(tensor.shape) for tensors in held(made) for tensor in tensors],
        submodules=[type(child).__name__ for child in made.modules()][1:],
        numbers=[
            name for name in sorted(vars(made).keys() - {"training"}) if isinstance(vars(made)[name], int | float)
        ],
        fixed=_fixed(model, made),
        problem=problem,
        calls=calls,
    )


def _fixed(model: type[TunedModule], made: nn.Module) -> dict[str, object]:
    """Return the attributes of a reference that its kernel, as `new` writes it, was written for; plain ones alone."""
    written_for = {**getattr(sys.modules[model.__module__], "NUMBERS", {}), **model.written_for}
    values = {path: operator.attrgetter(path)(made) for path in written_for}
    plain = {path: value for path, value in values.items() if isinstance(value, int | float | str | tuple | None)}
    return {path: value for path, value in plain.items() if value == written_for[path]}  # not a tuple of functions


@dataclass(frozen=True)
class Parts:
    """A kernel under one configuration, taken apart.

    Attributes:
        stated: the constants of the host code.
        linked: the host code: definitions of `ModelNew` and of all that it needs.
        taken: the names that the reference's file binds.
        cuda: the translation unit.
        flags: for nvcc.
    """

    stated: Mapping[str, Any]
    linked: Linked
    taken: frozenset[str]
    cuda: str
    flags: tuple[str, ...]
    name: str

    @property
    def constants(self) -> str:
        """Return the constants as statements."""
        return "\n".join(_statement(name, value) for name, value in self.stated.items())


def parts_of(
    model: type[TunedModule],
    evidence: Evidence,
    layout: Layout,
    library: ModuleType = runtime,
    given: str = "CUDA_SOURCE",
) -> Parts:
    """Return the parts that a file or a project is made of.

    Args:
        library: the module whose `Library` and `built_library` the host code has.
        given: a name that these read and that whoever puts the parts together defines.

    Raises:
        CannotExportError: the configuration needs more than torch and nvcc, or its text cannot be put into one file.
    """
    kernel, result = model.kernel, evidence.result
    configuration, problem = Configuration(result.configuration or {}), result.problem.at(Accuracy.TOLERANCE).named
    settings = {name.value: problem.options[name] for name in Setting if name in problem.options}
    problem = problem.without(*settings)
    variant = kernel.variant(configuration, problem, evidence.architecture)
    if isinstance(variant.source, TritonSource):
        raise CannotExportError(
            f"{kernel.name}: {configuration} runs {variant.source.file}, which is Triton, where an exported file holds "
            "CUDA C++: load the model by tunebench.load, or export a trial of a source in CUDA C++"
        )
    if configuration.get(PRODUCTS, "library") != "library":
        raise CannotExportError(
            f"{kernel.name}: with {PRODUCTS}={configuration[PRODUCTS]} its products between passes are kernels of "
            f"their own, and a file holds one kernel: export a trial with {PRODUCTS}=library by --trial"
        )
    stated: dict[str, Any] = {
        "ARCHITECTURE": _capability(evidence.architecture),
        "CONFIGURATION": dict(configuration),
        "INACTIVE": {
            tunable.name: kernel.space.value_in(configuration, tunable.name)
            for tunable in kernel.space.tunables
            if tunable.name not in configuration
        },
        "AXES": dict(problem.axes),
        "DTYPE": problem.dtype,
        "OPTIONS": {name: str(value) for name, value in problem.options.items()},
        "MODES": [mode.value for mode in kernel.modes],
        "INPUT_SHAPES": layout.inputs,
        "INPUT_TYPES": layout.types,
        "HELD_SHAPES": layout.held,
        "SUBMODULES": layout.submodules,
        "NUMBERS": layout.numbers,
        "FIXED": layout.fixed,
        "REDRAWS": {training: bool(call.obstacle) for training, call in layout.calls.items()},
        "MOVED": {training: call.moved for training, call in layout.calls.items()},
        "WATCHED": sorted({name.value for call in layout.calls.values() for name in call.settings}),
        "SETTINGS": settings,
        "BY_KERNEL": True,
    }
    harness = _top_level_names(kernel.reference().path.read_text(encoding="utf-8")) - {model.__name__}
    methods = ["__init__", "tuned_forward", "reference_forward"]
    if problem.options.keys() - {"mode"}:
        methods.append("problem")
    if issubclass(model, Block):
        methods += [path.partition(".")[0] for _, path in model.places]  # one may be a property
    known = {"plan": Plan(kernel, configuration, problem, cast(Device, None), cast(LoadedModule, None))}
    linker = Linker(
        substitutes=dict.fromkeys(_defined_in(runtime), runtime.__name__)
        | dict.fromkeys(_defined_in(library), library.__name__),
        stated={*stated, "NAME", "CUDA_FLAGS", given, "LIBRARY"},
        taken=harness,
        known=known,
        members=members_of(model, TunedModule, methods, known),
    )
    return Parts(
        stated=stated,
        linked=linker.link((library.__name__, "built_library"), model.__module__, model.__name__),
        taken=frozenset(harness),
        cuda=_cuda(variant, kernel),
        flags=InlineCompiler().flags(variant),
        name=f"tunebench_{kernel.name}_{variant.digest[:12]}",
    )


def file_text(model: type[TunedModule], evidence: Evidence, layout: Layout) -> str:
    """Return the file's text.

    Raises:
        CannotExportError: see `parts_of`.
    """
    parts = parts_of(model, evidence, layout)
    constants = {"NAME": parts.name, "CUDA_FLAGS": list(parts.flags), **parts.stated}
    if '"""' in parts.cuda or parts.cuda.endswith("\\"):
        raise CannotExportError(f"{model.kernel.name}.cu has three quotation marks in a row")
    texts = [
        head(model.kernel, evidence, _FILE),
        imports(parts.linked.imports),
        "\n".join(_statement(name, value) for name, value in constants.items()),
        f'CUDA_SOURCE = r"""\n{parts.cuda}"""',
        *parts.linked.definitions[:-1],
        "# Built when this file is imported. Without a GPU, nvcc or a torch for CUDA, the reference's operations run.\n"
        "LIBRARY = built_library()",
        parts.linked.definitions[-1],
    ]
    text = joined(texts)
    if clash := sorted(_top_level_names(text) & parts.taken):
        raise CannotExportError(f"{', '.join(clash)}: the file would give the reference's own names another meaning")
    return text


def joined(texts: Iterable[str]) -> str:
    """Return the parts of a file as its text, two empty lines between them."""
    return "\n\n\n".join(text.strip("\n") for text in texts) + "\n"


def imports(lines: list[str]) -> str:
    """Import statements, those of torch apart."""
    theirs = [line for line in lines if line.split()[1].split(".")[0] == "torch"]
    return "\n".join(line for line in lines if line not in theirs) + "\n\n" + "\n".join(theirs)


def _defined_in(module: ModuleType) -> set[str]:
    """Return the names that a module of the run time defines."""
    return {name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}


def _top_level_names(text: str) -> set[str]:
    """Return the names that a file binds, but for those that it imports."""
    body = [one for one in ast.parse(text).body if not isinstance(one, ast.Import | ast.ImportFrom)]
    return {name for one in body for name in names_bound_by(one)}


def _statement(name: str, value: object) -> str:
    if name == "BY_KERNEL":
        return f"{name} = {value}  # False: the reference's own operations, in every call"
    text = f"{name} = {value!r}"
    if len(text) > _WIDTH:
        text = f"{name} = " + pformat(value, width=_WIDTH - len(name) - 3, compact=True, sort_dicts=False)
        text = text.replace("\n", "\n" + " " * (len(name) + 3))
    return text.replace("'", '"')


def _capability(architecture: str) -> tuple[int, int]:
    number = int(architecture.removeprefix("sm_"))
    return number // 10, number % 10


def _cuda(variant: Variant, kernel: Kernel) -> str:
    """Return the translation unit: constants, the source with its headers in it, and the launchers."""
    launchers = "".join(_LAUNCHER.format(name=name) for name in kernel.source.entry_points)
    return f"{variant.prologue}\n{_with_headers(variant.cuda)}\n{_LAUNCHERS}{launchers}"


def _with_headers(source: KernelSource) -> str:
    """Return the source with every header where it is included first."""
    written: set[str] = set()

    def included(match: re.Match[str]) -> str:
        name = match[1]
        if name not in source.headers:
            return match[0]
        if name in written:
            return ""
        written.add(name)
        return f"// {name}\n" + put(source.headers[name])

    def put(text: str) -> str:
        return _INCLUDE.sub(included, _GUARD.sub("", text))

    return put(source.text)


def head(kernel: Kernel, evidence: Evidence, form: str) -> str:
    """Return a comment with where the file comes from, and what it does.

    Args:
        form: what the file is and needs, of a kernel's name.
    """
    result, conditions = evidence.result, evidence.result.conditions
    versions = [f"{name} {conditions[name]}" for name in ("driver", "cuda", "torch") if name in conditions]
    multiple = result.error_multiple
    rows = {
        "kernel": f"{kernel.name}, digest {evidence.digest[:16]}",
        "problem": str(result.problem),
        "configuration": str(Configuration(result.configuration or {})),
        "measured": f"{evidence.measured}, on {evidence.device} ({evidence.architecture})",
        "with": ", ".join([*versions, conditions.get("confirmed_at", "")[:10]]),
        "largest error": "the reference's own" if multiple is None else f"{multiple:.2g} times the reference's own",
        "result": evidence.source,
        "exported": f"{datetime.now(UTC):%Y-%m-%d} by tunebench {__version__}",
    }
    text = [
        f"{kernel.name}, tuned by tunebench, {form}",
        "",
        *_table(rows),
        "",
        *textwrap.wrap(_SERVED, _WIDTH - 2),
    ]
    if kernel.rewrites_algebra:
        text += ["", *textwrap.wrap(_TWO_FORMS.format(measured=evidence.measured), _WIDTH - 2)]
    return "\n".join(f"# {line}".rstrip() for line in text)


def _table(rows: Mapping[str, str]) -> list[str]:
    width = max(map(len, rows)) + 2
    return [
        line
        for name, value in rows.items()
        for line in textwrap.wrap(
            f"{name:{width}}{value}", _WIDTH - 2, subsequent_indent=" " * width, break_long_words=False
        )
    ]


def _ratio(figures: list[float]) -> str:
    value, low, high = figures
    return f"{value:#.4g}x [{low:#.4g}, {high:#.4g}]"
