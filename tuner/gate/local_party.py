"""A party whose module is in this process."""

from __future__ import annotations

import contextlib
import copy
import gc
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from tunebench.tuner.gate.changes import CHANGES
from tunebench.tuner.gate.float64 import in_float64, widened
from tunebench.tuner.gate.gradients import Backward, Gradients, gradients_of
from tunebench.tuner.gate.memory import (
    Bands,
    PoisonedAllocations,
    PoisonedMemory,
    all_equal,
    checksums,
    shares_memory,
)
from tunebench.tuner.gate.on_streams import after_wait, capturable, replayed
from tunebench.tuner.gate.party import ORDINARY, Answer, Manner
from tunebench.tuner.gate.questions import (
    Setting,
    Settings,
    bytes_left_behind,
    could_hold,
    held_and_changed,
    outputs_at_once,
    outputs_in_turns,
    set_setting,
    settings_of,
)
from tunebench.tuner.gate.truth import Truth, device_of_inputs, named_tensors, truth_of, under_autocast
from tunebench.tuner.gate.values import Values, cloned, mapped, own_part, tensors_in
from tunebench.tuner.kernel import Mode
from tunebench.tuner.reference import seed_generators

Ready = Callable[[nn.Module, Sequence[Any]], str | None]


def always_ready(_module: nn.Module, _inputs: Sequence[Any]) -> str | None:
    """Of a module that needs no preparation."""
    return None


