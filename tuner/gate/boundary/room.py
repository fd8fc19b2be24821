"""The judge's side of the boundary: a file's process, and its models as parties that the gate can ask."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Self

import torch

from tunebench.tuner.gate.boundary.contents import Contents, OfReference
from tunebench.tuner.gate.boundary.inside import serve
from tunebench.tuner.gate.boundary.inspection import CallInspection
from tunebench.tuner.gate.boundary.lending import Lending
from tunebench.tuner.gate.boundary.supervisor import Supervised
from tunebench.tuner.gate.boundary.wire import WireError, receive, send
from tunebench.tuner.gate.effort import Limit
from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.gate.gradients import Backward, Gradients
from tunebench.tuner.gate.party import ORDINARY, Answer, Manner, Party
from tunebench.tuner.gate.questions import Setting, Settings, is_setting
from tunebench.tuner.gate.sanitizer import Inspection
from tunebench.tuner.gate.sources import Sizes, Source
from tunebench.tuner.gate.stage_log import StageLog, StageRefused
from tunebench.tuner.gate.truth import Truth
from tunebench.tuner.gate.values import Leaf, Values
from tunebench.tuner.isolation import IsolationError
from tunebench.tuner.kernel import Mode
from tunebench.tuner.scratch import scratch_folder
from tunebench.tuner.users_code import ToldError

_SHARE_OF_MEMORY = 4


class RoomError(IsolationError):
    """The file's process is gone, or says what is no answer."""


class ReferenceRoomError(RoomError):
    """That of a reference's file: whatever is on trial has no part in it."""


