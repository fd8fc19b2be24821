"""The judge's side of the boundary: a file's process, and proxies of the models that it holds."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self, TypeVar

import torch

from tunebench.tuner.device import host_memory_bytes
from tunebench.tuner.errors import KernelFolderError
from tunebench.tuner.gate.boundary.batched_calls import BatchedCalls
from tunebench.tuner.gate.boundary.box import Box, BoxError, Walls, room_for, told, walls_for
from tunebench.tuner.gate.boundary.host import Host, ProcessChanges, serve
from tunebench.tuner.gate.boundary.inspection import Inspect, inspect_call
from tunebench.tuner.gate.boundary.lending import Lending
from tunebench.tuner.gate.boundary.plain import MalformedError, declared_types, put_together, taken_apart
from tunebench.tuner.gate.boundary.spec import Files, SandboxSpec
from tunebench.tuner.gate.boundary.supervisor import Supervised
from tunebench.tuner.gate.boundary.wire import WireError, receive, send
from tunebench.tuner.gate.contender import Contender
from tunebench.tuner.gate.exemptions import Exemptions
from tunebench.tuner.gate.faults import ReferenceRaisedError
from tunebench.tuner.gate.model import ORDINARY, Answer, CallOptions, Model
from tunebench.tuner.gate.sanitizer import Inspection
from tunebench.tuner.gate.sources import Sizes, Source
from tunebench.tuner.gate.stage_log import StageLog, StageRefused
from tunebench.tuner.isolation import IsolationError
from tunebench.tuner.kernel import Mode
from tunebench.tuner.problem import Accuracy
from tunebench.tuner.scratch import scratch, scratch_folder
from tunebench.tuner.users_code import ReportedError

Proxy = TypeVar("Proxy")
RunsReference = TypeVar("RunsReference", bound="Sandbox")

_SHARE_OF_MEMORY = 4
_MOST_REASON = 1 << 12
_LENT_BYTES = 1 << 23
"""More than goes through the connection: it has to cross in lent memory."""


class SandboxError(IsolationError):
    """The file's process is gone, or its reply is malformed."""


class ReferenceSandboxError(SandboxError):
    """The error of a reference's file: whatever is on trial has no part in it."""


