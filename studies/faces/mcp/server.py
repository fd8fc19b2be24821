"""The server of the Model Context Protocol: each tool is a command, whose `--json` is what the tool answers."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp.types import CallToolResult, InputRequiredResult, JSONRPCError, TextContent, ToolAnnotations
from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo

from tunebench import __version__
from tunebench.kernels.runtime.registry import kernel_names
from tunebench.studies.checking.request import CheckRequest
from tunebench.studies.faces.mcp import answers
from tunebench.studies.faces.mcp.commands import Commands, Say
from tunebench.studies.faces.mcp.lines import messages
from tunebench.studies.request.measure import CompareRequest
from tunebench.studies.request.options import help_of, options_of
from tunebench.studies.request.results import BestRequest, TrialsRequest
from tunebench.studies.tuning.study_file import StudyRequest
from tunebench.tuner.empty import require_said
from tunebench.tuner.errors import TunebenchError, UserError

_INSTRUCTIONS = """\
tunebench compiles CUDA kernels in many configurations, proves each against a PyTorch reference and times it.
Begin with `kernels` and `space`. `tune` runs a study within a budget and records every trial; `best` and `trials` read
them, and `explain` says everything about one, such as why it was refused. `check` is the correctness gate alone, also
for any .py file with Model and ModelNew; `evaluate` checks and times one configuration. Paths lie in the working
folder.
"""

_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)

Target = Annotated[
    str, Field(description="A shipped kernel's name, or the path of a kernel folder in the working folder.")
]
Configuration = Annotated[
    Mapping[str, answers.Value], Field(description="Values of tunables; others as in the default.")
]

Tool = Callable[..., Awaitable[CallToolResult]]


def offering(model: type[Any], *only: str, without: Sequence[str] = ()) -> Callable[[Tool], Tool]:
    """Give a tool whose last parameter is `**options` the options of a declaration; null is one that is not given."""

    def with_options(tool: Tool) -> Tool:
        signature = inspect.signature(tool, eval_str=True)
        *own, _ = signature.parameters.values()
        names = {one.name for one in own}
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_argument(field))
            for name, field in options_of(model, only).items()
            if name not in names and name not in without
        ]
        vars(tool)["__signature__"] = signature.replace(parameters=[*own, *more])
        return tool

    return with_options


def _argument(field: FieldInfo) -> Any:
    described = Field(description=help_of(field).replace("; repeatable", ""))
    return Annotated[(field.annotation | None, *field.metadata, described)]  # type: ignore[operator]


class Tools:
    """The tools; their docstrings are what a client shows.

    Args:
        folder: the working folder.
    """

    def __init__(self, folder: Path) -> None:
        self._commands = Commands(folder)

    async def kernels(self) -> Annotated[CallToolResult, answers.Kernels]:
        """List the kernels: those that ship with tunebench, and those in the working folder."""
        return _result(await self._commands.ask("kernels", folder="."))

    @offering(StudyRequest, "modes", "sizes", "dtype", "device", "settings")
    async def space(self, kernel: Target, **options: Any) -> Annotated[CallToolResult, answers.Spaces]:
        """Describe what a study of a kernel would search: its tunables with their values, and how many are valid."""
        return _result(await self._commands.ask("space", target=self._kernel(kernel), given=options))

    @offering(CheckRequest, without=("problems", "jobs", "declared"))
    async def check(
        self,
        context: Context[Any, Any],
        target: Annotated[str, Field(description="As `kernel`, or a .py file with ModelNew.")],
        reference: Annotated[str | None, Field(description="The file with Model, where target has none.")] = None,
        **options: Any,
    ) -> Annotated[CallToolResult, answers.Checks]:
        """Is it right? The whole correctness gate on a kernel's configuration, or on any file's ModelNew."""
        options["reference"] = None if reference is None else str(self._inside(reference))
        asked = {"targets": [self._kernel(target)], "given": options}
        return _result(await self._commands.work(_say(context), "check", **asked))

    @offering(CompareRequest, without=("declared",))
    async def evaluate(
        self,
        context: Context[Any, Any],
        kernel: Target,
        configuration: Configuration,
        against: Literal["default", "reference"] = "default",
        **options: Any,
    ) -> Annotated[CallToolResult, answers.Evaluation]:
        """Check one configuration of a kernel, and time it against the default or the reference, unrecorded."""
        sides = {"first": configuration or "default", "second": against}
        asked = {**sides, "kernel": self._kernel(kernel), "given": options}
        return _result(await self._commands.work(_say(context), "compare", **asked))

    @offering(StudyRequest, without=("executor", "address"))
    async def tune(
        self, context: Context[Any, Any], kernel: Target, **options: Any
    ) -> Annotated[CallToolResult, answers.Studies]:
        """Run a study within a budget, or go on with it. Every trial is recorded, also where the call is cancelled."""
        asked = {"targets": [self._kernel(kernel)], "given": options}
        return _result(await self._commands.work(_say(context), "tune", **asked))

    @offering(BestRequest)
    async def best(self, kernel: str | None = None, **options: Any) -> Annotated[CallToolResult, answers.Trials]:
        """Read the best configuration of each kernel, problem and device that is recorded in the working folder."""
        return _result(await self._commands.ask("best", kernel=kernel, given=options))

    @offering(TrialsRequest)
    async def trials(
        self, kernel: str | None = None, limit: Annotated[int, Field(ge=1, le=1000)] = 20, **options: Any
    ) -> Annotated[CallToolResult, answers.Trials]:
        """Read recorded trials, the newest first."""
        return _result(await self._commands.ask("trials", kernel=kernel, given={**options, "limit": limit}))

    async def explain(
        self, trial: Annotated[int, Field(ge=1, description="The trial's number, as `trials` has it.")]
    ) -> Annotated[CallToolResult, answers.Details]:
        """Everything about one trial: the gate's stages and what they found, the compiler's log, the samples, and where
        it has a time, what explains it."""
        return _result(await self._commands.ask("explain", trial=trial, given={"recorded": True}))

    def _kernel(self, target: str) -> str:
        """A kernel as a command takes it."""
        if target in kernel_names():
            return target
        place = self._inside(target)
        if not (place.is_dir() or place.suffix == ".py"):
            raise UserError(f"'{target}' is neither a kernel folder nor a Python file")
        return str(place)

    def _inside(self, text: str) -> Path:
        """A place in the working folder.

        Raises:
            UserError: it is elsewhere, also by a symbolic link, or not there.
        """
        require_said("a path", text)
        folder = self._commands.folder
        try:
            place = (folder / text).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            known = ", ".join(kernel_names())
            raise UserError(f"'{text}' is no path in {folder}, and no shipped kernel (those are {known})") from None
        if not place.is_relative_to(folder):
            raise UserError(f"'{text}' is outside of the working folder {folder}: give a path in it")
        return place


class _Server(MCPServer[Any]):
    """The SDK's, which tells of arguments that do not meet their schema in several lines: here it is one.

    What is no message is answered, too; see `messages`.
    """

    async def run_stdio_async(self) -> None:
        """Serve on standard input and output."""
        answers: list[Callable[[SessionMessage], Awaitable[None]]] = []

        async def answer(error: JSONRPCError) -> None:
            await answers[0](SessionMessage(error))

        lines = messages(sys.stdin.buffer, answer)
        async with stdio_server(stdin=cast(anyio.AsyncFile[str], lines)) as (reading, writing):
            answers.append(writing.send)
            server = self._lowlevel_server
            await server.run(reading, writing, server.create_initialization_options())

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            wrong = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.__cause__.errors())
            raise ToolError(f"{name}: {'; '.join(wrong)}".replace("\n", " ")) from error.__cause__


def make_server(folder: Path) -> MCPServer[Any]:
    """The server, with its tools, for one working folder.

    Raises:
        UserError: the folder is none, or cannot be written.
    """
    server = _Server(
        "tunebench", version=__version__, instructions=_INSTRUCTIONS, log_level="WARNING", warn_on_duplicate_tools=True
    )
    tools = Tools(folder)
    reading: tuple[Tool, ...] = (tools.kernels, tools.space, tools.best, tools.trials, tools.explain)
    working: tuple[Tool, ...] = (tools.check, tools.evaluate, tools.tune)
    for tool in (*reading, *working):
        server.add_tool(_told(tool), annotations=_READS if tool in reading else _WRITES)
    return server


def published(folder: Path) -> list[dict[str, Any]]:
    """The tools as a client is told of them: names, descriptions, and the schemas of what they take and answer."""
    found = anyio.run(make_server(folder).list_tools)
    return [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in found]


def _told(method: Tool) -> Tool:
    """A tool whose own errors a client is told, in one line."""

    @functools.wraps(method)
    async def tool(*arguments: Any, **options: Any) -> CallToolResult:
        try:
            return await method(*arguments, **options)
        except TunebenchError as error:
            raise ToolError(str(error)) from error

    vars(tool)["__signature__"] = inspect.signature(method, eval_str=True)
    return tool


def _result(answer: object) -> CallToolResult:
    text = TextContent(type="text", text=json.dumps(answer, ensure_ascii=False))
    return CallToolResult(content=[text], structured_content={"result": answer})


def _say(context: Context[Any, Any]) -> Say:
    last = 0.0

    async def say(done: float, total: float | None, text: str) -> None:
        nonlocal last
        last = max(done, last + 0.001)  # the protocol wants it to grow
        await context.report_progress(last, total, text)

    return say
