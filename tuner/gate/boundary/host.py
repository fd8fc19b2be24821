"""The process that a file runs in: it holds the file's models, and answers what the judge asks of them."""

from __future__ import annotations

import contextlib
import importlib
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import torch

from tunebench.tuner.errors import KernelFolderError
from tunebench.tuner.fork_server import TRACER
from tunebench.tuner.gate.boundary.batched_calls import BatchedCalls
from tunebench.tuner.gate.boundary.lending import Borrowing
from tunebench.tuner.gate.boundary.plain import declared_types, put_together, taken_apart
from tunebench.tuner.gate.boundary.spec import Loaded, MakeModel, SandboxSpec
from tunebench.tuner.gate.boundary.wire import WireError, receive, send
from tunebench.tuner.gate.model import ORDINARY, CallOptions, Model
from tunebench.tuner.gate.oracle import ask
from tunebench.tuner.gate.process_state import Watch, draws
from tunebench.tuner.gate.sources import Sizes, Source
from tunebench.tuner.gate.truth import device_of_inputs
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Accuracy
from tunebench.tuner.reference import seed_generators
from tunebench.tuner.scratch import share_scratch
from tunebench.tuner.users_code import described, place_of

_MOST_BYTES = 1 << 40
"""Size limit for messages from the judge. It is trusted, so the limit is only nominal."""


@dataclass(frozen=True)
class ProcessChanges:
    """How a file's process differs from what it was.

    Attributes:
        changed: what the file has changed, a line each.
        draws: a call draws random numbers.
    """

    changed: Sequence[str]
    draws: bool


def serve(connection: Connection, scratch: Path, spec: SandboxSpec) -> NoReturn:
    """Answer the judge until it hangs up."""
    share_scratch(scratch)
    warnings.simplefilter("ignore")
    with contextlib.suppress(RuntimeError):  # whoever asks for the device then is told
        torch.zeros(1, device=spec.device)  # its context is made while the judge is at something else
    if spec.is_traced:
        importlib.import_module(TRACER)
    host, passage = Host(spec), Borrowing()
    try:
        while True:
            _reply(connection, passage, host, *receive(connection, _MOST_BYTES, passage))
    except (EOFError, ConnectionError):
        pass  # the judge hangs up
    except (OSError, WireError) as error:
        print(error, error.__cause__ or "", flush=True)
    os._exit(1)


def _reply(connection: Connection, passage: Borrowing, host: Host, *request: Any) -> None:
    """Answer one request, and let go of its tensors: what is asked next is who keeps the memory of an output."""
    try:
        with torch.no_grad():
            reply = {"value": host.answer(*request)}
        send(connection, reply, passage)
    except BaseException as error:  # noqa: BLE001 - a process boundary: whatever it is, it is for whoever asked
        send(connection, {"error": _reported(error, host.path)})


def _reported(error: BaseException, file: Path) -> str:
    place = place_of(error, file)
    text = str(error) if isinstance(error, WireError | KernelFolderError) else described(error)
    # An error that stands by itself is reported with its place; the file's own errors have it in their text.
    return (text if place is None or text.startswith(place) else f"{text} ({place})")[:2000]