class Sandbox(contextlib.AbstractContextManager["Sandbox"]):
    """A process that runs a file and holds its models; nothing that it reports is a verdict.

    Attributes:
        spec: what it runs.
    """

    def __init__(self, spec: SandboxSpec) -> None:
        self.spec = spec
        self._dropped: list[int] = []
        self._made = 0
        self._most = host_memory_bytes() // _SHARE_OF_MEMORY
        self._folder = contextlib.ExitStack()
        self._starting = threading.Lock()
        self._ends = False
        self._start()

    def _start(self) -> None:
        spec = self.spec
        self._passage = Lending(spec.device)
        self._is_entered = spec.walls is None
        scratch_of_file, room = scratch_folder(), None
        if spec.walls is not None:
            folder, on_gpu = self._folder.enter_context(scratch()), spec.device.type == "cuda"
            room = room_for(spec.walls, folder, [spec.path], is_on_gpu=on_gpu)
            scratch_of_file = room.folder
        self._process = Supervised(functools.partial(serve, scratch=scratch_of_file, spec=spec), room)

    def enter(self) -> None:
        """Wait until the box is closed behind the process, which has run nothing of a file's by then.

        Raises:
            BoxError: the kernel does not allow it, or a GPU cannot be used in it.
        """
        if self._is_entered:
            return
        try:
            refused = self._process.connection.recv_bytes(_MOST_REASON).decode(errors="replace")
        except (EOFError, OSError):
            refused = self._process.how_it_ended()
        if refused:
            raise BoxError(refused)
        self._is_entered = True
        if self.spec.device.type == "cuda":
            lent = torch.zeros(_LENT_BYTES, dtype=torch.uint8, device=self.spec.device)
            try:
                self.ask(Host.returned, tensor=lent)
            except (ReportedError, SandboxError) as error:
                raise BoxError(f"the GPU cannot be used in it: {error}") from error

    def open(self) -> Sizes:
        """Run the files; return the reference's sizes.

        Raises:
            BoxError: see `enter`.
            ReportedError: a file raises.
        """
        self.enter()
        sizes: Sizes = self.ask(Host.open)
        return sizes

    def ask(self, method: Callable[..., Any], key: object = None, **arguments: Any) -> Any:
        """Return what a method of the `Host`, or of what it holds under this key, answers there.

        Raises:
            ReportedError: the file's code raised.
            SandboxError: there is no answer; a `ReferenceSandboxError` of a reference's file.
        """
        if self._dropped and method is not Host.drop:
            dropped = list(self._dropped)
            self._dropped.clear()  # one list: every model that is let go of later knows it
            self.ask(Host.drop, numbers=dropped)
        try:
            reply = self.reply(method, key, taken_apart(arguments))
        except (EOFError, OSError):
            raise self._no_answer(self._process.how_it_ended()) from None
        except WireError as error:
            raise self._no_answer(str(error)) from error
        if not isinstance(reply, dict) or set(reply) not in ({"value"}, {"error"}):
            raise self._no_answer("a malformed reply")
        if "error" in reply:
            raise (ReferenceRaisedError if self.spec.is_reference else ReportedError)(str(reply["error"]))
        try:
            return put_together(declared_types(method)["return"], reply["value"])
        except MalformedError as error:
            raise self._no_answer(f"a malformed reply: {error}") from error

    def reply(self, method: Callable[..., Any], key: object, arguments: Mapping[str, Any]) -> Any:
        """Return the process's reply in plain values.

        Raises:
            EOFError, OSError: it is gone.
            WireError: a value cannot cross, or the reply is none.
        """
        kind, _, name = method.__qualname__.rpartition(".")
        send(self._process.connection, (kind, key, name, arguments), self._passage)
        return receive(self._process.connection, self._most, self._passage)

    def _no_answer(self, why: str) -> SandboxError:
        return ReferenceSandboxError(why) if self.spec.is_reference else SandboxError(why)

    def model(self, sizes: Sizes, mode: Mode, state: Mapping[str, torch.Tensor] | None) -> RemoteModel:
        """Make a model from one seed, with these weights, in this mode."""
        return self.new_model(Host.make, sizes=sizes, mode=mode, state=state)

    def new_model(self, method: Callable[..., None], **arguments: Any) -> RemoteModel:
        """Have the host make a model under a new number."""
        self._made += 1
        self.ask(method, number=self._made, **arguments)
        model = RemoteModel(self, self._made)
        weakref.finalize(model, self._dropped.append, self._made).atexit = False
        return model

    def revive(self) -> None:
        """Run the files in a new process, boxed alike, in place of one that is gone with its models.

        Raises:
            SandboxError: they do not run again, or it has been killed.
        """
        with self._starting:
            if self._ends:
                raise self._no_answer("it has been killed")
            self.close()
            self._start()
        try:
            self.open()
        except ReportedError as error:
            raise self._no_answer(f"it does not run again: {error}") from error

    def changes(self) -> ProcessChanges:
        """Return what the file has changed of its process, and whether a call draws random numbers."""
        changes: ProcessChanges = self.ask(Host.changes)
        return changes

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Have everything in a box with namespaces stand still while the block runs: it slows nobody else down."""
        if self.spec.walls is not Walls.NAMESPACES:
            yield
            return
        self._process.stop()
        try:
            yield
        finally:
            self._process.go_on()

    def kill(self) -> None:
        """Kill the process for good while another thread revives it, or waits for its answer: there is none then."""
        with self._starting:
            self._ends = True
            self._process.hang_up()

    def close(self) -> None:
        """End the process and everything that it has started, with its temporary files."""
        self._process.close()
        self._folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def boxed(files: Files, box: Box, start: Callable[[SandboxSpec], RunsReference]) -> tuple[Files, RunsReference, str]:
    """Start the reference in the best box that the machine allows.

    Returns:
        The files with the walls that hold for both of them, the reference's sandbox, and what is said of the box.

    Raises:
        KernelFolderError: a box is required, and the machine allows none.
    """
    refused: dict[Walls, str] = {}
    for walls in walls_for(box):
        files = replace(files, walls=walls)
        sandbox = start(files.original)
        try:
            sandbox.enter()
        except BoxError as error:
            sandbox.close()
            assert walls is not None
            refused[walls] = str(error)
        except BaseException:
            sandbox.close()
            raise
        else:
            return files, sandbox, told(box, walls, refused)
    raise KernelFolderError(f"this machine allows no box ({told(box, None, refused)}); --box auto judges without one")


def _asked_there(proxy: type[Proxy]) -> type[Proxy]:
    """Give a proxy every public method of its base that it does not define: each asks the sandbox."""
    for name, method in vars(proxy.__mro__[1]).items():
        if isinstance(method, types.FunctionType) and not name.startswith("_") and name not in vars(proxy):
            setattr(proxy, name, _asking(method))
    return proxy


def _asking(method: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(method)

    @functools.wraps(method)
    def ask(self: Any, *given: Any, **named: Any) -> Any:
        _, *arguments = signature.bind(self, *given, **named).arguments.items()
        return self.sandbox.ask(method, self.key, **dict(arguments))

    return ask


@_asked_there
class RemoteModel(Model):
    """A model in a sandbox, by its number there. What the file's code raises comes as a `ReportedError`."""

    def __init__(self, sandbox: Sandbox, key: int) -> None:
        self.sandbox = sandbox
        self.key = key

    def ready(self, inputs: Sequence[Any]) -> str | None:
        if not self.sandbox.spec.prepares:
            return None
        reason: str | None = self.sandbox.ask(Model.ready, self.key, inputs=inputs)
        return reason

    def call(self, inputs: Sequence[Any], options: CallOptions = ORDINARY) -> Answer:
        given = () if options.held else inputs
        answer: Answer = self.sandbox.ask(Model.call, self.key, inputs=given, options=options)
        return answer

    def copied(self, *, pickled: bool = False) -> RemoteModel:
        return self.sandbox.new_model(Host.copy, of=self.key, pickled=pickled)


