"""The gate's report on a stage that did not pass, in plain values: nothing here needs torch."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from tunebench.tuner.result import Stage


class Claim(enum.StrEnum):
    """A claim that a model may make. Each stage of the gate is about one of these."""

    PROBLEM = "problem"
    """Right for the problem: its values at its own sizes, whatever the inputs hold; memory, races, honesty."""
    DROP_IN = "drop-in"
    """Whatever else a caller does with the reference: other layouts, types, sizes and modes, gradients, autocast."""


@dataclass(frozen=True)
class Question:
    """The question that is being asked.

    Attributes:
        stage: of the gate.
        label: which question of the stage it is; empty where the stage asks one only.
    """

    stage: str
    label: str = ""

    def __str__(self) -> str:
        return f"in stage '{self.stage}'" + (f", at '{self.label}'" if self.label else "")


@dataclass(frozen=True)
class Element:
    """One element of an output that is not what it should be.

    Attributes:
        part: of an output of several parts, such as `[1]` or `['loss']`; empty of one tensor.
        index: by axis; empty of a number.
        expected: in float64.
        allowed: how far it may be from that.
    """

    part: str
    index: tuple[int, ...]
    expected: float
    got: float
    allowed: float

    def __str__(self) -> str:
        return f"{self.place}: expected {self.expected:.9g}, got {self.got:.9g} (allowed: {self.allowed:.1e} off)"

    @property
    def place(self) -> str:
        """Such as `output[3, 4]`, as Python finds it."""
        return f"output{self.part}" + (f"[{', '.join(map(str, self.index))}]" if self.index else "")


@dataclass(frozen=True)
class Reproduction:
    """One call of a new model that shows what was refused.

    Attributes:
        sizes: the constants of the reference's file, as they have to be; none where it has none.
        mode: of both models.
        seed: that the inputs are drawn from by `get_inputs`; None where they hold something else.
        inputs: what `torch.save` writes of the list of inputs, where no seed draws them and they are not too many.
        call_seed: of torch's generators, before each model is called.
        shapes: of the inputs, such as `(12, 10) float32`.
        shown: what the call does, in one line.
        manner: the mode and the next three, in words.
        recording: the context of torch's that the call is made in: `no_grad`, `enable_grad` or `inference_mode`.
        part, part_mode: the name of the one part that is in another mode, and that mode; empty where none is.
        element: the first wrong one; None where the call shows something else, such as another shape or an exception.
    """

    sizes: Mapping[str, int | float]
    mode: str
    seed: int | None
    inputs: bytes | None = field(repr=False)
    call_seed: int
    shapes: tuple[str, ...]
    shown: str
    manner: str
    recording: str = "no_grad"
    part: str = ""
    part_mode: str = ""
    element: Element | None = None

    def __str__(self) -> str:
        drawn = "this question's own inputs" if self.seed is None else f"inputs from seed {self.seed}"
        sizes = ", ".join(f"{name}={value:g}" for name, value in self.sizes.items())
        return "; ".join(filter(None, (self.shown, f"{drawn}: {', '.join(self.shapes)}", sizes, self.manner)))


@dataclass(frozen=True)
class Refusal(Stage):
    """A stage that did not pass.

    Attributes:
        claim: what the stage is about.
        loss: what a user of the model would see; empty where `detail` says it.
        reproduction: None where it takes more than one call to see, such as changed weights or poisoned memory.
    """

    claim: Claim = Claim.PROBLEM
    loss: str = ""
    reproduction: Reproduction | None = None