class Host:
    """Holds what one process runs: the reference at some sizes, and models by number, each with its batched calls.

    Attributes:
        path: the file whose places are named in errors.
    """

    def __init__(self, spec: SandboxSpec) -> None:
        self._spec = spec
        self.path = spec.path
        self._loaded: Loaded | None = None
        self._models: dict[int, Model] = {}
        self._sources: dict[str, Source] = {}
        self._calls: dict[int, BatchedCalls] = {}
        self._watch = Watch()
        self._draws = 0
        self._made: tuple[Source, Mode] | None = None

    def answer(self, kind: str, key: Any, method: str, arguments: Mapping[str, Any]) -> Any:
        """Return what a method of a host, source, model or its batched calls answers, taken apart."""
        targets: Mapping[str, Callable[[], Any]] = {
            "Host": lambda: self,
            "Source": lambda: self._source(key),
            "Model": lambda: self._models[key],
            "BatchedCalls": lambda: self._calls[key],
        }
        target = targets[kind]()
        function = getattr(type(target), method)
        kinds = declared_types(function)
        given = {name: put_together(kinds[name], value) for name, value in arguments.items()}
        if kind == "Model":
            return taken_apart(self._watched(function, target, given))
        answer = taken_apart(function(target, **given))
        if kind == "BatchedCalls":
            self._watch.look("when it is timed")
        return answer

    def _watched(self, function: Any, model: Model, given: Mapping[str, Any]) -> Any:
        options = given.get("options", ORDINARY)
        counted = function is Model.call and _may_not_draw(options)
        if counted and options.seed is not None:
            seed_generators(options.seed, device_of_inputs(given["inputs"]))
        before = draws() if counted else ()
        answer = function(model, **given)
        self._draws += counted and draws() != before
        self._watch.look("in a call")
        return answer

    def returned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor: whether what the judge lends comes through, before any file runs."""
        return tensor

    def open(self) -> Sizes:
        """Run the files; return the reference's numbers."""
        self._loaded = self._spec.open(self._watch)
        self._watch.look("once it is imported")
        return self._loaded.reference.numbers

    def _source(self, sizes: Sizes) -> Source:
        assert self._loaded is not None
        key = str(sorted(sizes.items()))
        if key not in self._sources:
            self._sources[key] = self._loaded.source(sizes)
        return self._sources[key]

    def resize(self, sizes: Sizes) -> Sizes:
        """Return the sizes, once models and inputs can be made at them."""
        return dict(self._source(sizes).resized(sizes).sizes)

    def bounds(self, sizes: Sizes, mode: Mode, accuracy: Accuracy) -> Mapping[str, float]:
        """Return the errors that pass at these sizes, by the path of each part of the output."""
        source = self._source(sizes)
        case = ask(source.model(mode), "its own sizes", source.inputs(1), accuracy=accuracy)
        return {path: expected.bound for path, expected in case.output.items()}

    def make(self, number: int, sizes: Sizes, mode: Mode, state: Mapping[str, torch.Tensor] | None) -> None:
        """Make a model of that number."""
        source = self._source(sizes)
        assert self._loaded is not None
        make = self._loaded.make
        self._models[number] = source.model(mode, state) if make is None else make(source, mode, state)
        self._made = source, mode
        self._watch.look("once a model is made")

    def copy(self, number: int, of: int, pickled: bool) -> None:
        """Copy a model, as one of that number; see `Model.copied`."""
        self._models[number] = self._models[of].copied(pickled=pickled)

    def drop(self, numbers: Sequence[int]) -> None:
        """Let go of models."""
        for number in numbers:
            self._models.pop(number, None)
            self._calls.pop(number, None)

    def begin_calls(self, number: int, bases: Sequence[Sequence[Any]], count: int) -> None:
        """Make room for a model's batches of so many calls."""
        self._calls.pop(number, None)
        self._calls[number] = BatchedCalls(self._models[number], bases, count)

    def changes(self) -> ProcessChanges:
        """Return what the file has changed of its process, and whether a call draws random numbers."""
        if self._made is not None and self._loaded is not None and self._loaded.make is not None:
            self._call_freely(self._loaded.make, *self._made)
        # A library may draw when it is used first.
        return ProcessChanges(self._watch.changes("at the end"), self._draws > 1)

    def _call_freely(self, make: MakeModel, source: Source, mode: Mode) -> None:
        """Call it once as a user's program does, outside of everything that puts torch's modes back behind it."""
        model, inputs = make(source, mode, None), source.inputs(0)
        torch.set_grad_enabled(True)
        self._watch.forget()
        try:
            model.ready(inputs)
            with contextlib.suppress(Exception):  # the gate has asked whether it runs
                model.module(*inputs)
        finally:
            self._watch.look("in a call")
            torch.set_grad_enabled(False)
            self._watch.forget()


def _may_not_draw(options: CallOptions) -> bool:
    """Return whether a draw in such a call is the model's: torch's compiler draws, and other devices are seeded."""
    return not (options.compiled or options.held or options.device)
