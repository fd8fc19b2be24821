"""Reads a server's standard input: what is no message of the protocol is answered with an error of JSON-RPC.

The SDK's own reader drops such lines, so that whoever waits for an answer waits for ever.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import BinaryIO

import anyio.to_thread
from mcp.types import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter
from pydantic import ValidationError

LONGEST = 1 << 20
"""Bytes of a line; no argument of a command can be as long."""

_ID = re.compile(rb'"id"\s*:\s*("[^"\\]*"|-?\d{1,18})\s*,')

Answer = Callable[[JSONRPCError], Awaitable[None]]


async def messages(stream: BinaryIO, answer: Answer) -> AsyncIterator[str]:
    """Yield the lines of a stream that are messages, and answer the others."""
    while line := await anyio.to_thread.run_sync(stream.readline, LONGEST + 1):
        if len(line) > LONGEST:
            await answer(_too_long(line))
            while line and not line.endswith(b"\n"):
                line = await anyio.to_thread.run_sync(stream.readline, LONGEST)
        elif line.strip():
            try:
                jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValidationError:
                if (error := _wrong(line)) is not None:
                    await answer(error)
            else:
                yield line.decode()


def _too_long(beginning: bytes) -> JSONRPCError:
    found = _ID.search(beginning.partition(b'"params"')[0])
    return _error(json.loads(found[1]) if found else None, INVALID_REQUEST, f"the message has over {LONGEST} bytes")


def _wrong(line: bytes) -> JSONRPCError | None:
    """Return what is wrong with a line that is no message; None for a notification, which has no answer."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return _error(None, PARSE_ERROR, "the line is not JSON")
    if not isinstance(content, dict):
        return _error(None, INVALID_REQUEST, "a message is an object; there are no batches")
    number = content.get("id")
    known = number if isinstance(number, str | int) and not isinstance(number, bool) else None
    if isinstance(content.get("method"), str) and not isinstance(content.get("params", {}), dict):
        return _error(known, INVALID_PARAMS, "params is not an object") if "id" in content else None
    return _error(known, INVALID_REQUEST, 'a request has "jsonrpc": "2.0", an id and a method')


def _error(number: str | int | None, code: int, message: str) -> JSONRPCError:
    return JSONRPCError(jsonrpc="2.0", id=number, error=ErrorData(code=code, message=message))
