"""What runs on the other side of the boundary: a file's models, asked by whoever judges them."""

from __future__ import annotations

import contextlib
import os
import types
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import torch

from tunebench.tuner.errors import KernelFolderError
from tunebench.tuner.gate.boundary.contents import Contents, MakeParty, Opened
from tunebench.tuner.gate.boundary.lending import Borrowing, Passage
from tunebench.tuner.gate.boundary.turns import Turns
from tunebench.tuner.gate.boundary.wire import WireError, receive, send
from tunebench.tuner.gate.effort import Limit
from tunebench.tuner.gate.faults import FAILURES
from tunebench.tuner.gate.gradients import Backward, Incoming, Trained
from tunebench.tuner.gate.local_party import LocalParty
from tunebench.tuner.gate.oracle import ask
from tunebench.tuner.gate.party import Manner
from tunebench.tuner.gate.process_state import Watch, draws
from tunebench.tuner.gate.sources import LocalSource
from tunebench.tuner.gate.truth import device_of_inputs
from tunebench.tuner.isolation import limit_output
from tunebench.tuner.kernel import Mode
from tunebench.tuner.reference import seed_generators
from tunebench.tuner.scratch import share_scratch
from tunebench.tuner.users_code import described, place_of

_MOST_BYTES = 1 << 40
"""What the judge sends is believed."""


def serve(connection: Connection, scratch: Path, contents: Contents) -> NoReturn:
    """Answer the judge's questions until it has no more."""
    share_scratch(scratch)
    limit_output()
    warnings.simplefilter("ignore")
    room, passage = _Room(contents), Borrowing()
    with contextlib.suppress(EOFError, OSError, WireError):
        while True:
            method, arguments = receive(connection, _MOST_BYTES, passage)
            _reply(connection, passage, room, method, arguments)
    os._exit(1)


def _reply(connection: Connection, passage: Passage, room: _Room, method: str, arguments: Mapping[str, Any]) -> None:
    try:
        with torch.no_grad():
            reply = {"value": getattr(room, method)(**arguments)}
        send(connection, reply, passage)
    except BaseException as error:  # noqa: BLE001 - a process boundary: whatever it is, it is for whoever asked
        place = place_of(error, room.path)
        text = str(error) if isinstance(error, WireError | KernelFolderError) else described(error)
        # An error that stands by itself is told with its place; the file's own errors have it in their text.
        told = text if place is None or text.startswith(place) else f"{text} ({place})"
        send(connection, {"error": told[:2000], "type": type(error).__name__})


