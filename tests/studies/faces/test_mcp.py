"""`tunebench mcp`: a client of the SDK drives a study on a real server, over standard input and output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine
from sample_kernel import WriteKernel

pytest.importorskip("mcp")

import anyio
import jsonschema
from mcp import Client, StdioServerParameters

from tunebench.studies.faces.mcp import answers
from tunebench.studies.faces.mcp.server import published

pytestmark = pytest.mark.usefixtures("short_studies")

ROOT = Path(__file__).parents[3]
TOOLS = ("kernels", "space", "check", "evaluate", "tune", "best", "trials", "explain")


class Server:
    """A server in a process of its own, and a client that looks at every answer with the published schema."""

    def __init__(self, client: Client, schemas: Mapping[str, Any]) -> None:
        self._client = client
        self._schemas = schemas

    async def __call__(self, tool: str, **arguments: Any) -> Any:
        found = await self._client.call_tool(tool, arguments)
        assert not found.is_error, found.content
        assert found.structured_content is not None
        jsonschema.validate(found.structured_content, self._schemas[tool])
        return found.structured_content["result"]

    async def error(self, tool: str, **arguments: Any) -> str:
        """The one line about a call that was wrong."""
        found = await self._client.call_tool(tool, arguments)
        (content,) = found.content
        assert found.is_error and content.type == "text" and len(content.text.splitlines()) == 1, found
        return content.text


@pytest.mark.slow
def test_a_client_drives_a_study(
    write_kernel: WriteKernel, run: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = write_kernel().kernel
    folder, elsewhere = kernel.folder.parent, tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / "link").symlink_to(tmp_path)
    environment = {**os.environ, "HOME": str(elsewhere), "TMPDIR": str(elsewhere), "PYTHONPATH": str(ROOT / "src")}
    arguments = ["-m", "tunebench", "mcp", "--folder", str(folder)]
    parameters = StdioServerParameters(command=sys.executable, args=arguments, env=environment, cwd=str(elsewhere))
    seen: list[tuple[float, float | None, str | None]] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        seen.append((done, total, message))

    async def drive() -> tuple[Any, Any, Any]:
        async with Client(parameters) as client:
            tools = (await client.list_tools()).tools
            assert {tool.name for tool in tools} == set(TOOLS)
            ask = Server(client, {tool.name: tool.output_schema for tool in tools})
            wrong = (
                ("tune", {"kernel": ".."}, "outside of the working folder"),
                ("check", {"target": "link/other.py"}, "is no path in"),
                ("check", {"target": "link"}, "outside of the working folder"),
                ("check", {"target": "weigh", "reference": "/etc/passwd"}, "outside of the working folder"),
                (
                    "evaluate",
                    {"kernel": "weigh", "configuration": {"--db": 1}, "device": "cpu"},
                    "unknown tunable '--db'",
                ),
                ("best", {}, "run a study first"),
                ("trials", {"limit": -1, "study": "first"}, "study: Input should be a valid integer"),
                ("trials", {"limit": -1}, "trials: limit: Input should be greater than or equal to 1"),
                ("tune", {"kernel": "weigh", "trials": 0}, "tune: trials: Input should be greater than or equal to 1"),
                ("tune", {}, "tune: kernel: Field required"),
            )
            for tool, given, text in wrong:
                told = await ask.error(tool, **given)
                assert text in told and "with --db" not in told
            found = await client.call_tool(
                "tune", {"kernel": "weigh", "trials": 1, "device": "cpu"}, progress_callback=progress
            )
            assert found.structured_content is not None, found
            assert [one.result[0].trials for one in [answers.Studies(**found.structured_content)]] == [1]
            trials = await ask("trials", limit=1, fastest=True)
            details = await ask("explain", trial=trials[0]["trial"])
            best = await ask("best", kernel="weigh")
            await cancelled_study(client)
            return trials, details, best

    trials, details, best = anyio.run(drive)
    assert any(total == 1 for _, total, _ in seen) and seen == sorted(seen, key=lambda one: one[0])
    assert details["verdict"]["passed"] and {stage["name"] for stage in details["verdict"]["stages"]} > {
        "written",
        "after timing",
    }
    monkeypatch.setenv("TUNEBENCH_DB", str(folder / "tunebench.db"))
    assert run("explain", trials[0]["trial"], "--recorded", "--json").json == details
    assert details["explanation"]["why_without"] == "none are recorded"
    assert run("best", "weigh", "--json").json == best
    assert not list(elsewhere.rglob("*")), "nothing is written outside of the working folder"


async def cancelled_study(client: Client) -> None:
    """A study that is cancelled once it runs: its processes end, and nothing that it did is lost."""
    with anyio.CancelScope() as scope:

        async def progress(_done: float, _total: float | None, message: str | None) -> None:
            if "valid configurations" in (message or ""):
                scope.cancel()

        await client.call_tool(
            "tune", {"kernel": "weigh", "trials": 9, "seed": 1, "device": "cpu"}, progress_callback=progress
        )
    assert scope.cancelled_caught
    with anyio.fail_after(60):
        while commands_of_servers():
            await anyio.sleep(0.1)


def commands_of_servers() -> list[str]:
    """What servers below this process run, but the servers themselves."""
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(status.parent.name)] = int(status.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        except OSError:
            continue
    servers = [one for one, parent in parents.items() if parent == os.getpid() and "mcp" in arguments_of(one)]
    return [arguments_of(one) for one, parent in parents.items() if parent in servers]


def arguments_of(process: int) -> str:
    """A process's command line; empty where it has gone."""
    try:
        return Path(f"/proc/{process}/cmdline").read_text(encoding="utf-8").replace("\0", " ")
    except OSError:
        return ""