class Room:
    """A process that runs a file and answers questions about its models; nothing that it says is a verdict.

    Attributes:
        contents: what it runs.
    """

    def __init__(self, contents: Contents) -> None:
        self.prepares = contents.prepares
        self._dropped: list[int] = []
        self._made = 0
        self._most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _SHARE_OF_MEMORY
        self.contents = contents
        self._passage = Lending(contents.device)
        self._process = Supervised(partial(serve, scratch=scratch_folder(), contents=contents))

    def open(self) -> Sizes:
        """Run the files; the reference's sizes.

        Raises:
            ToldError: a file raises.
        """
        sizes: Sizes = self.ask("open")
        return sizes

    def ask(self, method: str, **arguments: Any) -> Any:
        """What the process answers.

        Raises:
            ToldError: the file's code raised.
            RoomError: there is no answer; a `ReferenceRoomError` of a reference's file.
        """
        if self._dropped and method != "drop":
            dropped = list(self._dropped)
            self._dropped.clear()  # one list: every party that is let go of later knows it
            self.ask("drop", numbers=dropped)
        try:
            send(self._process.connection, (method, arguments), self._passage)
            reply = receive(self._process.connection, self._most, self._passage)
        except (EOFError, OSError):
            raise self._no_answer(self._process.how_it_ended()) from None
        except WireError as error:
            raise self._no_answer(str(error)) from error
        if not isinstance(reply, dict) or set(reply) not in ({"value"}, {"error", "type"}):
            raise self._no_answer("an answer that is none")
        if "error" in reply:
            raise ToldError(str(reply["error"]))
        return reply["value"]

    def _no_answer(self, why: str) -> RoomError:
        return ReferenceRoomError(why) if isinstance(self.contents, OfReference) else RoomError(why)

    def party(self, sizes: Sizes, mode: Mode, state: Mapping[str, torch.Tensor] | None) -> RemoteParty:
        """A model, made from one seed, with these weights, in this mode."""
        return self._new_party("make", sizes=dict(sizes), mode=str(mode), state=state)

    def copy(self, number: int) -> RemoteParty:
        """A deep copy of a model."""
        return self._new_party("copy", of=number)

    def _new_party(self, method: str, **arguments: Any) -> RemoteParty:
        self._made += 1
        self.ask(method, number=self._made, **arguments)
        party = RemoteParty(self, self._made)
        weakref.finalize(party, self._dropped.append, self._made).atexit = False
        return party

    def changes(self) -> tuple[list[str], bool]:
        """What the file has changed of its process, a line each, and whether a call draws random numbers."""
        told = self.ask("changes")
        if not (isinstance(told, dict) and isinstance(told.get("changed"), list)):
            raise RoomError("an answer that is none")
        return [str(line) for line in told["changed"]], told.get("draws") is True

    def close(self) -> None:
        """End the process and everything that it has started."""
        self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class RemoteParty:
    """A party in a room; see `Party` for what the methods do. What the file's code raises comes as a `ToldError`."""

    def __init__(self, room: Room, number: int) -> None:
        self.room = room
        self.number = number

    def _ask(self, question: str, **arguments: Any) -> Any:
        return self.room.ask("party", number=self.number, question=question, arguments=arguments)

    def ready(self, inputs: Sequence[Any]) -> str | None:
        if not self.room.prepares:
            return None
        told = self._ask("ready", inputs=tuple(inputs))
        return None if told is None else str(told)

    def call(self, inputs: Sequence[Any], manner: Manner = ORDINARY) -> Answer:
        return self._answer("call", inputs=() if manner.held else tuple(inputs), manner=asdict(manner))

    def _answer(self, question: str, **arguments: Any) -> Answer:
        return self._checked(self._ask(question, **arguments))

    @staticmethod
    def _checked(told: Any) -> Answer:
        try:
            answer = Answer(**{**told, "output": values_told(told["output"])})
        except (TypeError, KeyError) as error:
            raise RoomError("an answer that is none") from error
        named = (answer.buffers, answer.inputs)
        if not (
            all(isinstance(tensors, dict) and are_tensors(tensors.values()) for tensors in named)
            and are_tensors(answer.input_sums)
            and all(isinstance(path, str) for path in answer.aliases)
        ):
            raise RoomError("an answer that is none")
        return answer

    def consult(
        self, inputs: Sequence[Any], seed: int, autocast: torch.dtype | None = None, *, in_full: bool = False
    ) -> Truth:
        told = self._ask("consult", inputs=tuple(inputs), seed=seed, autocast=autocast, in_full=in_full)
        exact = None if told["exact"] is None else values_told(told["exact"])
        rounded = [values_told(one) for one in told["rounded"]]
        return Truth(**{**told, "own": values_told(told["own"]), "exact": exact, "rounded": rounded})

    def call_many(self, turns: Sequence[Sequence[Any]], count: int) -> Sequence[Sequence[Answer]]:
        return self._answers("call_many", turns, count)

    def _answers(self, question: str, turns: Sequence[Sequence[Any]], count: int) -> Sequence[Sequence[Answer]]:
        told = self._ask(question, turns=_tuples(turns), count=count)
        if not (isinstance(told, list) and len(told) == len(turns) and all(isinstance(one, list) for one in told)):
            raise RoomError("an answer that is none")
        return [[self._checked(answer) for answer in of_inputs] for of_inputs in told]

    def hold(self, inputs: Sequence[Any]) -> None:
        self._ask("hold", inputs=tuple(inputs))

    def rewrite(self, inputs: Sequence[Any], *, counted: bool) -> None:
        self._ask("rewrite", inputs=tuple(inputs), counted=counted)

    def exchange(self) -> None:
        self._ask("exchange")

    def kept(self) -> Sequence[Values]:
        return [values_told(output) for output in self._ask("kept")]

    def forget(self) -> None:
        self._ask("forget")

    def keeps_outputs(self) -> bool:
        return self._ask("keeps_outputs") is True

    def state(self) -> Mapping[str, torch.Tensor]:
        named = self._ask("state")
        if not (isinstance(named, dict) and are_tensors(named.values())):
            raise RoomError("an answer that is none")
        return named

    def set_buffers(self, buffers: Mapping[str, torch.Tensor]) -> None:
        self._ask("set_buffers", buffers=dict(buffers))

    def remember(self) -> None:
        self._ask("remember")

    def guard(self) -> None:
        self._ask("guard")

    def reset(self, byte: int) -> None:
        self._ask("reset", byte=byte)

    def changed_parameters(self) -> Sequence[str]:
        changed = self._ask("changed_parameters")
        return [str(name) for name in changed] if isinstance(changed, list) else ["of an answer that is none"]

    def change(self, name: str) -> None:
        self._ask("change", name=name)

    def put(self, mode: Mode) -> None:
        self._ask("put", mode=str(mode))

    def to(self, place: torch.dtype | str) -> None:
        self._ask("to", place=place)

    def has(self, what: str) -> bool:
        return self._ask("has", what=what) is True

    def returns_itself(self) -> bool:
        return self._ask("returns_itself") is True

    def parameter_elements(self) -> int:
        return int(self._ask("parameter_elements"))

    def gradients(self, inputs: Sequence[Any], how: Backward, *, exact: bool = False) -> Gradients:
        told = self._ask("gradients", inputs=tuple(inputs), how=_plain(how), exact=exact)
        try:
            answer = Gradients(**told)
        except TypeError as error:
            raise RoomError("an answer that is none") from error
        named = (answer.found, answer.buffers)
        if not (
            all(isinstance(tensors, dict) and are_tensors(tensors.values()) for tensors in named)
            and are_tensors([answer.random_state])
        ):
            raise RoomError("an answer that is none")
        return answer

    def after_wait(self, first: Sequence[Any], second: Sequence[Any], seed: int, *, own_stream: bool) -> Answer:
        return self._answer("after_wait", first=tuple(first), second=tuple(second), seed=seed, own_stream=own_stream)

    def replayed(self, inputs: Sequence[Any], others: Sequence[Any]) -> Answer:
        return self._answer("replayed", inputs=tuple(inputs), others=tuple(others))

    def capturable(self, inputs: Sequence[Any]) -> bool:
        return self._ask("capturable", inputs=tuple(inputs)) is True

    def changed_results(self, turns: Sequence[Sequence[Any]], count: int) -> int:
        return _whole(self._ask("changed_results", turns=_tuples(turns), count=count))

    def at_once(self, turns: Sequence[Sequence[Any]], count: int) -> Sequence[Sequence[Answer]]:
        return self._answers("at_once", turns, count)

    def left_behind(self, turns: Sequence[Sequence[Any]], count: int) -> int | None:
        told = self._ask("left_behind", turns=_tuples(turns), count=count)
        return None if told is None else _whole(told)

    def copied(self) -> RemoteParty:
        return self.room.copy(self.number)

    def settings(self) -> Settings:
        told = self._ask("settings")
        if not (isinstance(told, dict) and all(map(is_setting, told.values()))):
            raise RoomError("an answer that is none")
        return told

    def set(self, name: str, value: Setting) -> None:
        self._ask("set", name=name, value=value)

    def could_hold(self, name: str, value: Setting) -> bool:
        return self._ask("could_hold", name=name, value=value) is True

    def input_names(self, count: int) -> Sequence[str]:
        told = self._ask("input_names", count=count)
        return _names(told)

    def options(self, count: int) -> Sequence[str]:
        return _names(self._ask("options", count=count))