class LocalParty:
    """A party whose module is in this process; see `Party` for what the methods do.

    Args:
        ready: makes the module ready for a call.
        memory: what a call allocates is poisoned by; a tuned module steps aside for `PoisonedAllocations`.
    """

    def __init__(
        self,
        module: nn.Module,
        ready: Ready = always_ready,
        memory: type[PoisonedMemory | PoisonedAllocations] = PoisonedMemory,
    ) -> None:
        self.module = module
        self._memory = memory
        self._ready = ready
        self._bands = Bands()
        self._held: tuple[Any, ...] = ()
        self._kept: list[Values] = []
        self._remembered: Mapping[str, torch.Tensor] = {}
        self._parameters: Mapping[str, torch.Tensor] = {}
        self._parameter_sums: Sequence[torch.Tensor] = ()
        self._traced: Callable[..., Any] | None = None

    def ready(self, inputs: Sequence[Any]) -> str | None:
        return self._ready(self.module, inputs)

    def call(self, inputs: Sequence[Any], manner: Manner = ORDINARY) -> Answer:
        bands = Bands()
        mine = self._held if manner.held else tuple(inputs)
        if manner.device is not None:
            mine = tuple(mapped(value, lambda tensor: tensor.to(manner.device)) for value in mine)
            self.ready(mine)  # what a contender runs is built and loaded for a device
        if manner.guarded and not manner.held:
            mine = tuple(bands.around(value) for value in mine)
        memory = None if manner.byte is None else self._memory(manner.byte)
        target = self._compiled() if manner.compiled else self.module
        if manner.seed is not None:
            seed_generators(manner.seed, device_of_inputs(mine))
        named = dict(zip(manner.keywords, mine, strict=True)) if manner.keywords else {}
        # torch's inference_mode(False) would turn gradients on.
        inference = torch.inference_mode() if manner.inference else contextlib.nullcontext()
        recording = torch.enable_grad() if manner.recording else contextlib.nullcontext()
        with under_autocast(manner.autocast, mine), inference, recording, memory or contextlib.nullcontext():
            output = target(**named) if named else target(*mine)
        intact = bands.intact and self._bands.intact and (memory is None or memory.bands.intact)
        return self._answer(Values.of(output), mine, intact, manner)

    def _answer(self, output: Values, mine: Sequence[Any], intact: bool, manner: Manner) -> Answer:
        aliases = tuple(path for path, tensor in output.tensors.items() if shares_memory(tensor, mine))
        earlier = [tensor for kept in self._kept for tensor in kept.tensors.values()]
        own = [tensor for path, tensor in output.tensors.items() if path not in aliases]
        repeats = any(shares_memory(tensor, earlier) for tensor in own)
        if manner.keep:
            self._kept.append(output)
        sums = checksums(mine) if manner.sums else ()
        after = named_tensors(mine) if manner.after else {}
        return Answer(output, dict(self.module.named_buffers()), intact, aliases, repeats, sums, after)

    def _compiled(self) -> Callable[..., Any]:
        import torch._dynamo  # seconds, so that only whoever asks pays for it

        if self._traced is None:
            torch._dynamo.reset()
            self._traced = torch.compile(self.module, backend="eager")
        return self._traced

    def consult(
        self, inputs: Sequence[Any], seed: int, autocast: torch.dtype | None = None, *, in_full: bool = False
    ) -> Truth:
        return truth_of(self.module, inputs, autocast, seed, in_full=in_full)

    def call_many(self, turns: Sequence[Sequence[Any]], count: int) -> Sequence[Sequence[Answer]]:
        seed_generators(0, device_of_inputs(turns[0]))
        return self._answers(outputs_in_turns(self._run, turns, count))

    def _answers(self, outputs: Sequence[Sequence[object]]) -> list[list[Answer]]:
        return [[self._answer(Values.of(one), (), True, ORDINARY) for one in of_inputs] for of_inputs in outputs]

    def hold(self, inputs: Sequence[Any]) -> None:
        self._held = tuple(inputs)

    def rewrite(self, inputs: Sequence[Any], *, counted: bool) -> None:
        for tensor, other in zip(tensors_in(self._held), tensors_in(inputs), strict=True):
            own_part(tensor if counted else tensor.data).copy_(own_part(other))

    def exchange(self) -> None:
        self._held = tuple(mapped(value, torch.Tensor.detach) for value in self._held)

    def kept(self) -> Sequence[Values]:
        return self._kept

    def forget(self) -> None:
        self._kept.clear()

    def keeps_outputs(self) -> bool:
        storages = [one.untyped_storage() for kept in self._kept for one in kept.tensors.values()]
        memory = [StorageWeakRef(storage) for storage in storages]  # type: ignore[no-untyped-call]
        storages.clear()
        self._kept.clear()
        if _are_gone(memory):
            return False
        gc.collect()
        return not _are_gone(memory)

    def state(self) -> Mapping[str, torch.Tensor]:
        return self.module.state_dict()

    def set_buffers(self, buffers: Mapping[str, torch.Tensor]) -> None:
        for name, buffer in self.module.named_buffers():
            buffer.copy_(buffers[name])

    def remember(self) -> None:
        self._remembered = {name: tensor.clone() for name, tensor in self.module.state_dict().items()}

    def guard(self) -> None:
        self._parameters = dict(self.module.named_parameters())
        self._bands.take_in([*self._parameters.values(), *(buffer for _, buffer in self.module.named_buffers())])
        self._parameter_sums = checksums(self._parameters.values())

    def reset(self, byte: int) -> None:
        self.module.load_state_dict(self._remembered)
        self._bands.fill(byte)

    def changed_parameters(self) -> Sequence[str]:
        same = all_equal(self._parameter_sums, checksums(self._parameters.values()))
        return [name for name, equal in zip(self._parameters, same, strict=True) if not equal]

    def change(self, name: str) -> None:
        CHANGES[name](self.module)

    def put(self, mode: Mode) -> None:
        mode.put(self.module)

    def to(self, place: torch.dtype | str) -> None:
        self.module.to(place)

    def has(self, what: str) -> bool:
        if what == "normalisations":
            return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in self.module.modules())
        return any(True for _ in (self.module.parameters() if what == "parameters" else self.module.buffers()))

    def returns_itself(self) -> bool:
        return self.module.eval() is self.module and self.module.train() is self.module

    def parameter_elements(self) -> int:
        return sum(parameter.numel() for parameter in self.module.parameters())

    def gradients(self, inputs: Sequence[Any], how: Backward, *, exact: bool = False) -> Gradients:
        if not exact:
            return gradients_of(self.module, inputs, how)
        with in_float64(self.module, inputs):
            return gradients_of(self.module, [widened(value) for value in inputs], how)

    def after_wait(self, first: Sequence[Any], second: Sequence[Any], seed: int, *, own_stream: bool) -> Answer:
        return self._answer(after_wait(self.module, first, second, seed, own_stream=own_stream), (), True, ORDINARY)

    def replayed(self, inputs: Sequence[Any], others: Sequence[Any]) -> Answer:
        return self._answer(replayed(self.module, inputs, others), (), True, ORDINARY)

    def capturable(self, inputs: Sequence[Any]) -> bool:
        return capturable(self.module, inputs)

    def _run(self, inputs: Sequence[Any]) -> object:
        self.ready(inputs)
        return self.module(*inputs)

    def changed_results(self, turns: Sequence[Sequence[Any]], count: int) -> int:
        return held_and_changed(self._run, turns, count)

    def at_once(self, turns: Sequence[Sequence[Any]], count: int) -> Sequence[Sequence[Answer]]:
        for inputs in turns:
            self._run(cloned(inputs))
        return self._answers(outputs_at_once(lambda inputs: self.module(*inputs), turns, count))

    def left_behind(self, turns: Sequence[Sequence[Any]], count: int) -> int | None:
        return bytes_left_behind(self._run, turns, count, device_of_inputs(turns[0]))

    def copied(self) -> LocalParty:
        return LocalParty(copy.deepcopy(self.module), self._ready, self._memory)

    def settings(self) -> Settings:
        return settings_of(self.module)

    def set(self, name: str, value: Setting) -> None:
        set_setting(self.module, name, value)

    def could_hold(self, name: str, value: Setting) -> bool:
        return could_hold(self.module, name, value)

    def input_names(self, count: int) -> Sequence[str]:
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        parameters = list(inspect.signature(self.module.forward).parameters.values())[:count]
        return [one.name for one in parameters] if all(one.kind in named for one in parameters) else []

    def options(self, count: int) -> Sequence[str]:
        more = list(inspect.signature(self.module.forward).parameters.values())[count:]
        named = itertools.takewhile(lambda one: one.kind is one.POSITIONAL_OR_KEYWORD, more)
        return [one.name for one in named if one.default is not one.empty]


def _are_gone(memory: Sequence[StorageWeakRef]) -> bool:
    return all(one.expired() for one in memory)  # type: ignore[no-untyped-call]
