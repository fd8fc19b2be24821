"""Writes one configuration of one kernel as a project of Hugging Face's kernel-builder.

The layout is that of https://huggingface.co/docs/kernels/builder/writing-kernels: `build.toml`, the CUDA source, the
operators and their registration, and a Python package in `torch-ext`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping

from tunebench.kernels.runtime.tuned_module import TunedModule
from tunebench.studies.writing.export import hub_runtime
from tunebench.studies.writing.export.edits import edited, positions
from tunebench.studies.writing.export.linker import CannotExportError
from tunebench.studies.writing.export.write import Evidence, Layout, head, imports, joined, parts_of

_FORM = (
    "for Hugging Face's kernels: ModelNew takes the place of the reference's Model,\n"
    "# which is in reference.py. It needs torch alone."
)

_BUILD = """\
[general]
name = "{name}"
version = 1
backends = ["cuda"]

[torch]
src = ["torch-ext/torch_binding.cpp", "torch-ext/torch_binding.h"]

[kernel.{name}]
backend = "cuda"
depends = ["torch"]
src = ["{name}_cuda/{name}.cu"]
cuda-capabilities = {capabilities}
cuda-flags = {flags}
"""

_FLAKE = """\
{{
  description = "{name}, tuned by tunebench";
  inputs.kernel-builder.url = "github:huggingface/kernels";
  outputs = {{ self, kernel-builder }}: kernel-builder.lib.genKernelFlakeOutputs {{
    inherit self;
    path = ./.;
  }};
}}
"""

_DECLARATIONS = """\
#pragma once

#include <cstddef>

// The launchers and the occupancies of the kernels: {name}_cuda/{name}.cu.
{declarations}"""

_DECLARATION = """\
extern "C" int launch_{name}(const long long* packed, int early);
extern "C" const char* kinds_{name}();
extern "C" int resident_{name}(int* blocks, int threads, size_t shared);
"""

_BINDING = """\
#include <string>
#include <vector>

#include <torch/library.h>

#include "registration.h"
#include "torch_binding.h"

namespace {{

const struct {{
    const char* name;
    decltype(&launch_{first}) launch;
    decltype(&kinds_{first}) kinds;
    decltype(&resident_{first}) resident;
}} kernels[] = {{
{kernels}}};

const auto& kernel_named(const std::string& name) {{
    for (const auto& kernel : kernels) {{
        if (name == kernel.name) {{
            return kernel;
        }}
    }}
    TORCH_CHECK(false, "there is no kernel ", name);
}}

// Launch a kernel, by the bits of the extents, the shared memory, the stream and the arguments. Returns CUDA's status.
int64_t launch(std::string name, at::IntArrayRef packed, bool early) {{
    const std::vector<long long> bits(packed.begin(), packed.end());
    return kernel_named(name).launch(bits.data(), early);
}}

// Return the kinds of a kernel's parameters: q for an integer or an address, d for a real number.
std::string kinds(std::string name) {{
    return kernel_named(name).kinds();
}}

// Return how many blocks of that many threads one multiprocessor holds at once.
int64_t resident_blocks(std::string name, int64_t threads, int64_t shared) {{
    int blocks = 1;
    kernel_named(name).resident(&blocks, static_cast<int>(threads), shared);
    return blocks;
}}

}} // namespace

TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {{
    ops.def("launch(str name, int[] packed, bool early) -> int", &launch);
    ops.def("kinds(str name) -> str", &kinds);
    ops.def("resident_blocks(str name, int threads, int shared) -> int", &resident_blocks);
}}

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
"""

_KERNEL = """    {{"{name}", &launch_{name}, &kinds_{name}, &resident_{name}}},
"""

_PACKAGE = """\
\"\"\"{name}, tuned by tunebench: ModelNew takes the place of reference.Model.\"\"\"

from . import reference
from .tuned import ModelNew

__all__ = ["ModelNew", "reference"]
"""

_TEST = """\
import pytest
import torch

import {name}


def placed(values, place):
    return [one.to(place) if isinstance(one, torch.Tensor) and one.is_floating_point() else one for one in values]