def _names(told: Any) -> tuple[str, ...]:
    return tuple(map(str, told)) if isinstance(told, list) else ()


def _whole(told: Any) -> int:
    if type(told) is not int:
        raise RoomError("an answer that is none")
    return told


def _plain(how: Backward) -> Mapping[str, Any]:
    return {name: str(value) if isinstance(value, StrEnum) else value for name, value in asdict(how).items()}


def _tuples(turns: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    return [tuple(turn) for turn in turns]


def values_told(told: Any) -> Values:
    """A tree of values as the other side has taken it apart.

    Raises:
        RoomError: it is none.
    """
    if isinstance(told, dict) and told.keys() == {"kinds", "leaves"}:
        kinds, leaves = told["kinds"], told["leaves"]
        if isinstance(kinds, dict) and isinstance(leaves, dict):
            plain = all(isinstance(leaf, Leaf) for leaf in leaves.values())
            if plain and all(isinstance(kind, str) for kind in kinds.values()):
                return Values(kinds, leaves)
    raise RoomError("an answer that is none")


def are_tensors(values: Any) -> bool:
    return all(isinstance(value, torch.Tensor) for value in values)


class RemoteSource:
    """A reference's file in a room, at some sizes; see `Source`."""

    is_remote: ClassVar = True

    def __init__(self, room: Room, sizes: Sizes) -> None:
        self._room = room
        self._sizes = sizes

    @property
    def sizes(self) -> Sizes:
        return self._sizes

    def resized(self, sizes: Sizes) -> RemoteSource:
        return RemoteSource(self._room, self._room.ask("resize", sizes={**self._sizes, **sizes}))

    def inputs(self, seed: int) -> tuple[Any, ...]:
        inputs: tuple[Any, ...] = self._room.ask("inputs", sizes=dict(self._sizes), seed=seed)
        return inputs

    def party(self, mode: Mode, state: Mapping[str, torch.Tensor] | None = None) -> Party:
        return self._room.party(self._sizes, mode, state)

    def bounds(self, mode: Mode) -> Mapping[str, float]:
        """The errors that pass at these sizes, by the path of each part; nothing else leaves the process."""
        bounds: Mapping[str, float] = self._room.ask("bounds", sizes=dict(self._sizes), mode=str(mode))
        return bounds

    def changes(self) -> tuple[list[str], bool]:
        """See `Room.changes`."""
        return self._room.changes()

    def elements(self, changes: Sizes) -> tuple[int, int]:
        elements: tuple[int, int] = self._room.ask("elements", sizes=dict(self._sizes), changes=dict(changes))
        return elements

    def effort(self, changes: Sizes, limit: Limit) -> int | None:
        told: int | None = self._room.ask("effort", sizes=dict(self._sizes), changes=dict(changes), limit=asdict(limit))
        return told


class RemoteContender:
    """A file's `ModelNew`, in a room of its own; see `Contender`."""

    def __init__(self, room: Room, exemptions: Exemptions | None = None) -> None:
        self.exemptions = exemptions or Exemptions()
        self._room = room

    def party(self, source: Source, mode: Mode, state: Mapping[str, torch.Tensor] | None) -> Party:
        return self._room.party(source.sizes, mode, state)

    @staticmethod
    def choosing(_source: Source, _mode: Mode, _state: Mapping[str, torch.Tensor]) -> Mapping[str, Party]:
        """None: nobody knows what a file may choose from."""
        return {}

    def changes(self) -> tuple[list[str], bool]:
        """See `Room.changes`."""
        return self._room.changes()

    @contextlib.contextmanager
    def renewed(self, log: StageLog) -> Iterator[RemoteContender]:
        """The same in a new process.

        Raises:
            StageRefused: it does not begin; the log has it.
        """
        with Room(self._room.contents) as room:
            with log.stage("import"):
                try:
                    room.open()
                except (ToldError, RoomError) as error:
                    raise StageRefused(str(error)) from error
            yield RemoteContender(room, self.exemptions)

    def inspection(self, party: Party, source: Source, mode: Mode) -> Inspection:  # noqa: ARG002 - another process
        """A call in a new process, see `CallInspection`."""
        return CallInspection(self._room.contents, dict(source.sizes), mode)
