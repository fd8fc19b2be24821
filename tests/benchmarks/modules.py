"""The modules of `modules.toml`: modules as real programs have them, as problems in KernelBench's form."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

from tunebench.studies.writing.new.problem_text import ProblemText

DTYPES = ("float32", "bfloat16")
_MADE, _FORWARD = "super().__init__()\n", "\n\n    def forward("
"""Where the making of a model's parts begins and ends in a problem's text."""


@dataclass(frozen=True, kw_only=True)
class ModuleText(ProblemText):
    """A row of `modules.toml`.

    Attributes:
        area: what programs have it.
        result: the type that `forward` returns.
    """

    name: str
    area: str
    result: str = "torch.Tensor"

    def file(self, dtype: str = DTYPES[0]) -> str:
        """Return the text of the problem with its parts and inputs in a dtype of `DTYPES`."""
        if dtype == DTYPES[0]:
            return self.reference.replace("-> torch.Tensor:\n", f"-> {self.result}:\n", 1)
        drawn = self.inputs or f"torch.rand({', '.join(self.x)})"
        converted = f"one.to(torch.{dtype}) if one.is_floating_point() else one"
        text = replace(self, inputs=f"{converted} for one in ({drawn},)").file()
        if not self.layers:
            return text
        text = text.replace(_MADE, f"{_MADE}        torch.set_default_dtype(torch.{dtype})\n", 1)
        return text.replace(_FORWARD, f"\n        torch.set_default_dtype(torch.{DTYPES[0]}){_FORWARD}", 1)


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
MODULES = {name: ModuleText(name=name, area=area, **row) for area, rows in _TABLE.items() for name, row in rows.items()}
