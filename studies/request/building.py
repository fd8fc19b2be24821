"""The requests of `new`, `warm` and `bundle`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from tunebench.studies.request.completion import among
from tunebench.studies.request.options import LEGAL, Device, Text
from tunebench.studies.request.text import read_path

Problems = Annotated[
    str | Path | None,
    Field(
        description="The problems: choices that a program saved (tunebench.save_choices), or a JSON list with the "
        "kernel, axes, dtype and options of each. Default: those that results are known of."
    ),
    Text(metavar="FILE", read=read_path),
]


class NewRequest(BaseModel):
    """The options of `new`."""

    model_config = LEGAL

    problem: Annotated[str | Path | None, Text("--from", "FILE", read_path)] = None
    """A problem in KernelBench's form. Default: a sample of the block."""
    block: Annotated[
        str | None, Text(metavar="BLOCK", complete=among(("pointwise", "rows", "linear", "conv", "attention")))
    ] = None
    """pointwise, rows, linear, conv or attention. Default: what the problem's layers and operations propose."""


class WarmRequest(BaseModel):
    """The options of `warm`."""

    model_config = LEGAL

    problems: Problems = None
    device: Device = None
    architecture: Annotated[str | None, Text("--arch", "NAME")] = None
    """Build for GPUs of this architecture, such as sm_90, which need not be here."""


class BundleRequest(BaseModel):
    """The options of `bundle`."""

    model_config = LEGAL

    architectures: Annotated[Sequence[str], Text("--arch", "NAME")] = ()
    """An architecture such as sm_90, which need not be here, or cpu; repeatable. Default: this machine's."""
    problems: Problems = None
