"""A reference's sandbox whose answers serve all candidates of a problem, each as if it were the only one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tunebench.tuner.device import host_memory_bytes
from tunebench.tuner.gate.boundary.host import Host
from tunebench.tuner.gate.boundary.sandbox import Sandbox
from tunebench.tuner.gate.boundary.spec import SandboxSpec
from tunebench.tuner.gate.boundary.wire import Kept, digest

_MOST_BYTES = 1 << 26
"""Bytes of the tensors of one request, or of one reply; what has more is asked again."""
_MOST_KEPT_BYTES, _SHARE_OF_MEMORY = 1 << 30, 64

_Request = tuple[Callable[..., Any], object, Mapping[str, Any]]
"""A method, the key of what has it, and its arguments taken apart."""


@dataclass
class _Past:
    """The requests that a model has answered.

    Attributes:
        name: tells them from all others; None where that is not known.
        spared: those that its process has not been asked: others before had the same answers.
    """

    name: bytes | None = b""
    spared: list[_Request] = field(default_factory=list)

    @property
    def is_made(self) -> bool:
        """Whether the process has such a model."""
        return not (self.spared and self.spared[0][0] is Host.make)


class Remembering(Sandbox):
    """A reference that is asked once what judges of several candidates ask.

    A request is answered from memory where an earlier check has put the same one, to a model that had answered the same
    requests before, as often as this check has: two models that are made alike, and asked alike within one check, are
    really asked, so that a reference which does not repeat itself is found out. A model is made, and put through what
    it was spared, when it is asked something new.
    """

    def __init__(self, spec: SandboxSpec) -> None:
        self._known: dict[tuple[bytes, int], Kept] = {}
        self._room = min(_MOST_KEPT_BYTES, host_memory_bytes() // _SHARE_OF_MEMORY)
        self._asked: Counter[bytes] = Counter()
        super().__init__(spec)

    def _start(self) -> None:
        super()._start()
        self._opened: Any = None
        self._pasts: dict[int, _Past] = {}

    def begin(self) -> None:
        """Begin the check of another candidate."""
        self._asked.clear()

    def reply(self, method: Callable[..., Any], key: object, arguments: Mapping[str, Any]) -> Any:
        request, kind = (method, key, arguments), method.__qualname__.partition(".")[0]
        if method is Host.open:
            self._opened = self._opened or super().reply(*request)
            return self._opened
        if method is Host.drop:
            pasts = {number: self._pasts.pop(number, None) for number in arguments["numbers"]}
            made = [number for number, past in pasts.items() if past is None or past.is_made]
            return super().reply(method, key, {"numbers": made}) if made else {"value": None}
        if kind == "Model" and key in self._pasts:
            assert isinstance(key, int)
            return self._answer(self._pasts[key], request)
        if method is Host.make:
            past = self._pasts[arguments["number"]] = _Past()
            return self._answer(past, request)
        if kind == "Source" or method in (Host.resize, Host.changes):
            return self._answer(_Past(), request)
        for name in {"of", "number"} & arguments.keys():  # of a copy, of batches of calls
            if arguments[name] in self._pasts:
                self._catch_up(self._pasts[arguments[name]])
        return super().reply(*request)

    def _answer(self, past: _Past, request: _Request) -> Any:
        """Return the reply to a request, from memory if it is there."""
        past.name = self._name(past, request)
        if past.name is None:
            self._catch_up(past)
            return super().reply(*request)
        self._asked[past.name] += 1
        place = past.name, self._asked[past.name]
        if (known := self._known.get(place)) is not None:
            past.spared.append(request)
            return known.value()
        self._catch_up(past)
        reply = super().reply(*request)
        if (kept := Kept.of(reply, min(_MOST_BYTES, self._room))) is not None:
            self._room -= kept.nbytes
            self._known[place] = kept
        return reply

    def _name(self, past: _Past, request: _Request) -> bytes | None:
        method, key, arguments = request
        if past.name is None:
            return None
        plain = {name: value for name, value in arguments.items() if name != "number"}
        return digest((past.name.hex(), method.__qualname__, None if past.name else key, plain), _MOST_BYTES)

    def _catch_up(self, past: _Past) -> None:
        """Put the model through what it was spared."""
        spared, past.spared = past.spared, []
        for request in spared:
            super().reply(*request)
