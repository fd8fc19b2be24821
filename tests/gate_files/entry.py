"""What a submission file of the set is, and the few lines that most of them share."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tunebench.tuner.gate.battery import Claim

IMPORTS = """\
import ctypes, gc, json, os, pickle, random, signal, subprocess, sys, tempfile, threading, time
import torch
import torch.nn.functional as F
from torch import nn
"""

PROBLEM, DROP_IN = Claim.PROBLEM, Claim.DROP_IN

MARK = "GATE_FILES_MARK"
"""In the environment of a check and of whatever it starts: so a process is found that is left behind."""


@dataclass(frozen=True)
class GateFile:
    """A submission with its reference, and what is true of it.

    Attributes:
        name: what it does, in words; no two have the same.
        kind: the class that it is counted in.
        right: whether the claim holds.
        claim: what holds, or does not. A wrong file that is only no drop-in is right for the problem.
        reference: text of the file with `Model`, `get_inputs` and `get_init_inputs`.
        text: of the submission. It has the reference's text in it too, so that `ModelNew` may derive from `Model`.
        flags: what whoever submits it declares, as options of `tunebench check`.
        ends_early: it ends its process before anything can be judged: exit code 2 will do.
        alone: the submission is its own reference's file, whose code therefore runs where the reference does.
    """

    name: str
    kind: str
    right: bool
    claim: Claim
    reference: str
    text: str
    flags: tuple[str, ...] = ()
    ends_early: bool = False
    alone: bool = False

    def meets(self, *, problem: bool, drop_in: bool) -> bool:
        """Whether verdicts are as they should be."""
        if self.claim is Claim.PROBLEM:
            return problem == self.right
        return problem and drop_in == self.right

    @property
    def slug(self) -> str:
        """The name as a file's."""
        return "".join(letter if letter.isalnum() else "_" for letter in self.name)


def problem(
    body: str,
    *,
    inputs: str,
    arguments: str = "x",
    constants: str = "",
    init: str = "pass",
    made_of: str = "",
    given: str | None = None,
    before: str = "",
) -> str:
    """A reference in KernelBench's form.

    Args:
        body: of `forward`.
        inputs: the expressions that `get_inputs` returns.
        constants: lines of constants of the file.
        init: lines of `__init__`.
        made_of: the parameters of `__init__`.
        given: what `get_init_inputs` returns; the constants of these names where it is None.
        before: lines in front of the class.
    """
    return (
        f"{IMPORTS}\n{textwrap.dedent(before)}\n\n"
        f"class Model(nn.Module):\n    def __init__(self{made_of and ', ' + made_of}):\n        super().__init__()\n"
        f"{indented(init)}\n"
        f"    def forward(self, {arguments}):\n{indented(body)}\n\n"
        f"{textwrap.dedent(constants)}\n"
        f"def get_inputs():\n    return [{inputs}]\n\n"
        f"def get_init_inputs():\n    return [{made_of if given is None else given}]\n"
    )


def forward(body: str, *, arguments: str = "x", before: str = "", made: str = "") -> str:
    """A `ModelNew` with the parts of `Model` and another `forward`.

    Args:
        before: lines in front of the class.
        made: lines that run once `Model` is made.
    """
    init = f"    def __init__(self, *given):\n        super().__init__(*given)\n{indented(made)}\n" if made else ""
    return (
        f"\n{textwrap.dedent(before)}\n\nclass ModelNew(Model):\n{init}"
        f"    def forward(self, {arguments}):\n{indented(body)}\n"
    )


def indented(body: str) -> str:
    return textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8) + "\n"


Adds = Callable[..., GateFile]


def wrong(kind: str) -> Adds:
    """Makes files of a class that are not right for their problem; with `DROP_IN`, those that are only no drop-in."""
    return _maker(kind, Claim.PROBLEM, right=False)


def right(kind: str) -> Adds:
    """Makes files of a class that are drop-ins; with `PROBLEM`, those that need only be right for their problem."""
    return _maker(kind, Claim.DROP_IN, right=True)


def _maker(kind: str, strongest: Claim, *, right: bool) -> Adds:
    def make(
        name: str,
        reference: str,
        candidate: str,
        claim: Claim = strongest,
        flags: Sequence[str] = (),
        *,
        ends_early: bool = False,
        alone: bool = False,
    ) -> GateFile:
        text = reference + textwrap.dedent(candidate)
        return GateFile(name, kind, right, claim, reference, text, tuple(flags), ends_early, alone)

    return make
