"""A model under test, the reference or a candidate, and everything that the gate asks it.

`boundary/sandbox.py` has a proxy for one that runs in a process of its own: it answers in the same plain values.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from tunebench.tuner.fork_server import TRACER
from tunebench.tuner.gate.changes import CHANGES
from tunebench.tuner.gate.comparison import real
from tunebench.tuner.gate.float64 import in_float64, widened
from tunebench.tuner.gate.gradients import Backward, Gradients, gradients_of
from tunebench.tuner.gate.manner import Manner, Recording
from tunebench.tuner.gate.memory import (
    SENTINELS,
    Bands,
    PoisonedAllocations,
    PoisonedMemory,
    all_equal,
    checksums,
    shares_memory,
)
from tunebench.tuner.gate.on_streams import after_wait, capturable, replayed
from tunebench.tuner.gate.options import options_of, values_for
from tunebench.tuner.gate.questions import (
    Setting,
    Settings,
    bytes_left_behind,
    could_hold,
    held_and_changed,
    outputs_at_once,
    outputs_in_turns,
    saved_and_loaded,
    set_setting,
    settings_of,
)
from tunebench.tuner.gate.truth import (
    Truth,
    device_of_inputs,
    named_tensors,
    overlapping,
    own_precision,
    truth_of,
    under_autocast,
)
from tunebench.tuner.gate.values import Values, cloned, mapped, own_part, tensors_in
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Accuracy
from tunebench.tuner.reference import seed_generators


@dataclass(frozen=True)
class CallOptions:
    """How a model is called.

    Attributes:
        byte: what memory is filled with that the call allocates; None leaves that memory alone.
        guarded: inputs are copied between guard bands first.
        held: the inputs are the tensors that the model holds (see `Model.hold`), whatever is given.
        autocast: the type that the call runs under autocast to.
        precision: the call runs at the precision of `own_precision`; None leaves the program's.
        compiled: the call goes through torch.compile's tracing; the traced graph runs eagerly.
        sums: the answer has the inputs' checksums after the call.
        after: the answer has the inputs themselves after the call.
        keep: the model goes on holding the output (see `Model.kept`).
        device: where inputs are moved to first, such as `cuda:1`; None leaves them where they are.
        seed: of torch's generators, before the call; None leaves them as they are.
        keywords: inputs are given by these names; by position where there are none.
        recording: what torch records of the call.
    """

    byte: int | None = SENTINELS[0]
    guarded: bool = True
    held: bool = False
    autocast: torch.dtype | None = None
    precision: Accuracy | None = None
    compiled: bool = False
    sums: bool = False
    after: bool = False
    keep: bool = False
    device: str | None = None
    seed: int | None = None
    keywords: tuple[str, ...] = ()
    recording: Recording = Recording.NOTHING


ORDINARY = CallOptions()


@dataclass(frozen=True)
class Answer:
    """A call's output, and what only the process sees in which the call ran.

    Attributes:
        output: what was returned.
        buffers: the module's buffers after the call.
        intact: no guard band was written.
        aliases: the paths of what is memory of an input.
        repeats: some of the rest of the output is memory of an output that the model keeps.
        shared: the paths of what is memory of an earlier part of the output.
        input_sums: the inputs' checksums after the call, where they were asked for.
        inputs: the inputs after the call, by name, where they were asked for.
    """

    output: Values
    buffers: Mapping[str, torch.Tensor]
    intact: bool
    aliases: Sequence[str]
    repeats: bool
    shared: Sequence[str]
    input_sums: Sequence[torch.Tensor]
    inputs: Mapping[str, torch.Tensor] = field(default_factory=dict)


Ready = Callable[[nn.Module, Sequence[Any]], str | None]


def always_ready(_module: nn.Module, _inputs: Sequence[Any]) -> str | None:
    """Return None: the module needs no preparation."""
    return None


class Model:
    """A module and what the gate asks of it; whatever the module raises comes out.

    A method takes and returns values that can cross to another process, see `boundary/plain.py`.

    Args:
        ready: makes the module ready for a call.
        memory: what a call allocates is poisoned by; a tuned module steps aside for `PoisonedAllocations`.
        watched: a context of each `call` and `consult`, such as `IndicesInRange` of a reference on a GPU.
    """

    def __init__(
        self,
        module: nn.Module,
        ready: Ready = always_ready,
        memory: type[PoisonedMemory | PoisonedAllocations] = PoisonedMemory,
        watched: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self.module = module
        self._memory = memory
        self._watched = watched
        self._ready = ready
        self._bands = Bands()
        self._held: tuple[Any, ...] = ()
        self._kept: list[Values] = []
        self._remembered: Mapping[str, torch.Tensor] = {}
        self._parameters: Mapping[str, torch.Tensor] = {}
        self._parameter_sums: Sequence[torch.Tensor] = ()
        self._traced: Callable[..., Any] | None = None

    def ready(self, inputs: Sequence[Any]) -> str | None:
        """Make the module ready for a call; return why it cannot serve these inputs, None where it can."""
        return self._ready(self.module, inputs)

    def call(self, inputs: Sequence[Any], options: CallOptions = ORDINARY) -> Answer:
        """Call the module once."""
        bands = Bands()
        mine = self._held if options.held else tuple(inputs)
        if options.device is not None:
            mine = tuple(mapped(value, lambda tensor: tensor.to(options.device)) for value in mine)
            self.ready(mine)  # what a contender runs is built and loaded for a device
        if options.guarded and not options.held:
            mine = tuple(bands.around(value) for value in mine)
        # Below a dispatch mode torch loses conjugates in inference mode.
        in_doubt = options.recording is Recording.INFERENCE and any(map(torch.is_complex, tensors_in(mine)))
        memory = None if options.byte is None or in_doubt else self._memory(options.byte)
        target = self._compiled() if options.compiled else self.module
        if options.seed is not None:
            seed_generators(options.seed, device_of_inputs(mine))
        named = dict(zip(options.keywords, mine, strict=True)) if options.keywords else {}
        # Without one, a call that turns recording on and leaves it so is seen.
        recorded = options.recording is not Recording.NOTHING
        recording = getattr(torch, options.recording)() if recorded else contextlib.nullcontext()
        precision = contextlib.nullcontext() if options.precision is None else own_precision(options.precision)
        watched = contextlib.nullcontext() if in_doubt or options.compiled else self._watched()
        poisoned = memory or contextlib.nullcontext()
        with under_autocast(options.autocast, mine), precision, recording, poisoned, watched:
            output = target(**named) if named else target(*mine)
        intact = bands.intact and self._bands.intact and (memory is None or memory.bands.intact)
        return self._answer(Values.of(output), mine, intact, options)

    def _answer(self, output: Values, mine: Sequence[Any], intact: bool, options: CallOptions) -> Answer:
        aliases = tuple(path for path, tensor in output.tensors.items() if shares_memory(tensor, mine))
        earlier = [tensor for kept in self._kept for tensor in kept.tensors.values()]
        own = [tensor for path, tensor in output.tensors.items() if path not in aliases]
        repeats = any(shares_memory(tensor, earlier) for tensor in own)
        if options.keep:
            self._kept.append(output)
        sums = checksums(mine) if options.sums else ()
        after = named_tensors(mine) if options.after else {}
        shared = overlapping(output)
        return Answer(output, dict(self.module.named_buffers()), intact, aliases, repeats, shared, sums, after)

    def _compiled(self) -> Callable[..., Any]:
        if self._traced is None:
            importlib.import_module(TRACER).reset()
            self._traced = torch.compile(self.module, backend="eager")
        return self._traced

    def consult(
        self,
        inputs: Sequence[Any],
        seed: int,
        autocast: torch.dtype | None = None,
        accuracy: Accuracy = Accuracy.TOLERANCE,
        recording: Recording = Recording.NOTHING,
    ) -> Truth:
        """Call it at its own precision and in float64, each after seeding torch's generators; see `truth_of`."""
        # Inference mode computes the same as no_grad does, and its results could not be written to.
        gradients = torch.enable_grad() if recording is Recording.GRADIENTS else contextlib.nullcontext()
        with gradients, self._watched():
            return truth_of(self.module, inputs, autocast, seed, accuracy)

    def call_many(self, turns: Sequence[Sequence[Any]], count: int) -> Sequence[Sequence[Answer]]:
        """Call it `count` times on inputs that take turns; return the different answers for each of the inputs."""
        seed_generators(0, device_of_inputs(turns[0]))
        return self._answers(outputs_in_turns(self._run, turns, count))

    def _answers(self, outputs: Sequence[Sequence[object]]) -> list[list[Answer]]:
        return [[self._answer(Values.of(one), (), True, ORDINARY) for one in of_inputs] for of_inputs in outputs]

    def hold(self, inputs: Sequence[Any]) -> None:
        """Hold these inputs, for calls with `CallOptions.held`."""
        self._held = tuple(inputs)

    def rewrite(self, inputs: Sequence[Any], *, counted: bool) -> None:
        """Write other values into the tensors that are held, whether torch's version counter sees it or not."""
        for tensor, other in zip(tensors_in(self._held), tensors_in(inputs), strict=True):
            own_part(tensor if counted else tensor.data).copy_(own_part(other))

    def exchange(self) -> None:
        """Hold other tensors on the memory of those that are held."""
        self._held = tuple(mapped(value, torch.Tensor.detach) for value in self._held)

    def kept(self) -> Sequence[Values]:
        """Return the outputs that are kept, as they are now."""
        return self._kept

    def forget(self) -> None:
        """Let go of the outputs that are kept."""
        self._kept.clear()

    def keeps_outputs(self) -> bool:
        """Let go of the outputs that are kept; return whether the module still holds the memory of one."""
        storages = [one.untyped_storage() for kept in self._kept for one in kept.tensors.values()]
        memory = [StorageWeakRef(storage) for storage in storages]  # type: ignore[no-untyped-call]
        storages.clear()
        self._kept.clear()
        if _are_gone(memory):
            return False
        gc.collect()
        return not _are_gone(memory)

    def state(self) -> Mapping[str, torch.Tensor]:
        """Return the module's state dict."""
        return self.module.state_dict()

    def set_buffers(self, buffers: Mapping[str, torch.Tensor]) -> None:
        """Copy these values into buffers; those for complex ones are pairs."""
        for name, buffer in self.module.named_buffers():
            real(buffer).copy_(buffers[name])

    def remember(self) -> None:
        """Note the module's state, for `reset`."""
        self._remembered = {name: tensor.clone() for name, tensor in self.module.state_dict().items()}

    def guard(self) -> None:
        """Move parameters and buffers between guard bands, and note what parameters hold."""
        self._parameters = dict(self.module.named_parameters())
        self._bands.take_in([*self._parameters.values(), *(buffer for _, buffer in self.module.named_buffers())])
        self._parameter_sums = checksums(self._parameters.values())

    def reset(self, byte: int) -> None:
        """Load the state that was remembered, and fill the guard bands with a byte."""
        self.module.load_state_dict(self._remembered)
        self._bands.fill(byte)

    def changed_parameters(self) -> Sequence[str]:
        """Return the parameters that do not hold what they held when they were guarded."""
        same = all_equal(self._parameter_sums, checksums(self._parameters.values()))
        return [name for name, equal in zip(self._parameters, same, strict=True) if not equal]

    def change(self, name: str) -> None:
        """Make one of `CHANGES` to the module."""
        CHANGES[name](self.module)

    def put(self, mode: Mode) -> None:
        """Put the module into a mode."""
        mode.put(self.module)

    def put_part(self, name: str, mode: Mode) -> None:
        """Put one part of the module into a mode."""
        self.module.get_submodule(name).train(mode is Mode.TRAIN)

    def parts(self) -> Sequence[str]:
        """Return the names of the parts that programs put into another mode than the whole: normalisations that keep
        statistics, which are frozen where a model is trained further."""
        norms = nn.modules.batchnorm._NormBase
        parts = self.module.named_modules()
        return [name for name, part in parts if name and isinstance(part, norms) and part.track_running_stats]

    def to(self, place: torch.dtype | str) -> None:
        """Move the module to a type or a device."""
        self.module.to(place)

    def has(self, what: str) -> bool:
        """Return whether the module has `parameters`, `buffers` or `normalisations`."""
        if what == "normalisations":
            return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in self.module.modules())
        return any(True for _ in (self.module.parameters() if what == "parameters" else self.module.buffers()))

    def returns_itself(self) -> bool:
        """Return whether `train()` and `eval()` return the module; end in train mode."""
        return self.module.eval() is self.module and self.module.train() is self.module

    def parameter_elements(self) -> int:
        """Count the elements of all parameters."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    def gradients(self, inputs: Sequence[Any], how: Backward, *, exact: bool = False) -> Gradients:
        """Run `gradients_of` on the module.

        Args:
            exact: in float64.
        """
        if not exact:
            return gradients_of(self.module, inputs, how)
        with in_float64(self.module, inputs):
            return gradients_of(self.module, [widened(value) for value in inputs], replace(how, autocast=None))

    def after_wait(self, first: Sequence[Any], second: Sequence[Any], seed: int, *, own_stream: bool) -> Answer:
        """Call it on a CUDA stream on which `second` is written over `first` after a wait, and read the output as soon
        as an event behind the call has come."""
        return self._answer(after_wait(self.module, first, second, seed, own_stream=own_stream), (), True, ORDINARY)

    def replayed(self, inputs: Sequence[Any], others: Sequence[Any]) -> Answer:
        """Capture a call in a CUDA graph, write other inputs over the first ones, and replay it."""
        return self._answer(replayed(self.module, inputs, others), (), True, ORDINARY)

    def capturable(self, inputs: Sequence[Any]) -> bool:
        """Return whether a call can be captured in a CUDA graph."""
        return capturable(self.module, inputs)

    def _run(self, inputs: Sequence[Any]) -> object:
        self.ready(inputs)
        return self.module(*inputs)

    def changed_results(self, turns: Sequence[Sequence[Any]], count: int) -> int:
        """Hold the results of `count` calls on inputs that take turns; count those that changed meanwhile."""
        return held_and_changed(self._run, turns, count)

    def at_once(self, turns: Sequence[Sequence[Any]], count: int) -> Sequence[Sequence[Answer]]:
        """Call it `count` times in a thread for each of the turns; return the different answers for each."""
        for inputs in turns:
            self._run(cloned(inputs))
        return self._answers(outputs_at_once(lambda inputs: self.module(*inputs), turns, count))

    def left_behind(self, turns: Sequence[Sequence[Any]], count: int) -> int | None:
        """Measure the bytes of memory that each of `count` calls leaves behind; None where the system does not say."""
        return bytes_left_behind(self._run, turns, count, device_of_inputs(turns[0]))

    def copied(self, *, pickled: bool = False) -> Model:
        """Copy the module deeply, as a model of its own.

        Args:
            pickled: by `torch.save` and `torch.load`.
        """
        module = saved_and_loaded(self.module) if pickled else copy.deepcopy(self.module)
        return Model(module, self._ready, self._memory, self._watched)

    def settings(self) -> Settings:
        """Return the numbers that the module and its parts hold as plain attributes, such as `norm.eps`."""
        return settings_of(self.module)

    def set(self, name: str, value: Setting) -> None:
        """Give one of the settings another value."""
        set_setting(self.module, name, value)

    def could_hold(self, name: str, value: Setting) -> bool:
        """Return whether it could have been made with another value of a setting; see `questions.could_hold`."""
        return could_hold(self.module, name, value)

    def input_names(self, count: int) -> Sequence[str]:
        """Return the names of the first inputs in `forward`'s signature; none where they have none."""
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        parameters = list(inspect.signature(self.module.forward).parameters.values())[:count]
        return [one.name for one in parameters] if all(one.kind in named for one in parameters) else []

    def options(self, count: int) -> Mapping[str, Any]:
        """Return the inputs that it does without, behind the first ones, with their defaults; see `options_of`."""
        return options_of(self.module, count)

    def values_for(self, inputs: Sequence[Any], option: str, number: float) -> Sequence[Any]:
        """Return a value for one of the options, if there is any that it takes and shows; see `options.values_for`."""
        return values_for(self.module, inputs, option, number)


def in_part(model: Model, manner: Manner) -> Model:
    """Put the part of a model that a manner names into that part's mode; return the model."""
    if manner.part:
        model.put_part(manner.part, manner.part_mode)
    return model


def _are_gone(memory: Sequence[StorageWeakRef]) -> bool:
    return all(one.expired() for one in memory)  # type: ignore[no-untyped-call]