class _Room:
    """The files of one process, and the parties made of them, by number.

    Attributes:
        path: the file whose places are named in errors.
    """

    def __init__(self, contents: Contents) -> None:
        self.path = contents.path
        self._contents = contents
        self._opened: Opened | None = None
        self._parties: dict[int, LocalParty] = {}
        self._sources: dict[str, LocalSource] = {}
        self._turns: dict[int, Turns] = {}
        self._watch = Watch()
        self._draws = 0
        self._made: tuple[LocalSource, Mode] | None = None

    def open(self) -> Mapping[str, int | float]:
        """Run the files; the reference's numbers."""
        self._opened = self._contents.open(self._watch)
        self._watch.look("once it is imported")
        return self._opened.reference.numbers

    def _source(self, sizes: Mapping[str, int | float]) -> LocalSource:
        assert self._opened is not None
        key = str(sorted(sizes.items()))
        if key not in self._sources:
            reference = self._opened.reference
            self._sources[key] = LocalSource(
                reference if sizes == reference.numbers else reference.resized(sizes), self._opened.device
            )
        return self._sources[key]

    def resize(self, sizes: Mapping[str, int | float]) -> Mapping[str, int | float]:
        """The sizes, once models and inputs can be made at them."""
        return dict(self._source(sizes).resized(sizes).sizes)

    def inputs(self, sizes: Mapping[str, int | float], seed: int) -> tuple[Any, ...]:
        """Of the reference."""
        return self._source(sizes).inputs(seed)

    def bounds(self, sizes: Mapping[str, int | float], mode: str) -> Mapping[str, float]:
        """The errors that pass at these sizes, by the path of each part of the output."""
        source = self._source(sizes)
        case = ask(source.party(Mode(mode)), "its own sizes", source.inputs(1))
        return {path: expected.bound for path, expected in case.output.items()}

    def elements(self, sizes: Mapping[str, int | float], changes: Mapping[str, int | float]) -> tuple[int, int]:
        """Of the output and of the parameters."""
        return self._source(sizes).elements(changes)

    def effort(
        self,
        sizes: Mapping[str, int | float],
        changes: Mapping[str, int | float],
        limit: Mapping[str, int | float],
    ) -> int | None:
        """What a call makes."""
        return self._source(sizes).effort(changes, Limit(int(limit["elements"]), limit["seconds"]))

    def make(
        self, number: int, sizes: Mapping[str, int | float], mode: str, state: Mapping[str, torch.Tensor] | None
    ) -> None:
        """A party of that number."""
        source = self._source(sizes)
        assert self._opened is not None
        make = self._opened.make
        self._parties[number] = source.party(Mode(mode), state) if make is None else make(source, Mode(mode), state)
        self._made = source, Mode(mode)
        self._watch.look("once a model is made")

    def copy(self, number: int, of: int) -> None:
        """A deep copy of a party, of that number."""
        self._parties[number] = self._parties[of].copied()

    def drop(self, numbers: Sequence[int]) -> None:
        """Let go of parties."""
        for number in numbers:
            self._parties.pop(number, None)
            self._turns.pop(number, None)

    def changes(self) -> Mapping[str, Any]:
        """What the file has changed of its process, and whether a call draws random numbers."""
        if self._made is not None and self._opened is not None and self._opened.make is not None:
            self._call_freely(self._opened.make, *self._made)
        # A library may draw when it is used first.
        return {"changed": self._watch.changes("at the end"), "draws": self._draws > 1}

    def _call_freely(self, make: MakeParty, source: LocalSource, mode: Mode) -> None:
        """One call as a user's program makes it, outside of everything that puts torch's modes back behind it."""
        party, inputs = make(source, mode, None), source.inputs(0)
        torch.set_grad_enabled(True)
        self._watch.forget()
        try:
            party.ready(inputs)
            with contextlib.suppress(*FAILURES):  # the gate has asked whether it runs
                party.module(*inputs)
        finally:
            self._watch.look("in a call")
            torch.set_grad_enabled(False)
            self._watch.forget()

    def party(self, number: int, question: str, arguments: Mapping[str, Any]) -> Any:
        """What a party answers to one of the questions of `Party`."""
        given = dict(arguments)
        if "manner" in given:
            given["manner"] = Manner(**given["manner"])
        if "how" in given:
            how = given["how"]
            how = {**how, "parameters": Trained(how["parameters"]), "incoming": Incoming(how["incoming"])}
            given["how"] = Backward(**how)
        if question == "put":
            given["mode"] = Mode(given["mode"])
        watched = question == "call" and _may_not_draw(given["manner"])
        if watched and given["manner"].seed is not None:
            seed_generators(given["manner"].seed, device_of_inputs(given["inputs"]))
        before = draws() if watched else ()
        answer = plain(getattr(self._parties[number], question)(**given))
        self._draws += watched and draws() != before
        self._watch.look("in a call")
        return answer

    def begin_turns(self, number: int, bases: Sequence[Sequence[Any]], count: int) -> None:
        """Make room for a party's batches of so many calls."""
        self._turns.pop(number, None)
        self._turns[number] = Turns(self._parties[number], bases, count)

    def turns(self, number: int, question: str, arguments: Mapping[str, Any]) -> Any:
        """What a party's `Turns` answer."""
        answer = plain(getattr(self._turns[number], question)(**arguments))
        self._watch.look("when it is timed")
        return answer


def _may_not_draw(manner: Manner) -> bool:
    """Whether a draw in such a call is the model's: torch's compiler draws itself, and other devices are seeded."""
    return not (manner.compiled or manner.held or manner.device)


def plain(value: Any) -> Any:
    """An answer's fields by their names; any other value as it is."""
    if isinstance(value, types.NoneType | bool | int | float | str | torch.Tensor):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
