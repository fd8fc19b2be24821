"""The manners in which a caller may have a model when it is called: its mode, one part's mode, what torch records."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tunebench.tuner.kernel import Mode


class Recording(enum.StrEnum):
    """The recording of a call by torch, by the name of the context that the call is made in."""

    NOTHING = "no_grad"
    GRADIENTS = "enable_grad"
    INFERENCE = "inference_mode"
    """Nothing; and the results never take part in what is recorded."""


@dataclass(frozen=True)
class Manner:
    """How a caller has a model when it is called.

    Attributes:
        mode: of the model.
        part: the name of its one part that is in the other mode, as after `model.norm.eval()`; empty where none is.
    """

    mode: Mode
    recording: Recording = Recording.NOTHING
    part: str = ""

    @property
    def part_mode(self) -> Mode:
        """The mode of the part."""
        return other_mode(self.mode)

    def __str__(self) -> str:
        told = [f"{self.mode} mode"]
        if self.part:
            told.append(f"'{self.part}' in {self.part_mode} mode")
        if self.recording is not Recording.NOTHING:
            told.append(self.recording.value)
        return ", ".join(told)


def other_mode(mode: Mode) -> Mode:
    """Return train mode for a model that is not in it, and else eval mode."""
    return Mode.EVAL if mode is Mode.TRAIN else Mode.TRAIN
