"""Judges a file for somebody who asks from elsewhere: plain values in, a signed verdict out.

Each request is a `tunebench check` of its own, in a process and a folder that end with it; what it times, a
`tunebench compare` while nothing else runs.
"""

from __future__ import annotations

import hashlib
import platform
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, cast

from tunebench import __version__
from tunebench.studies.checking.request import CheckRequest
from tunebench.studies.request.options import given, make, options_of
from tunebench.studies.request.serving import ServeRequest
from tunebench.studies.serving.commands import run_in
from tunebench.studies.serving.signing import Key
from tunebench.tuner.errors import TunebenchError, UserError
from tunebench.tuner.scratch import scratch

FILE, REFERENCE, TIMING, MODE = "file", "reference", "timing", "mode"

_OPTIONS = tuple(
    name
    for name in ("sizes", "dtype", "accuracy", "settings", "device", "seed", "seconds", "require", "declared")
    if name in options_of(CheckRequest)
)
"""The options of `check` that are a client's to choose."""

_MEMBERS = (FILE, REFERENCE, MODE, TIMING, *_OPTIONS)
_NAMES = {FILE: "submission.py", REFERENCE: "reference.py"}
_SIDES = {"first": FILE, "second": REFERENCE}
_OF_COMPARE = ("sizes", "dtype", "settings", "device", "declared")
_NOT_TOLD = ("target", "configuration")
"""Members of a report that say something of this machine's folders, or of kernels alone."""

_GRACE_SECONDS = 60.0
"""For starting a command, and for ending one that has been told how long it may take."""
_COMPARE_SECONDS = 900.0
_WAITING_FOR_EACH = 8
"""Requests that wait, for each that runs."""


class BusyError(TunebenchError):
    """Too many requests wait already."""


@dataclass(frozen=True)
class Question:
    """A request: texts and options, all of them legal.

    Attributes:
        options: of `check`, plain values.
        timing: whether a file that is right is timed against the reference too.
    """

    file: str
    reference: str
    options: Mapping[str, Any]
    timing: bool

    @classmethod
    def read(cls, content: object) -> Question:
        """Read a request's JSON.

        Raises:
            UserError: one line on what is not legal.
        """
        if not isinstance(content, dict):
            raise UserError(f"a request is a JSON object with {FILE} and {REFERENCE}")
        for name in content:
            if name not in _MEMBERS:
                raise UserError(f"'{name:.80}' is no member of a request: choose from {', '.join(_MEMBERS)}")
        said = {name: value for name, value in content.items() if value is not None}
        file, reference = (_text(said.pop(name, None), name) for name in (FILE, REFERENCE))
        timing = said.pop(TIMING, False)
        if not isinstance(timing, bool):
            raise UserError(f"'{TIMING}' is {timing!r:.80}: give true or false")
        if (mode := said.pop(MODE, None)) is not None:
            if mode not in ("train", "eval"):
                raise UserError(f"'{MODE}' is {mode!r:.80}: give train or eval")
            said["modes"] = [mode]
        make(CheckRequest, {**given(CheckRequest, said), "target": _NAMES[FILE]}, "request")
        return cls(file, reference, said, timing)


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"'{name}' is missing: give a Python file's text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"'{name}' is no text: it has half of a surrogate pair") from error
    return value