@pytest.mark.slow
def test_what_is_no_message_is_answered(tmp_path: Path) -> None:
    begin = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "best", "arguments": {}}}
    wrong: list[tuple[str, object, int]] = [
        ("{broken", None, -32700),
        ("\xff", None, -32700),
        ("[" * 100_000, None, -32700),
        ("[]", None, -32600),
        ("3", None, -32600),
        ('{"jsonrpc": "1.0", "id": 2, "method": "tools/list"}', 2, -32600),
        ('{"jsonrpc": "2.0", "id": "three"}', "three", -32600),
        ('{"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": [1]}', 4, -32602),
        ('{"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": "text"}', 5, -32602),
        (json.dumps(call | {"params": {"name": "best", "arguments": {"kernel": "x" * 30_000_000}}}), 7, -32600),
        ("x" * 30_000_000, None, -32600),
    ]
    silent = ("", " ", '{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": [1]}')
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "tunebench", "mcp", "--folder", str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, encoding="latin-1"
    ) as server:
        assert server.stdin is not None and server.stdout is not None

        def ask(*lines: str) -> Any:
            server.stdin.write("".join(f"{line}\n" for line in lines))
            server.stdin.flush()
            return json.loads(server.stdout.readline())

        started = ask(json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": begin}))
        assert started["result"]["serverInfo"]["name"] == "tunebench"
        for line, number, code in wrong:
            answer = ask(*silent, line)
            assert (answer["id"], answer["error"]["code"]) == (number, code), (line[:80], answer)
            assert len(answer["error"]["message"].splitlines()) == 1
        # It goes on.
        found = ask('{"jsonrpc": "2.0", "method": "notifications/initialized"}', json.dumps(call | {"id": 9}))
        assert found["id"] == 9 and "run a study first" in found["result"]["content"][0]["text"]
        server.stdin.close()
        assert server.wait(60) == 0


def test_what_the_commands_print_is_what_the_schemas_say(run: CommandLine, write_kernel: WriteKernel) -> None:
    folder = str(write_kernel().kernel.folder)
    schemas = {tool["name"]: tool["outputSchema"] for tool in published(Path(folder))}
    small = ("--size", "rows=4", "--device", "cpu")
    answered: Mapping[str, Any] = {
        "kernels": run("kernels", folder, "--json").json,
        "space": run("space", folder, *small, "--json").json,
        "evaluate": run("compare", "default", "reference", folder, *small, "--json").json,
    }
    for tool, answer in answered.items():
        jsonschema.validate({"result": answer}, schemas[tool])
    assert folder in {one["target"] for one in answered["kernels"]}
    (space,) = answered["space"]
    assert space["valid_configurations"] > 3 and space["constraints"] == ["few_threads"]
    assert "few_threads" in run("space", folder, *small).out
    assert "scalar_mul" in run("kernels").out
    page = (ROOT / "docs" / "mcp.md").read_text(encoding="utf-8")
    assert all(f"| `{tool}` |" in page for tool in TOOLS) and set(schemas) == set(TOOLS)
