"""A new kernel's folder, as `tunebench new` tells of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tunebench.studies.writing.new.check import Checked


@dataclass(frozen=True)
class NewKernel:
    """A folder that was written.

    Attributes:
        block: the class of `tunebench.blocks` that the kernel is; empty where it is to be written by hand.
        reason: why the kernel is to be written by hand; empty where it is not.
        hidden: why it is of no block that would do more, where that is for a name of the model's.
        checked: how the kernel was compared with its reference.
    """

    folder: Path
    block: str
    reason: str = ""
    hidden: str = ""
    checked: Checked = field(default_factory=Checked)
