"""tunebench: an autotuning workbench for CUDA kernels in PyTorch.

    import tunebench

    reports = tunebench.tune("scalar_mul", trials=50, sizes={"M": 4096, "N": 4096})
    for row in tunebench.best("scalar_mul"):
        print(row.problem, row.device_name, row.configuration, row.over_reference)
    ModelNew = tunebench.load("gemm_scale_bn")

To write a kernel of your own (docs/writing_kernels.md):

    from tunebench import Kernel, Plan, SearchSpace, Tunable, TunedModule, constraints

or to have it made from a device function (docs/blocks.md):

    from tunebench import blocks

What this module names is public: a release that changes it says so in the changelog. All else is private. Everything
is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tunebench.kernels.runtime.on_sight import install

if TYPE_CHECKING:
    from tunebench.db.connection.database import Database
    from tunebench.db.queries.rows import BestRow, MissRow, TrialRow
    from tunebench.kernels import blocks
    from tunebench.kernels.runtime.choices_file import load_choices
    from tunebench.kernels.runtime.misses import record_misses
    from tunebench.kernels.runtime.policy import Policy, set_accuracy, set_policy, use_accuracy, use_policy
    from tunebench.kernels.runtime.saving import save_choices
    from tunebench.kernels.runtime.tuned_module import TunedModule
    from tunebench.studies.checking.compare_report import CompareReport
    from tunebench.studies.checking.explain import Explanation
    from tunebench.studies.checking.frontier import Frontier
    from tunebench.studies.checking.regress.run import RegressReport, regress
    from tunebench.studies.checking.report import CheckReport
    from tunebench.studies.faces.api import (
        Rows,
        best,
        bundle,
        check,
        compare,
        connect,
        explain,
        export,
        frontier,
        load,
        misses,
        new,
        optimize,
        serve_judge,
        sweep,
        trials,
        tune,
        verify_verdict,
        warm,
    )
    from tunebench.studies.sweep.run import SweepReport
    from tunebench.studies.sweep.tasks import Swept
    from tunebench.studies.tuning.tune import StudyReport
    from tunebench.studies.writing.new.new_kernel import NewKernel
    from tunebench.tuner import constraints
    from tunebench.tuner.build import Within
    from tunebench.tuner.compile.bundle import use_bundle
    from tunebench.tuner.device import Device
    from tunebench.tuner.errors import DatabaseError, DatabaseMissingError, TunebenchError, UserError
    from tunebench.tuner.kernel import Kernel, Mode, Plan, ceil_div
    from tunebench.tuner.problem import Accuracy, Problem, Work
    from tunebench.tuner.result import Decision, Ratio, TrialStatus
    from tunebench.tuner.space import Constraint, SearchSpace, Tunable
    from tunebench.tuner.tensor_map import MapLayout, TensorMap

__version__ = "0.1.0"

_HOMES = {
    "tunebench.db.connection.database": ("Database",),
    "tunebench.db.queries.rows": ("BestRow", "MissRow", "TrialRow"),
    "tunebench.kernels.runtime.choices_file": ("load_choices",),
    "tunebench.kernels.runtime.misses": ("record_misses",),
    "tunebench.kernels.runtime.policy": ("Policy", "set_accuracy", "set_policy", "use_accuracy", "use_policy"),
    "tunebench.kernels.runtime.saving": ("save_choices",),
    "tunebench.kernels.runtime.tuned_module": ("TunedModule",),
    "tunebench.studies.faces.api": (
        *("Rows", "best", "bundle", "check", "compare", "connect", "explain", "export", "frontier", "load"),
        *("misses", "new", "optimize", "serve_judge", "sweep", "trials", "tune", "verify_verdict", "warm"),
    ),
    "tunebench.studies.checking.explain": ("Explanation",),
    "tunebench.studies.checking.frontier": ("Frontier",),
    "tunebench.studies.checking.report": ("CheckReport",),
    "tunebench.studies.checking.compare_report": ("CompareReport",),
    "tunebench.studies.writing.new.new_kernel": ("NewKernel",),
    "tunebench.studies.checking.regress.run": ("RegressReport", "regress"),
    "tunebench.studies.sweep.run": ("SweepReport",),
    "tunebench.studies.sweep.tasks": ("Swept",),
    "tunebench.studies.tuning.tune": ("StudyReport",),
    "tunebench.tuner.compile.bundle": ("use_bundle",),
    "tunebench.tuner.device": ("Device",),
    "tunebench.tuner.errors": ("DatabaseError", "DatabaseMissingError", "TunebenchError", "UserError"),
    "tunebench.tuner.build": ("Within",),
    "tunebench.tuner.kernel": ("Kernel", "Mode", "Plan", "ceil_div"),
    "tunebench.tuner.problem": ("Accuracy", "Problem", "Work"),
    "tunebench.tuner.result": ("Decision", "Ratio", "TrialStatus"),
    "tunebench.tuner.space": ("Constraint", "SearchSpace", "Tunable"),
    "tunebench.tuner.tensor_map": ("MapLayout", "TensorMap"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = {"blocks": "tunebench.kernels.blocks", "constraints": "tunebench.tuner.constraints"}

__all__ = [
    "Accuracy",
    "BestRow",
    "CheckReport",
    "CompareReport",
    "Constraint",
    "Database",
    "DatabaseError",
    "DatabaseMissingError",
    "Decision",
    "Device",
    "Explanation",
    "Frontier",
    "Kernel",
    "MapLayout",
    "MissRow",
    "Mode",
    "NewKernel",
    "Plan",
    "Policy",
    "Problem",
    "Ratio",
    "RegressReport",
    "Rows",
    "SearchSpace",
    "StudyReport",
    "SweepReport",
    "Swept",
    "TensorMap",
    "TrialRow",
    "TrialStatus",
    "Tunable",
    "TunebenchError",
    "TunedModule",
    "UserError",
    "Within",
    "Work",
    "best",
    "blocks",
    "bundle",
    "ceil_div",
    "check",
    "compare",
    "connect",
    "constraints",
    "explain",
    "export",
    "frontier",
    "load",
    "load_choices",
    "misses",
    "new",
    "optimize",
    "record_misses",
    "regress",
    "save_choices",
    "serve_judge",
    "set_accuracy",
    "set_policy",
    "sweep",
    "trials",
    "tune",
    "use_accuracy",
    "use_bundle",
    "use_policy",
    "verify_verdict",
    "warm",
]


def _tune_problem(*arguments: Any) -> None:
    import_module("tunebench.studies.tuning.for_problem").tune_problem(*arguments)


install(_tune_problem)


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
