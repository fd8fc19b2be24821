"""The judge's side of batches of calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tunebench.tuner.gate.boundary.room import RemoteParty, RoomError, are_tensors, values_told
from tunebench.tuner.gate.boundary.turns import Told
from tunebench.tuner.gate.values import Values


class RemoteTurns:
    """A party's batches of calls in a room; see `Turns` for what the methods do. Those that it had before are gone."""

    def __init__(self, party: RemoteParty, bases: Sequence[Sequence[Any]], count: int) -> None:
        self._party = party
        party.room.ask("begin_turns", number=party.number, bases=[tuple(base) for base in bases], count=count)

    def _ask(self, question: str, **arguments: Any) -> Any:
        return self._party.room.ask("turns", number=self._party.number, question=question, arguments=arguments)

    def write(self, values: Sequence[tuple[int, float]]) -> None:
        self._ask("write", values=list(values))

    def run(self, looked_at: Sequence[int], places: Sequence[float]) -> Told:
        return self._told("run", looked_at, places)

    def empty(self, looked_at: Sequence[int], places: Sequence[float]) -> Told:
        return self._told("empty", looked_at, places)

    def _told(self, question: str, looked_at: Sequence[int], places: Sequence[float]) -> Told:
        told = self._ask(question, looked_at=list(looked_at), places=list(places))
        try:
            answer = Told(float(told["own_ms"]), told["seen"])
        except (TypeError, KeyError, ValueError) as error:
            raise RoomError("an answer that is none") from error
        if not (
            isinstance(answer.seen, list)
            and len(answer.seen) == len(looked_at)
            and all(isinstance(one, dict) and are_tensors(one.values()) for one in answer.seen)
        ):
            raise RoomError("an answer that is none")
        return answer

    def output(self, number: int) -> Values:
        return values_told(self._ask("output", number=number))
