"""Builds a project of Hugging Face's kernel-builder as its tools do: under an operator's name of its own."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

from processes import ended
from torch.utils import cpp_extension

REGISTRATION = """
#pragma once
#include <Python.h>
#define TORCH_LIBRARY_EXPAND(NAME, MODULE) TORCH_LIBRARY(NAME, MODULE)
#define STRING_OF(NAME) #NAME
#define REGISTER_AS(INIT, NAME) \\
    PyMODINIT_FUNC INIT(void) { \\
        static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, NAME, nullptr, 0, nullptr}; \\
        return PyModule_Create(&module); \\
    }
#define REGISTER_TWICE(INIT, NAME) REGISTER_AS(INIT, NAME)
#define JOINED(A, B) A##B
#define REGISTER_EXTENSION(NAME) REGISTER_EXPANDED(NAME)
#define REGISTER_EXPANDED(NAME) REGISTER_TWICE(JOINED(PyInit_, NAME), STRING_OF(NAME))
"""
"""The macros that kernel-builder generates."""

OPS = """
import torch
from . import {id}
ops = torch.ops.{id}
"""
"""The module that kernel-builder generates."""


def built(project: Path, name: str, launchers: Path, *libraries: str) -> Path:
    """Build a project's package; return its folder.

    Args:
        launchers: the launchers, as an object or as C++.
        libraries: to link with, beyond torch's for a CPU.
    """
    package, extension = project / "build" / name, f"_{name}_1a2b3c"
    shutil.copytree(project / "torch-ext" / name, package)
    (project / "torch-ext" / "registration.h").write_text(REGISTRATION, encoding="utf-8")
    (package / "_ops.py").write_text(OPS.format(id=extension), encoding="utf-8")
    folders = [*cpp_extension.include_paths(), sysconfig.get_paths()["include"], project / "torch-ext"]
    done = ended(
        *(
            "g++",
            "-shared",
            "-fPIC",
            "-std=c++20",
            f"-DTORCH_EXTENSION_NAME={extension}",
            "-DPy_LIMITED_API=0x03090000",
        ),
        *(f"-I{folder}" for folder in folders),
        *(project / "torch-ext" / "torch_binding.cpp", launchers),
        *(f"-L{folder}" for folder in cpp_extension.library_paths("cuda" if libraries else "cpu")),
        *("-ltorch", "-ltorch_cpu", "-lc10", *libraries, "-o", package / f"{extension}.abi3.so"),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return package


def loaded(package: Path) -> ModuleType:
    """Return a package, loaded by its path under a name of its own."""
    spec = importlib.util.spec_from_file_location(f"hub_{package.name}", package / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
