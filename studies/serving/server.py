"""The judge over HTTP: `POST /check`, `POST /verify` and `GET /health`; JSON in, JSON out."""

from __future__ import annotations

import json
import math
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tunebench import __version__
from tunebench.studies.request.serving import ServeRequest
from tunebench.studies.serving.judge import BusyError, Judge, Question, TokenBuckets
from tunebench.studies.serving.signing import Key, key_file
from tunebench.tuner.errors import TunebenchError, UserError

_SECONDS_OF_A_REQUEST = 30.0
"""A client may be silent for so long."""
_MOST_CONNECTIONS = 128
_BUSY_SECONDS = 30
_MOST_DISCARDED = 1 << 26
"""Bytes of a body that is not wanted. A client that still sends would not read why."""


class _RefusedError(Exception):
    """A request that is not answered.

    Args:
        retry: seconds after which it may be asked again; None where that would not help.
    """

    def __init__(self, status: HTTPStatus, reason: str, retry: int | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.retry = retry


class JudgeServer(ThreadingHTTPServer):
    """Answers requests for verdicts."""

    daemon_threads = True

    def __init__(self, judge: Judge, request: ServeRequest) -> None:
        self.judge = judge
        self.buckets = TokenBuckets(request.rate)
        self.longest = request.longest
        self._connections = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__((request.host, request.port), _Handler)

    @property
    def address(self) -> str:
        """Where it answers."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; close the connection where there are too many."""
        if self._connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room for another connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that goes away or is silent."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: JudgeServer
    timeout = _SECONDS_OF_A_REQUEST
    server_version = f"tunebench/{__version__}"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer({"/health": self._health})

    def do_POST(self) -> None:
        self._answer({"/check": self._check, "/verify": self._verify})

    def log_message(self, *_: object) -> None:
        """No line for each request: a terminal is for what its reader asked."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Answer what is no request of HTTP, or has another method."""
        self._send(HTTPStatus(code), {"error": message or HTTPStatus(code).phrase})

    def _answer(self, functions: Mapping[str, Callable[[], Mapping[str, Any]]]) -> None:
        try:
            # A browser says which page sends a request; a page has no business here, wherever it is from.
            if self.headers.get("Origin"):
                raise _RefusedError(HTTPStatus.FORBIDDEN, "requests of web pages are not answered")
            if (function := functions.get(self.path)) is None:
                raise _RefusedError(
                    HTTPStatus.NOT_FOUND, "there is POST /check, POST /verify and GET /health, and nothing else"
                )
            self._send(HTTPStatus.OK, function())
        except _RefusedError as refused:
            self._send(refused.status, {"error": str(refused)}, refused.retry)
        except UserError as error:
            self._send(HTTPStatus.BAD_REQUEST, {"error": _line(error)})
        except BusyError as error:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, {"error": _line(error)}, _BUSY_SECONDS)
        except TunebenchError as error:
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": _line(error)})

    def _health(self) -> Mapping[str, Any]:
        judge = self.server.judge
        return {
            "status": "ok",
            "tunebench": __version__,
            "key": judge.key.name,
            "jobs": judge.jobs,
            "requests": judge.waiting,
        }

    def _check(self) -> Mapping[str, Any]:
        client = str(self.client_address[0])
        if wait := self.server.buckets.seconds_until(client):
            raise _RefusedError(
                HTTPStatus.TOO_MANY_REQUESTS, f"too many requests: try again in {math.ceil(wait)} s", math.ceil(wait)
            )
        return self.server.judge.verdict(Question.read(self._body()))

    def _verify(self) -> Mapping[str, Any]:
        verdict = self._body()
        return {"verified": isinstance(verdict, dict) and self.server.judge.key.verifies(verdict)}

    def _body(self) -> object:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise _RefusedError(HTTPStatus.LENGTH_REQUIRED, "give the body's Content-Length")
        if int(length) > self.server.longest:
            raise _RefusedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has {length} bytes; {self.server.longest} are allowed"
            )
        try:
            return json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError) as error:
            raise UserError(f"the body is not JSON: {error}") from error

    def _send(self, status: HTTPStatus, content: Mapping[str, Any], retry: int | None = None) -> None:
        body = (json.dumps(content) + "\n").encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if retry is not None:
            self.send_header("Retry-After", str(retry))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        if status is not HTTPStatus.OK:
            self._discard()

    def _discard(self) -> None:
        """Read what the client still sends."""
        self.connection.shutdown(socket.SHUT_WR)
        left = _MOST_DISCARDED
        while left > 0 and (part := self.connection.recv(1 << 16)):
            left -= len(part)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


@contextmanager
def serving(request: ServeRequest) -> Iterator[JudgeServer]:
    """Answer requests in other threads while the block runs.

    Raises:
        UserError: the address is taken or not allowed, or the key cannot be read.
    """
    judge = Judge(Key.read_or_make(key_file(request.key)), request)
    try:
        server = JudgeServer(judge, request)
    except OSError as error:
        where = f"{request.host}:{request.port}"
        raise UserError(f"cannot listen on {where}: {error.strerror}; choose another --host or --port") from error
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