class Judge:
    """Judges so many files at a time.

    Args:
        key: signs the verdicts.
        request: what the operator has chosen for every check.
    """

    def __init__(self, key: Key, request: ServeRequest) -> None:
        self.key = key
        self.jobs = request.jobs
        self._request = request
        self._slots = _Slots(request.jobs)

    @property
    def waiting(self) -> int:
        """The number of requests that wait or run."""
        return self._slots.asked

    def verdict(self, question: Question) -> dict[str, Any]:
        """Return the signed verdict on a file.

        Raises:
            UserError: the file or its reference cannot be judged, in one line.
            BusyError: too many wait.
            TunebenchError: there is no verdict, in one line.
        """
        with self._slots.place():
            with self._slots.taken(1):
                report = self._report(question)
            timing = None
            if question.timing and report["passed"]:
                with self._slots.taken(self.jobs):
                    timing = self._timing(question, report["mode"])
        return self.key.signed(_content(question, report, timing))

    def _report(self, question: Question) -> dict[str, Any]:
        seconds = min(question.options.get("seconds", self._request.seconds), self._request.seconds)
        operators = {REFERENCE: _NAMES[REFERENCE], "seconds": seconds, "box": self._request.box}
        arguments = {"targets": [_NAMES[FILE]], "given": {**question.options, **operators}}
        (report,) = cast(list[dict[str, Any]], _run(question, seconds + _GRACE_SECONDS, "check", arguments))
        return report

    def _timing(self, question: Question, mode: str) -> dict[str, Any]:
        options = {name: question.options[name] for name in _OF_COMPARE if name in question.options}
        options |= {MODE: mode, "box": self._request.box}
        arguments = {"first": _NAMES[FILE], "second": _NAMES[REFERENCE], "given": options}
        compared = cast(dict[str, Any], _run(question, _COMPARE_SECONDS, "compare", arguments))
        medians = {_SIDES.get(name, name): median for name, median in compared["medians_ms"].items()}
        return {
            **{name: compared[name] for name in ("decision", "ratio", "control", "refusal")},
            "medians_ms": medians,
        }


def _run(question: Question, seconds: float, command: str, arguments: Mapping[str, Any]) -> object:
    """Run a command in a new folder with the two texts, so that it is about these, whatever ran before."""
    with scratch() as folder:
        for name, text in ((FILE, question.file), (REFERENCE, question.reference)):
            (folder / _NAMES[name]).write_text(text, encoding="utf-8")
        return run_in(folder, seconds, command, arguments)


def _content(question: Question, report: Mapping[str, Any], timing: Mapping[str, Any] | None) -> dict[str, Any]:
    holds = "drop-in" if report["drop_in"] else "problem" if report["right_for_problem"] else "refused"
    texts = {FILE: question.file, REFERENCE: question.reference}
    return {
        "verdict": holds,
        **{name: value for name, value in report.items() if name not in _NOT_TOLD},
        "asked": dict(question.options),
        "sha256": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()},
        "versions": {"tunebench": __version__, "torch": version("torch"), "python": platform.python_version()},
        "judged_at": datetime.now(UTC).isoformat(timespec="seconds"),
        TIMING: timing,
    }


class _Slots:
    """Places of those that wait or run, and the slots in which so many run."""

    def __init__(self, number: int) -> None:
        self._most = number * (1 + _WAITING_FOR_EACH)
        self._free = threading.Semaphore(number)
        self._entrance = threading.Lock()
        self._counting = threading.Lock()
        self.asked = 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """Be one of those that wait or run while the block runs.

        Raises:
            BusyError: there are too many.
        """
        with self._counting:
            if self.asked >= self._most:
                raise BusyError(f"{self.asked} requests are being judged or wait: try again later")
            self.asked += 1
        try:
            yield
        finally:
            with self._counting:
                self.asked -= 1

    @contextmanager
    def taken(self, number: int) -> Iterator[None]:
        """Hold so many slots while the block runs."""
        with self._entrance:  # who waits for several is not overtaken by those who need one
            for _ in range(number):
                self._free.acquire()
        try:
            yield
        finally:
            self._free.release(number)


class TokenBuckets:
    """Lets each client make a number of requests a minute, and as many at once after a quiet minute.

    Args:
        clock: seconds, which never go back.
    """

    _MOST_CLIENTS = 10_000

    def __init__(self, a_minute: float, clock: Any = time.monotonic) -> None:
        self._size = max(1.0, a_minute)
        self._a_second = a_minute / 60
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def seconds_until(self, client: str) -> float:
        """Take a token, and return 0; where there is none, the seconds until there is one."""
        with self._lock:
            now = self._clock()
            tokens, then = self._buckets.pop(client, (self._size, now))
            tokens = min(self._size, tokens + (now - then) * self._a_second)
            wait = 0.0 if tokens >= 1 else (1 - tokens) / self._a_second
            # The client that was quiet for longest is forgotten: its bucket is the fullest.
            while len(self._buckets) >= self._MOST_CLIENTS:
                del self._buckets[next(iter(self._buckets))]
            self._buckets[client] = (tokens - (not wait), now)
            return wait