@pytest.mark.kernels_ci
def test_it_agrees_with_the_reference():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_default_device(device)
    reference = {name}.reference.Model(*{name}.reference.get_init_inputs()).to(torch.{dtype}).{mode}()
    tuned = {name}.ModelNew(*{name}.reference.get_init_inputs()).to(torch.{dtype}).{mode}()
    tuned.load_state_dict(reference.state_dict())
    inputs = placed({name}.reference.get_inputs(), torch.{dtype})
    with torch.no_grad():
        found = tuned(*inputs).double()
        wanted = reference.double()(*placed(inputs, torch.float64))
    assert (found - wanted).norm() <= 1e-2 * wanted.norm()
"""

_CARD = """\
# {name}

{evidence}. Written by tunebench. The kernel serves calls like those that were measured; all others run the
operations of the reference.

```python
from kernels import get_kernel

{name} = get_kernel("YOUR-ORGANISATION/{name}", version=1)
model = {name}.ModelNew(*{name}.reference.get_init_inputs()).cuda()
```
"""


def project_files(
    model: type[TunedModule], evidence: Evidence, layout: Layout, sizes: Mapping[str, int | float]
) -> dict[str, str]:
    """Return the texts of a project's files by their paths in its folder.

    Args:
        sizes: constants of the reference that are other than in its file.

    Raises:
        CannotExportError: see `parts_of`; or the reference is in one file with the kernel.
    """
    kernel = model.kernel
    if kernel.is_one_file:
        raise CannotExportError(f"{kernel.name} is one file: a project takes a folder with a reference.py of its own")
    name, points = kernel.name, kernel.source.entry_points
    parts = parts_of(model, evidence, layout, hub_runtime, "ops")
    (target,) = [flag for flag in parts.flags if flag.startswith("-gencode")]
    number = target.rpartition("sm_")[2]
    capability = re.sub(r"(\d)(a?)$", r".\1\2", number)
    flags = [flag for flag in parts.flags if flag != target]
    problem = evidence.result.problem
    mode = "train" if problem.options.get("mode") == "train" else "eval"
    tuned = [
        head(kernel, evidence, _FORM),
        imports(parts.linked.imports) + "\nfrom ._ops import ops",
        parts.constants,
        *parts.linked.definitions[:-1],
        "# Without a GPU the reference's operations run.\nLIBRARY = built_library()",
        parts.linked.definitions[-1],
    ]
    return {
        "build.toml": _BUILD.format(name=name, capabilities=json.dumps([capability]), flags=json.dumps(flags)),
        "flake.nix": _FLAKE.format(name=name),
        "CARD.md": _CARD.format(name=name, evidence=evidence),
        f"{name}_cuda/{name}.cu": parts.cuda,
        "torch-ext/torch_binding.h": _DECLARATIONS.format(name=name, declarations=_each(_DECLARATION, points)),
        "torch-ext/torch_binding.cpp": _BINDING.format(first=min(points), kernels=_each(_KERNEL, points)),
        f"torch-ext/{name}/__init__.py": _PACKAGE.format(name=name),
        f"torch-ext/{name}/reference.py": _with_sizes(kernel.reference().text, sizes),
        f"torch-ext/{name}/tuned.py": joined(tuned),
        "tests/__init__.py": "",
        f"tests/test_{name}.py": _TEST.format(name=name, mode=mode, dtype=problem.dtype),
    }


def _each(template: str, names: Iterable[str]) -> str:
    return "".join(template.format(name=name) for name in names)


def _with_sizes(text: str, sizes: Mapping[str, int | float]) -> str:
    """Return a reference with other numbers where its constants are assigned."""
    at = positions(text)
    edits = [
        (
            at(one.value.lineno, one.value.col_offset),
            at(one.value.end_lineno or 0, one.value.end_col_offset or 0),
            repr(sizes[one.targets[0].id]),
        )
        for one in ast.parse(text).body
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name) and one.targets[0].id in sizes
    ]
    return edited(text, edits)