@_asked_there
class RemoteCalls(BatchedCalls):
    """A model's batches of calls in a sandbox. Those that it had before are gone."""

    def __init__(self, model: RemoteModel, bases: Sequence[Sequence[Any]], count: int) -> None:
        self.sandbox, self.key = model.sandbox, model.key
        self.sandbox.ask(Host.begin_calls, number=self.key, bases=bases, count=count)


@_asked_there
class RemoteSource(Source):
    """A reference's file in a sandbox, at some sizes."""

    is_remote: ClassVar = True

    def __init__(self, sandbox: Sandbox, sizes: Sizes) -> None:
        self.sandbox = sandbox
        self.key = dict(sizes)
        self.device = sandbox.spec.device

    @property
    def sizes(self) -> Sizes:
        return self.key

    def resized(self, sizes: Sizes) -> RemoteSource:
        return RemoteSource(self.sandbox, self.sandbox.ask(Host.resize, sizes={**self.key, **sizes}))

    def model(self, mode: Mode, state: Mapping[str, torch.Tensor] | None = None) -> RemoteModel:
        return self.sandbox.model(self.key, mode, state)

    def revive(self) -> bool:
        self.sandbox.revive()
        return True

    def bounds(self, mode: Mode, accuracy: Accuracy) -> Mapping[str, float]:
        """Return the errors that pass at these sizes, by the path of each part; nothing else leaves the process."""
        bounds: Mapping[str, float] = self.sandbox.ask(Host.bounds, sizes=self.key, mode=mode, accuracy=accuracy)
        return bounds


class RemoteContender(Contender):
    """Makes a file's `ModelNew`, in a sandbox of its own.

    Args:
        inspect: has processes that have begun under compute-sanitizer make the call that is inspected.
    """

    def __init__(self, sandbox: Sandbox, exemptions: Exemptions | None = None, inspect: Inspect | None = None) -> None:
        self.exemptions = exemptions or Exemptions()
        self.sandbox = sandbox
        self._inspect = inspect or functools.partial(inspect_call, sandbox.spec)

    def model(self, source: Source, mode: Mode, state: Mapping[str, torch.Tensor] | None) -> RemoteModel:
        return self.sandbox.model(source.sizes, mode, state)

    def open(self, log: StageLog, refused: tuple[type[Exception], ...] = (ReportedError,)) -> None:
        """Run the file, in a stage `import`.

        Args:
            refused: errors that are its refusal.

        Raises:
            StageRefused: it does not run; the log has it.
        """
        with log.stage("import"):
            try:
                self.sandbox.open()
            except refused as error:
                raise StageRefused(str(error)) from error

    @contextlib.contextmanager
    def renewed(self, log: StageLog) -> Iterator[RemoteContender]:
        """Have the same in a new process; see `open`."""
        with Sandbox(self.sandbox.spec) as sandbox:
            contender = RemoteContender(sandbox, self.exemptions)
            contender.open(log, (ReportedError, SandboxError))
            yield contender

    def inspection(self, model: Model, source: Source, mode: Mode) -> Inspection:  # noqa: ARG002 - another process
        """A call in a new process, see `inspect_call`."""
        return functools.partial(self._inspect, dict(source.sizes), mode)
