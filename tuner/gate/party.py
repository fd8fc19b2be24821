"""A party: one module that the gate asks, the reference or what is on trial, and everything that it may be asked.

`LocalParty` asks a module of this process. A module that nobody vouches for stands in a process of its own, in which
`tunebench.tuner.gate.boundary` asks a `LocalParty` on the judge's behalf: both answer in the same plain values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from tunebench.tuner.gate.gradients import Backward, Gradients
from tunebench.tuner.gate.memory import SENTINELS
from tunebench.tuner.gate.questions import Setting, Settings
from tunebench.tuner.gate.truth import Truth
from tunebench.tuner.gate.values import Values
from tunebench.tuner.kernel import Mode


@dataclass(frozen=True)
class Manner:
    """How a party is called.

    Attributes:
        byte: what memory is filled with that the call allocates; None leaves that memory alone.
        guarded: inputs are copied between guard bands first.
        held: the inputs are the tensors that the party holds (see `Party.hold`), whatever is given.
        autocast: the type that the call runs under autocast to.
        compiled: the call goes through torch.compile's tracing; the traced graph runs eagerly.
        sums: the answer has the inputs' checksums after the call.
        after: the answer has the inputs themselves after the call.
        keep: the party goes on holding the output (see `Party.kept`).
        device: where inputs are moved to first, such as `cuda:1`; None leaves them where they are.
        seed: of torch's generators, before the call; None leaves them as they are.
        keywords: inputs are given by these names; by position where there are none.
        inference: the call is made in torch's inference mode.
        recording: gradients are recorded, as they are where nobody turns that off.
    """

    byte: int | None = SENTINELS[0]
    guarded: bool = True
    held: bool = False
    autocast: torch.dtype | None = None
    compiled: bool = False
    sums: bool = False
    after: bool = False
    keep: bool = False
    device: str | None = None
    seed: int | None = None
    keywords: tuple[str, ...] = ()
    inference: bool = False
    recording: bool = False


ORDINARY = Manner()


@dataclass(frozen=True)
class Answer:
    """What a call returned, and what only the process sees in which it ran.

    Attributes:
        output: what was returned.
        buffers: the module's buffers after the call.
        intact: no guard band was written.
        aliases: the paths of what is memory of an input.
        repeats: some of the rest of the output is memory of an output that the party keeps.
        input_sums: the inputs' checksums after the call, where they were asked for.
        inputs: the inputs after the call, by name, where they were asked for.
    """

    output: Values
    buffers: Mapping[str, torch.Tensor]
    intact: bool
    aliases: Sequence[str]
    repeats: bool
    input_sums: Sequence[torch.Tensor]
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)


class Party(Protocol):
    """Everything that the gate asks of a module; whatever the module raises comes out."""

    def ready(self, inputs: Sequence[Any]) -> str | None:
        """Make the module ready for a call; why it cannot serve these inputs, None where it can."""

    def call(self, inputs: Sequence[Any], manner: Manner = ORDINARY) -> Answer:
        """Call it."""

    def consult(
        self, inputs: Sequence[Any], seed: int, autocast: torch.dtype | None = None, *, in_full: bool = False
    ) -> Truth:
        """Call it at its own precision and in float64, each after seeding torch's generators; see `truth_of`."""

    def call_many(self, turns: Sequence[Sequence[Any]], count: int) -> Sequence[Sequence[Answer]]:
        """The different answers that so many calls get on inputs that take turns, by the inputs."""

    def hold(self, inputs: Sequence[Any]) -> None:
        """Hold these inputs, for calls with `Manner.held`."""

    def rewrite(self, inputs: Sequence[Any], *, counted: bool) -> None:
        """Write other values into the tensors that are held, whether torch's version counter sees it or not."""

    def exchange(self) -> None:
        """Hold other tensors on the memory of those that are held."""

    def kept(self) -> Sequence[Values]:
        """The outputs that are kept, as they are now."""

    def forget(self) -> None:
        """Let go of the outputs that are kept."""

    def keeps_outputs(self) -> bool:
        """Let go of the outputs that are kept; whether somebody else holds the memory of one then."""

    def state(self) -> Mapping[str, torch.Tensor]:
        """The module's state dict."""

    def set_buffers(self, buffers: Mapping[str, torch.Tensor]) -> None:
        """Copy these values into buffers."""

    def remember(self) -> None:
        """Note the module's state, for `reset`."""

    def guard(self) -> None:
        """Move parameters and buffers between guard bands, and note what parameters hold."""

    def reset(self, byte: int) -> None:
        """Load the state that was remembered, and fill the guard bands with a byte."""

    def changed_parameters(self) -> Sequence[str]:
        """The parameters that do not hold what they held when they were guarded."""

    def change(self, name: str) -> None:
        """Do one of `CHANGES` to the module."""

    def put(self, mode: Mode) -> None:
        """Put the module into a mode."""

    def to(self, place: torch.dtype | str) -> None:
        """Move the module to a type or a device."""

    def has(self, what: str) -> bool:
        """Whether the module has `parameters`, `buffers` or `normalisations`."""

    def returns_itself(self) -> bool:
        """Whether `train()` and `eval()` return the module, as `model = Model().eval()` needs. Ends in train mode."""

    def parameter_elements(self) -> int:
        """The elements of all parameters."""

    def gradients(self, inputs: Sequence[Any], how: Backward, *, exact: bool = False) -> Gradients:
        """What `gradients_of` finds.

        Args:
            exact: of the module in float64.
        """

    def after_wait(self, first: Sequence[Any], second: Sequence[Any], seed: int, *, own_stream: bool) -> Answer:
        """Call it on a CUDA stream on which `second` is written over `first` after a wait, and read the output as soon
        as an event behind the call has come."""

    def replayed(self, inputs: Sequence[Any], others: Sequence[Any]) -> Answer:
        """Capture a call in a CUDA graph, write other inputs over the first ones, and replay it."""

    def capturable(self, inputs: Sequence[Any]) -> bool:
        """Whether a call can be captured in a CUDA graph."""

    def changed_results(self, turns: Sequence[Sequence[Any]], count: int) -> int:
        """Hold the results of so many calls on inputs that take turns; how many changed while the others were made."""

    def at_once(self, turns: Sequence[Sequence[Any]], count: int) -> Sequence[Sequence[Answer]]:
        """The different answers that a thread for each of the turns gets in so many calls."""

    def left_behind(self, turns: Sequence[Sequence[Any]], count: int) -> int | None:
        """Bytes of memory that each of so many calls leaves behind; None where the system does not say."""

    def copied(self) -> Party:
        """A deep copy of the module, as a party of its own."""

    def settings(self) -> Settings:
        """The numbers that the module and its parts hold as plain attributes, such as `norm.eps`."""

    def set(self, name: str, value: Setting) -> None:
        """Give one of the settings another value."""

    def could_hold(self, name: str, value: Setting) -> bool:
        """Whether it could have been made with another value of one of the settings; see `questions.could_hold`."""

    def input_names(self, count: int) -> Sequence[str]:
        """The names of the first inputs in `forward`'s signature; none where they have none."""

    def options(self, count: int) -> Sequence[str]:
        """The names of the inputs behind the first ones that `forward` does without, up to the first that is not so."""
